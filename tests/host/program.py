"""A service host as a process of its own, which tests stop, kill and start again."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import lazaretto
from lazaretto.host import Handler, HandlerContext, Isolation, ServiceHost
from lazaretto.host.slots import Slot

#: Which messages were begun. Beside it: a file that says that slots were told to stop, and one that
#: those wait for whose word is `wait`.
BEGUN = Path(os.environ["BEGUN"])
STOPPING, GO = BEGUN.with_name("stopping"), BEGUN.with_name("go")


def act(message: lazaretto.ReceivedMessage, context: HandlerContext) -> None:
    """Note that the message was begun, do what it says, and write it down in the settling commit."""
    word, _, rest = message.body.partition(b" ")
    with BEGUN.open("ab") as file:
        file.write(message.body + b"\n")
    match word:
        case b"killer":
            os.kill(os.getpid(), signal.SIGKILL)
        case b"nap":
            time.sleep(float(rest.split()[0]))
        case b"wait":
            while not GO.exists():
                time.sleep(0.005)
    context.execute("INSERT INTO done VALUES (?)", (message.sequence_number,))


async def act_async(message: lazaretto.ReceivedMessage, context: HandlerContext) -> None:
    """Do the same as a coroutine that waits beside others."""
    word, _, rest = message.body.partition(b" ")
    with BEGUN.open("ab") as file:
        file.write(message.body + b"\n")
    match word:
        case b"nap":
            await asyncio.sleep(float(rest))
        case b"wait":
            while not GO.exists():
                await asyncio.sleep(0.005)
    context.execute("INSERT INTO done VALUES (?)", (message.sequence_number,))


def tell_of_stops() -> None:
    """Say in a file when a slot has been told to stop."""
    stop = Slot.stop

    def tell(slot: Slot, grace: float) -> None:
        stop(slot, grace)
        STOPPING.touch()

    Slot.stop = tell  # type: ignore[assignment,method-assign]


def main() -> None:
    """Serve until told to stop: store, isolation, batch size, concurrency, grace."""
    store, isolation, batch_size, concurrency, grace = sys.argv[1:]
    tell_of_stops()
    with lazaretto.connect(store) as broker:
        function = act_async if "ASYNC" in os.environ else act
        handler = Handler(
            "work",
            function,
            isolation=Isolation(isolation),
            batch_size=int(batch_size),
            concurrency=int(concurrency),
        )
        host = ServiceHost(broker, handler, grace=float(grace))

        def over() -> bool:
            counts = broker.queue("work").counts
            return "ONCE" in os.environ and not (counts.active or counts.locked or counts.suspect)

        host.run(until=over)


if __name__ == "__main__":
    main()
