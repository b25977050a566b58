"""`python -m bench.door.proton_memory`: the same broker in memory behind Apache's proton, for comparison.

It prints its port, and serves until it is ended. Debian's package is `python3-qpid-proton`, for the system's
Python; so this module needs nothing but proton.
"""

from __future__ import annotations

import socket
import struct
import sys
from collections import defaultdict, deque
from typing import Any

from proton import Message, ulong
from proton.handlers import MessagingHandler
from proton.reactor import Container

_CREDIT = 1_000


class Broker(MessagingHandler):  # type: ignore[misc]
    """Queues in memory."""

    def __init__(self, port: int) -> None:
        super().__init__(prefetch=0, auto_accept=False, auto_settle=True)
        self._port = port
        self._ready: defaultdict[str, deque[tuple[int, Message]]] = defaultdict(deque)
        self._last = 0

    def on_start(self, event: Any) -> None:
        event.container.listen(f"127.0.0.1:{self._port}")
        sys.stdout.write(f"{self._port}\n")
        sys.stdout.flush()

    def on_link_opening(self, event: Any) -> None:
        link = event.link
        link.source.copy(link.remote_source)
        link.target.copy(link.remote_target)
        if link.is_receiver:
            link.flow(_CREDIT)

    def on_message(self, event: Any) -> None:
        link, message = event.receiver, event.message
        self._last += 1
        self._ready[link.remote_target.address].append((self._last, message))
        event.delivery.update(event.delivery.ACCEPTED)
        event.delivery.settle()
        if link.credit < _CREDIT // 2:
            link.flow(_CREDIT - link.credit)

    def on_sendable(self, event: Any) -> None:
        link = event.sender
        ready = self._ready[link.remote_source.address]
        while ready and link.credit > 0:
            number, message = ready.popleft()
            message.annotations = {"x-opt-sequence-number": ulong(number), "x-opt-enqueued-time": 1}
            link.send(message, tag=struct.pack(">QQ", 7, number).hex())

    def on_accepted(self, event: Any) -> None:
        # Settling alone says nothing to a client that has not settled.
        event.delivery.update(event.delivery.ACCEPTED)


def main() -> None:
    """Listen on a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    Container(Broker(port)).run()


if __name__ == "__main__":
    main()
