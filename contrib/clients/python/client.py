"""Facts, asked of Azure's Service Bus SDK for Python: `python client.py FACTS SETTINGS [part of a title]`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError
from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceiver,
    TransportType,
    exceptions,
)
from azure.servicebus.management import (
    CorrelationRuleFilter,
    ServiceBusAdministrationClient,
    SqlRuleAction,
    SqlRuleFilter,
)
from table import LONG, SHORT, Impossible, body_of, main

#: What the table calls errors. This SDK has none of its own for a session without a receiver for it.
ERRORS: Mapping[type[Exception], str] = {
    exceptions.MessageLockLostError: "MessageLockLost",
    exceptions.SessionLockLostError: "SessionLockLost",
    exceptions.SessionCannotBeLockedError: "SessionCannotBeLocked",
    exceptions.MessageNotFoundError: "MessageNotFound",
    exceptions.MessagingEntityNotFoundError: "EntityNotFound",
    ResourceNotFoundError: "EntityNotFound",
    ResourceExistsError: "EntityAlreadyExists",
    exceptions.MessagingEntityDisabledError: "EntityDisabled",
    exceptions.MessageSizeExceededError: "MessageSizeExceeded",
    exceptions.ServiceBusQuotaExceededError: "QuotaExceeded",
    exceptions.ServiceBusAuthenticationError: "Unauthorized",
    exceptions.ServiceBusAuthorizationError: "Unauthorized",
    exceptions.OperationTimeoutError: "ServiceTimeout",
    exceptions.ServiceBusError: "InvalidOperation",
    HttpResponseError: "InvalidRule",
}
FIELDS = {
    "id": "message_id", "subject": "subject", "correlation": "correlation_id", "to": "to",
    "replyTo": "reply_to", "replyToSession": "reply_to_session_id", "contentType": "content_type",
    "partitionKey": "partition_key", "session": "session_id",
}  # fmt: skip


class Seen:
    """A message as the table names its fields."""

    def __init__(self, message: Any) -> None:
        self._message = message

    def __repr__(self) -> str:
        return repr(self._message)

    def get(self, name: str) -> Any:
        """Return a field."""
        return field(self._message, name)


class Fact:
    """One fact under way: its clients, and what its steps have named."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = settings
        self.addresses: dict[str, str] = {}
        self.names: dict[str, Any] = {}
        self.stack = ExitStack()
        self.client: ServiceBusClient
        self.receivers: dict[tuple[str, ...], ServiceBusReceiver] = {}
        self.senders: dict[str, Any] = {}
        self.connect({"by": "plain"})

    def step(self, name: str) -> Callable[[Mapping[str, Any]], Any] | None:
        """Return how to take a step; None: the SDK has no call for it."""
        return getattr(self, {"client": "connect"}.get(name, name).replace("-", "_"), None)

    def name_of(self, error: Exception) -> str:
        """Return what the table calls an error."""
        return next((name for kind, name in ERRORS.items() if isinstance(error, kind)), "?")

    # Connections.

    def connect(self, step: Mapping[str, Any]) -> None:
        by, host = step["by"], f"{self.settings['host']}:{self.settings['port']}"
        named: dict[str, Any] = {"retry_total": 0, "logging_enable": False}
        if by in ("tls", "websocket"):
            named["connection_verify"] = self.settings["authority"]
            named["custom_endpoint_address"] = f"sb://{host}"
            named["transport_type"] = (
                TransportType.AmqpOverWebsocket if by == "websocket" else TransportType.Amqp
            )
        text = self.settings["strings"].get(by, self.settings["strings"]["tls"])
        self.client = self.stack.enter_context(ServiceBusClient.from_connection_string(text, **named))
        self.receivers, self.senders = {}, {}

    @property
    def administration(self) -> ServiceBusAdministrationClient:
        return self.stack.enter_context(
            ServiceBusAdministrationClient.from_connection_string(
                self.settings["strings"]["plain"],
                connection_verify=self.settings["authority"],
                retry_total=0,
            )
        )

    def wait(self, step: Mapping[str, Any]) -> None:
        time.sleep(step["seconds"])

    # Messages.

    def sender(self, to: str) -> Any:
        if to not in self.senders:
            self.senders[to] = self.stack.enter_context(self.client.get_queue_sender(to))
        return self.senders[to]

    def send(self, step: Mapping[str, Any]) -> None:
        if "transaction" in step:
            raise Impossible("transactions")
        sender, messages = self.sender(step["to"]), [message_of(one) for one in step["messages"]]
        if step.get("batch"):
            batch = sender.create_message_batch()
            for message in messages:
                batch.add_message(message)
            sender.send_messages(batch)
        else:
            sender.send_messages(messages if len(messages) > 1 else messages[0])

    def schedule(self, step: Mapping[str, Any]) -> None:
        at = datetime.now(UTC) + timedelta(seconds=step["seconds"])
        messages = [message_of(one) for one in step["messages"]]
        self.names[step.get("as", "")] = self.sender(step["to"]).schedule_messages(messages, at)

    def cancel(self, step: Mapping[str, Any]) -> None:
        self.sender(step["to"]).cancel_scheduled_messages(self.names[step["numbers"]])

    def receiver(self, step: Mapping[str, Any], **named: Any) -> ServiceBusReceiver:
        if "session" in step and step["do"] != "accept":
            return self.names[step["session"]]
        path, mode = step["from"], step.get("mode", "")
        known = self.receivers.get((path, mode))
        if known is not None and not named:
            return known
        if mode == "delete":
            named["receive_mode"] = "receiveanddelete"
        base, _, sub = path.partition("/$")
        if sub:
            named["sub_queue"] = "deadletter"
        topic, _, subscription = base.partition("/Subscriptions/")
        if subscription:
            made = self.client.get_subscription_receiver(topic, subscription, **named)
        else:
            made = self.client.get_queue_receiver(topic, **named)
        if step["do"] != "accept":
            self.receivers[path, mode] = made
        return self.stack.enter_context(made)

    def receive(self, step: Mapping[str, Any]) -> list[Any]:
        count = len(step.get("see", ()))
        receiver = self.receiver(step)
        end = time.monotonic() + (LONG if count else SHORT)
        found: list[Any] = []
        while len(found) < max(count, 1) and (left := end - time.monotonic()) > 0:
            found += receiver.receive_messages(
                max_message_count=max(count, 1) - len(found), max_wait_time=left
            )
        self.names[step.get("as", "")] = [(receiver, one) for one in found]
        return [Seen(one) for one in found]

    def peek(self, step: Mapping[str, Any]) -> list[Any]:
        found = self.receiver(step).peek_messages(max_message_count=20, sequence_number=1)
        return [Seen(one) for one in found]

    def receive_deferred(self, step: Mapping[str, Any]) -> list[Any]:
        receiver = self.receiver(step)
        numbers = [one.sequence_number for _, one in self.names[step["messages"]]]
        found = receiver.receive_deferred_messages(numbers)
        self.names[step.get("as", "")] = [(receiver, one) for one in found]
        return [Seen(one) for one in found]

    # Settlements. Messages that change properties are settled over the protocol alone by other SDKs.

    def settle(self, step: Mapping[str, Any], name: str, **named: Any) -> None:
        if "transaction" in step or "properties" in step:
            raise Impossible("transactions" if "transaction" in step else "properties of a settlement")
        for receiver, message in self.names[step["messages"]]:
            getattr(receiver, name)(message, **named)

    def complete(self, step: Mapping[str, Any]) -> None:
        self.settle(step, "complete_message")

    def abandon(self, step: Mapping[str, Any]) -> None:
        self.settle(step, "abandon_message")

    def defer(self, step: Mapping[str, Any]) -> None:
        self.settle(step, "defer_message")

    def dead_letter(self, step: Mapping[str, Any]) -> None:
        named = {"reason": step.get("reason"), "error_description": step.get("description")}
        self.settle(step, "dead_letter_message", **named)

    def renew(self, step: Mapping[str, Any]) -> None:
        for receiver, message in self.names[step["messages"]]:
            receiver.renew_message_lock(message)

    # Sessions.

    def accept(self, step: Mapping[str, Any]) -> Any:
        session = step.get("session", NEXT_AVAILABLE_SESSION)
        named = {"session_id": session, "max_wait_time": step.get("seconds", LONG)}
        self.names[step["as"]] = receiver = self.receiver(step, **named)
        return receiver.session.session_id

    def get_state(self, step: Mapping[str, Any]) -> str | None:
        state = self.names[step["session"]].session.get_state()
        return None if state is None else state.decode()

    def set_state(self, step: Mapping[str, Any]) -> None:
        self.names[step["session"]].session.set_state(step["state"])

    def renew_session(self, step: Mapping[str, Any]) -> None:
        self.names[step["session"]].session.renew_lock()

    def close(self, step: Mapping[str, Any]) -> None:
        self.names[step["session"]].close()

    # Rules, and administration.

    def add_rule(self, step: Mapping[str, Any]) -> None:
        rule = dict(step["rule"])
        name, action = rule.pop("name"), rule.pop("action", None)
        if "sql" in rule:
            made: Any = SqlRuleFilter(rule["sql"])
        else:
            made = CorrelationRuleFilter(label=rule.get("subject"), properties=rule.get("properties"))
        named = {"action": SqlRuleAction(action)} if action else {}
        self.administration.create_rule(step["topic"], step["subscription"], name, filter=made, **named)

    def remove_rule(self, step: Mapping[str, Any]) -> None:
        self.administration.delete_rule(step["topic"], step["subscription"], step["name"])

    def rules(self, step: Mapping[str, Any]) -> list[str]:
        return sorted(one.name for one in self.administration.list_rules(step["topic"], step["subscription"]))

    create_rule, delete_rule, admin_rules = add_rule, remove_rule, rules

    def create_queue(self, step: Mapping[str, Any]) -> None:
        self.administration.create_queue(step["name"], **options_of(step.get("options", {})))

    def get_queue(self, step: Mapping[str, Any]) -> dict[str, Any]:
        one = self.administration.get_queue(step["name"])
        lock = one.lock_duration.total_seconds() if isinstance(one.lock_duration, timedelta) else None
        return {"lock": lock, "deliveries": one.max_delivery_count, "session": one.requires_session}

    def update_queue(self, step: Mapping[str, Any]) -> None:
        queue = self.administration.get_queue(step["name"])
        for name, value in options_of(step["options"]).items():
            setattr(queue, name, value)
        self.administration.update_queue(queue)

    def delete_queue(self, step: Mapping[str, Any]) -> None:
        self.administration.delete_queue(step["name"])

    def queue_exists(self, step: Mapping[str, Any]) -> bool:
        return step["name"] in [one.name for one in self.administration.list_queues()]

    def create_topic(self, step: Mapping[str, Any]) -> None:
        self.administration.create_topic(step["name"])

    def delete_topic(self, step: Mapping[str, Any]) -> None:
        self.administration.delete_topic(step["name"])

    def create_subscription(self, step: Mapping[str, Any]) -> None:
        self.administration.create_subscription(step["topic"], step["name"])

    def counts(self, step: Mapping[str, Any]) -> dict[str, int | None]:
        one = self.administration.get_queue_runtime_properties(step["name"])
        return {
            "active": one.active_message_count,
            "dead": one.dead_letter_message_count,
            "scheduled": one.scheduled_message_count,
        }


def message_of(form: Mapping[str, Any]) -> ServiceBusMessage:
    """Return a message of the table as the SDK has it."""
    named: dict[str, Any] = {FIELDS[name]: value for name, value in form.items() if name in FIELDS}
    if "ttl" in form:
        named["time_to_live"] = timedelta(seconds=form["ttl"])
    if "scheduled" in form:
        named["scheduled_enqueue_time_utc"] = datetime.now(UTC) + timedelta(seconds=form["scheduled"])
    return ServiceBusMessage(body_of(form), application_properties=form.get("properties"), **named)


def options_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of the table as the SDK has them."""
    made: dict[str, Any] = {}
    if "lock" in options:
        made["lock_duration"] = timedelta(seconds=options["lock"])
    if "deliveries" in options:
        made["max_delivery_count"] = options["deliveries"]
    if "session" in options:
        made["requires_session"] = options["session"]
    return made


def text(value: Any) -> Any:
    """Return bytes as text: this SDK gives back bytes where text was sent."""
    return value.decode() if isinstance(value, bytes) else value


def field(message: Any, name: str) -> Any:
    """Return a field of a message by the table's name."""
    if name in FIELDS:
        return text(getattr(message, FIELDS[name]))
    if name == "properties":
        return {text(key): text(value) for key, value in (message.application_properties or {}).items()}
    if name in ("body", "length"):
        body = b"".join(message.body).decode()
        return len(body) if name == "length" else body
    if name == "ttl":
        return message.time_to_live.total_seconds()
    if name == "state":
        return message.state.name.lower()
    names = {"count": "delivery_count", "number": "sequence_number", "reason": "dead_letter_reason",
             "description": "dead_letter_error_description", "source": "dead_letter_source"}  # fmt: skip
    return getattr(message, names[name])


if __name__ == "__main__":
    main(Fact)
