"""One order that nobody can read, and a good one: python -m examples.quickstart"""

import lazaretto
from lazaretto import Message, PoisonPolicy, QueueOptions, ReceivedMessage


def ship(message: ReceivedMessage) -> None:
    print("shipping", int(message.body), "boxes")  # fails if the order is not a number


with lazaretto.connect("sqlite:///quickstart.db") as broker:
    broker.create_queue("orders", QueueOptions(policy=PoisonPolicy(receive_retry_count=2)), exist_ok=True)
    with broker.sender("orders") as sender:
        sender.send([Message(b"a dozen"), Message(b"12")])
    print(broker.consume("orders", ship, stop_when_idle=True))
    for letter in broker.dead_letters("orders"):
        print(letter.sequence_number, letter.reason, letter.error_message)
