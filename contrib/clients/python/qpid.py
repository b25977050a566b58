"""Facts, asked of Qpid Proton, over AMQP 1.0 alone: `python qpid.py FACTS SETTINGS [part of a title]`."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from typing import Any

from proton import (
    SSL,
    Condition,
    ConnectionException,
    Delivery,
    Described,
    Message,
    ProtonException,
    SSLDomain,
    Terminus,
    symbol,
    timestamp,
    uint,
    ulong,
)
from proton.handlers import TransactionHandler
from proton.reactor import Filter, LinkOption, ReceiverOption
from proton.utils import BlockingConnection, BlockingReceiver
from table import LONG, SHORT, Impossible, body_of, main

#: What the table calls errors.
ERRORS: Mapping[str, str] = {
    "amqp:not-found": "EntityNotFound", "amqp:unauthorized-access": "Unauthorized",
    "amqp:not-implemented": "NotImplemented", "amqp:not-allowed": "InvalidOperation",
    "amqp:resource-limit-exceeded": "QuotaExceeded", "amqp:link:message-size-exceeded": "MessageSizeExceeded",
    "com.microsoft:entity-disabled": "EntityDisabled", "com.microsoft:message-lock-lost": "MessageLockLost",
    "com.microsoft:session-lock-lost": "SessionLockLost", "com.microsoft:timeout": "ServiceTimeout",
    "com.microsoft:session-cannot-be-locked": "SessionCannotBeLocked",
}  # fmt: skip
FIELDS = {
    "id": "id", "subject": "subject", "correlation": "correlation_id", "to": "address", "replyTo": "reply_to",
    "replyToSession": "reply_to_group_id", "contentType": "content_type", "session": "group_id",
}  # fmt: skip
ANNOTATIONS = {
    "partitionKey": "x-opt-partition-key",
    "number": "x-opt-sequence-number",
    "source": "x-opt-deadletter-source",
}
PROPERTIES = {"reason": "DeadLetterReason", "description": "DeadLetterErrorDescription"}
SESSIONS = symbol("com.microsoft:session-filter")
#: How long to wait for an answer, in seconds.
PATIENCE = 60.0


class Refused(Exception):
    """An answer that is an error; its text names the condition."""


class Times(LinkOption):  # type: ignore[misc]
    """Says how long to wait for a session."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def apply(self, link: Any) -> None:
        link.properties = {symbol("com.microsoft:timeout"): uint(round(self._seconds * 1000))}


class Copies(ReceiverOption):  # type: ignore[misc]
    """Looks at messages and takes none."""

    def apply(self, receiver: Any) -> None:
        receiver.source.distribution_mode = Terminus.DIST_MODE_COPY


class Deletes(LinkOption):  # type: ignore[misc]
    """Receives and deletes."""

    def apply(self, link: Any) -> None:
        link.snd_settle_mode = 1


class Ended(TransactionHandler):  # type: ignore[misc]
    """Notes what became of a transaction."""

    def __init__(self) -> None:
        super().__init__()
        self.state, self.transaction = "", None

    def on_transaction_declared(self, event: Any) -> None:
        self.state, self.transaction = "declared", event.transaction

    def on_transaction_committed(self, event: Any) -> None:
        self.state = "committed"

    def on_transaction_aborted(self, event: Any) -> None:
        self.state = "aborted"

    def on_transaction_commit_failed(self, event: Any) -> None:
        self.state = "failed"


class Fact:
    """One fact under way: its connections, and what its steps have named."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = settings
        self.addresses: dict[str, str] = {}
        self.stack = ExitStack()
        self._names: dict[str, Any] = {}
        self._by = "plain"
        self._connection: BlockingConnection | None = None
        self._receivers: dict[tuple[str, str], BlockingReceiver] = {}

    def name_of(self, error: Exception) -> str:
        """Return what the table calls an error."""
        if isinstance(error, ConnectionException) and "sasl" in str(error).lower():
            return "Unauthorized"
        text = f"{getattr(error, 'condition', '')} {error}"
        return next((name for condition, name in ERRORS.items() if condition in text), "?")

    def step(self, name: str) -> Callable[[Mapping[str, Any]], Any] | None:
        """Return how to take a step; None: this client has no call for it."""
        return getattr(self, f"do_{name.replace('-', '_')}", None)

    # Connections.

    def do_client(self, step: Mapping[str, Any]) -> None:
        self._by, self._connection, self._receivers = step["by"], None, {}

    @property
    def connection(self) -> BlockingConnection:
        """A connection of the way that was chosen last."""
        if self._connection is None:
            if self._by == "websocket" or (self._by == "tls" and not SSL.present()):
                raise Impossible(self._by)
            user, password = self.settings["keys"][self._by]
            named: dict[str, Any] = {}
            if self._by == "tls":
                named["ssl_domain"] = domain = SSLDomain(SSLDomain.MODE_CLIENT)
                domain.set_trusted_ca_db(self.settings["authority"])
            at = f"{'amqps' if named else 'amqp'}://{self.settings['host']}:{self.settings['port']}"
            self._connection = BlockingConnection(
                at, PATIENCE, user=user, password=password, allowed_mechs="PLAIN", **named
            )
            self.stack.callback(self._end, self._connection)
        return self._connection

    @staticmethod
    def _end(connection: BlockingConnection) -> None:
        with suppress(ProtonException):
            connection.close()

    def do_wait(self, step: Mapping[str, Any]) -> None:
        time.sleep(step["seconds"])

    # Messages.

    def do_send(self, step: Mapping[str, Any]) -> None:
        if step.get("batch"):
            raise Impossible("batches")
        sender = self.connection.create_sender(step["to"])
        sends = self._names[step["transaction"]].transaction if "transaction" in step else None
        for form in step["messages"]:
            message = message_of(form)
            sent = sender.link.send(message) if sends is None else sends.send(sender.link, message)
            self._answer(sent)
        sender.close()

    def _answer(self, delivery: Delivery) -> None:
        """Wait for the answer of the server. Raises Refused."""
        self.connection.wait(lambda: delivery.settled or delivery.remote_state, timeout=PATIENCE)
        told = delivery.remote.condition
        if delivery.remote_state == Delivery.REJECTED and told is not None:
            raise Refused(f"{told.name}: {told.description}")
        delivery.settle()

    def receiver(self, step: Mapping[str, Any]) -> BlockingReceiver:
        """Return the receiver of a step."""
        if "session" in step:
            return self._names[step["session"]]
        mode = step.get("mode", "")
        if (step["from"], mode) not in self._receivers:
            made = self._receive_from(step["from"], *([Deletes()] if mode else []))
            self._receivers[step["from"], mode] = made
        return self._receivers[step["from"], mode]

    def _receive_from(
        self, address: str | None, *options: LinkOption, dynamic: bool = False
    ) -> BlockingReceiver:
        # By its own names, two links from one queue would be one.
        named: dict[str, Any] = {"name": str(uuid.uuid4()), "dynamic": dynamic, "options": list(options)}
        return self.connection.create_receiver(address, credit=0, **named)

    def do_receive(self, step: Mapping[str, Any]) -> list[dict[str, Any]]:
        receiver, expected = self.receiver(step), len(step.get("see", ()))
        count, end = max(expected, 1), time.monotonic() + (LONG if expected else SHORT)
        receiver.link.flow(count - receiver.link.credit)
        arrived = receiver.fetcher.incoming
        with suppress(ProtonException):
            self.connection.wait(lambda: len(arrived) >= count, timeout=end - time.monotonic())
        taken = [arrived.popleft() for _ in range(min(count, len(arrived)))]
        self._names[step.get("as", "")] = [delivery for _, delivery in taken]
        return [form_of(message) for message, _ in taken]

    def do_peek(self, step: Mapping[str, Any]) -> list[dict[str, Any]]:
        receiver = self._receive_from(step["from"], Copies())
        link = receiver.link
        link.drain(20)
        self.connection.wait(lambda: not link.draining() and not link.queued, timeout=PATIENCE)
        found = [form_of(message) for message, _ in receiver.fetcher.incoming]
        receiver.close()
        return found

    # Settlements.

    def _settle(self, step: Mapping[str, Any], state: int) -> None:
        for delivery in self._names[step["messages"]]:
            if "transaction" in step:
                self._names[step["transaction"]].transaction.accept(delivery)
                continue
            local = delivery.local
            if state == Delivery.MODIFIED:
                local.failed, local.undeliverable = True, step["do"] == "defer"
                local.annotations = {
                    symbol(name): value for name, value in step.get("properties", {}).items()
                }
            elif state == Delivery.REJECTED:
                info = {PROPERTIES[name]: step[name] for name in PROPERTIES if name in step}
                info |= step.get("properties", {})
                local.condition = Condition("com.microsoft:dead-letter", None, info)
            delivery.update(state)
            self._answer(delivery)

    def do_complete(self, step: Mapping[str, Any]) -> None:
        self._settle(step, Delivery.ACCEPTED)

    def do_abandon(self, step: Mapping[str, Any]) -> None:
        self._settle(step, Delivery.MODIFIED)

    def do_defer(self, step: Mapping[str, Any]) -> None:
        self._settle(step, Delivery.MODIFIED)

    def do_dead_letter(self, step: Mapping[str, Any]) -> None:
        self._settle(step, Delivery.REJECTED)

    # Sessions.

    def do_accept(self, step: Mapping[str, Any]) -> Any:
        asked = Filter({SESSIONS: Described(ulong(83_483_426_828), step.get("session"))})
        options = [asked, *([Times(step["seconds"])] if "seconds" in step else [])]
        self._names[step["as"]] = receiver = self._receive_from(step["from"], *options)
        told = receiver.link.remote_source.filter
        told.rewind()
        told.next()
        return next(iter(told.get_object().values())).value

    def do_close(self, step: Mapping[str, Any]) -> None:
        self._names[step["session"]].close()

    # Transactions.

    def do_begin(self, step: Mapping[str, Any]) -> None:
        self._names[step["as"]] = handler = Ended()
        self.connection.container.declare_transaction(self.connection.conn, handler=handler)
        self.connection.wait(lambda: handler.state, timeout=PATIENCE)

    def _discharge(self, step: Mapping[str, Any], act: str, wanted: str) -> None:
        handler = self._names[step["transaction"]]
        getattr(handler.transaction, act)()
        self.connection.wait(lambda: handler.state != "declared", timeout=PATIENCE)
        if handler.state != wanted:
            raise Refused(f"expected the transaction to be {wanted}, got {handler.state}")

    def do_commit(self, step: Mapping[str, Any]) -> None:
        self._discharge(step, "commit", "committed")

    def do_rollback(self, step: Mapping[str, Any]) -> None:
        self._discharge(step, "abort", "aborted")

    # What the server makes, and what it does not have.

    def do_dynamic(self, step: Mapping[str, Any]) -> None:
        made = self._receive_from(None, dynamic=True)
        address = self.addresses[step["as"]] = made.link.remote_source.address
        self._receivers[address, ""] = made

    def do_select(self, step: Mapping[str, Any]) -> None:
        name = symbol("apache.org:selector-filter:string")
        self._receive_from(step["from"], Filter({name: Described(ulong(0x468C00000004), step["selector"])}))


def message_of(form: Mapping[str, Any]) -> Message:
    """Return a message of the table as this client has it."""
    message = Message(body_of(form).encode(), inferred=True)
    for name, field in FIELDS.items():
        if name in form:
            setattr(message, field, form[name])
    message.properties = form.get("properties")
    annotations: dict[Any, Any] = {}
    if "partitionKey" in form:
        annotations[symbol(ANNOTATIONS["partitionKey"])] = form["partitionKey"]
    if "scheduled" in form:
        at = timestamp(round((time.time() + form["scheduled"]) * 1000))
        annotations[symbol("x-opt-scheduled-enqueue-time")] = at
    message.annotations = annotations or None
    if "ttl" in form:
        message.ttl = form["ttl"]
    return message


def form_of(message: Message) -> dict[str, Any]:
    """Return what the table may ask of a message."""
    body, properties = bytes(message.body or b"").decode(), dict(message.properties or {})
    annotations = {str(name): value for name, value in (message.annotations or {}).items()}
    state = ("active", "deferred", "scheduled")[annotations.get("x-opt-message-state", 0)]
    form = {
        "body": body, "length": len(body), "state": state, "properties": properties,
        "ttl": message.ttl, "count": message.delivery_count,
    }  # fmt: skip
    form |= {name: getattr(message, field) for name, field in FIELDS.items()}
    form |= {name: annotations.get(field) for name, field in ANNOTATIONS.items()}
    return form | {name: properties.get(field) for name, field in PROPERTIES.items()}


if __name__ == "__main__":
    main(Fact)
