"""Sends, receives and completes messages of a spread until it is killed; says what it was told."""

from __future__ import annotations

import os
import sys
import uuid

from lazaretto import Message
from lazaretto.spread import connect


def say(verb: str, name: str) -> None:
    # In one piece, so that nobody reads half of it.
    os.write(1, f"{verb} {name} {os.getpid()}\n".encode())


def main(home: str, *urls: str) -> None:
    with connect(urls, home=int(home)) as spread:
        sender, receiver = spread.sender("orders"), spread.receiver("orders")
        while True:
            name = uuid.uuid4().hex
            key = None if name < "8" else name[0]
            sender.send(Message(b"x", message_id=name, partition_key=key))
            say("sent", name)
            for message in receiver.receive(1, max_wait=1):
                say("doing", message.message_id)
                receiver.complete(message)
                say("done", message.message_id)


if __name__ == "__main__":
    main(*sys.argv[1:])
