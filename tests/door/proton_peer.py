"""Qpid Proton, the reference client of AMQP 1.0, in Python: runs until its work is done."""

from __future__ import annotations

from typing import Any

from proton import Message
from proton.handlers import MessagingHandler, TransactionHandler
from proton.reactor import Container

#: How long a client waits for its work to be done, in seconds.
_PATIENCE = 120


class Peer(MessagingHandler):  # type: ignore[misc]
    """A client on one connection that ends it when its work is done."""

    def __init__(self, port: int, **options: Any) -> None:
        super().__init__(**options)
        self._url = f"amqp://127.0.0.1:{port}"
        self.errors: list[str] = []

    def run(self) -> None:
        """Do the work, and return when the connection is closed."""
        Container(self).run()
        assert not self.errors, self.errors

    def on_start(self, event: Any) -> None:
        self.container = event.container
        self.connection = event.container.connect(self._url, reconnect=False)
        self.timer = event.container.schedule(_PATIENCE, self)
        self.start()

    def start(self) -> None:
        """Open links."""
        raise NotImplementedError

    def done(self) -> None:
        """End the connection."""
        self.timer.cancel()
        self.connection.close()

    def on_timer_task(self, event: Any) -> None:
        self.fail("it took too long")

    def on_link_error(self, event: Any) -> None:
        self.fail(str(event.link.remote_condition))

    def on_transport_error(self, event: Any) -> None:
        self.fail(str(event.transport.condition))

    def fail(self, why: str) -> None:
        self.errors.append(why)
        self.done()


class Sends(Peer):
    """Sends messages to a queue or topic; all must be accepted."""

    def __init__(self, port: int, to: str, messages: list[Message]) -> None:
        super().__init__(port)
        self._to, self._messages, self._next, self._accepted = to, messages, 0, 0

    def start(self) -> None:
        self.container.create_sender(self.connection, self._to)

    def on_sendable(self, event: Any) -> None:
        while event.sender.credit and self._next < len(self._messages):
            event.sender.send(self._messages[self._next])
            self._next += 1

    def on_accepted(self, event: Any) -> None:
        self._accepted += 1
        if self._accepted == len(self._messages):
            self.done()

    def on_rejected(self, event: Any) -> None:
        self.fail(str(event.delivery.remote.condition))


class Receives(Peer):
    """Receives and accepts so many messages."""

    def __init__(self, port: int, source: str, count: int) -> None:
        super().__init__(port, prefetch=count, auto_accept=False)
        self._from, self._count = source, count
        self.found: list[Message] = []

    def start(self) -> None:
        self.container.create_receiver(self.connection, self._from)

    def on_message(self, event: Any) -> None:
        self.found.append(event.message)
        self.accept(event.delivery)
        if len(self.found) == self._count:
            self.done()


class Moves(Peer, TransactionHandler):  # type: ignore[misc]
    """Receives one message and sends others for it, all in one transaction, which it ends as it is told."""

    def __init__(self, port: int, source: str, to: list[tuple[str, str]], *, commits: bool) -> None:
        Peer.__init__(self, port, prefetch=0, auto_accept=False)
        self._from, self._sends, self._commits = source, to, commits
        self.ended = ""

    def start(self) -> None:
        self._receiver = self.container.create_receiver(self.connection, self._from)
        self._senders = {
            to: self.container.create_sender(self.connection, to) for to in {to for to, _ in self._sends}
        }
        self.container.declare_transaction(self.connection, handler=self)

    def on_transaction_declared(self, event: Any) -> None:
        self._transaction = event.transaction
        self._receiver.flow(1)

    def on_message(self, event: Any) -> None:
        for to, body in self._sends:
            self._transaction.send(self._senders[to], Message(body))
        self._transaction.accept(event.delivery)
        if self._commits:
            self._transaction.commit()
        else:
            self._transaction.abort()

    def on_transaction_committed(self, event: Any) -> None:
        self.ended = "committed"
        self.done()

    def on_transaction_aborted(self, event: Any) -> None:
        self.ended = "aborted"
        self.done()

    def on_transaction_commit_failed(self, event: Any) -> None:
        self.ended = "failed"
        self.done()
