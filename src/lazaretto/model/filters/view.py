"""A message as filters and actions see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from lazaretto.model.clock import to_datetime
from lazaretto.model.filters.body import MISSING, LazyBody, Step, as_value, part_of
from lazaretto.model.filters.values import Value
from lazaretto.model.headers import EMPTY_HEADERS, Headers

#: Properties of the system: Service Bus's names and ours, without case and underscores, by the field.
_NAMES = {
    "message_id": ("messageid",), "session_id": ("sessionid",), "subject": ("subject", "label"),
    "correlation_id": ("correlationid",), "to": ("to",), "reply_to": ("replyto",),
    "reply_to_session_id": ("replytosessionid",), "content_type": ("contenttype",),
    "partition_key": ("partitionkey",), "time_to_live": ("timetolive",),
    "scheduled_enqueue_time": ("scheduledenqueuetime", "scheduledenqueuetimeutc"),
    "enqueued_time": ("enqueuedtime", "enqueuedtimeutc"), "size": ("size",), "worker": ("worker",),
    "host": ("host",),
}  # fmt: skip
SYSTEM = {name: field for field, names in _NAMES.items() for name in names}
#: Those that an action may set: all of them text.
SETTABLE = frozenset({
    "message_id", "session_id", "subject", "correlation_id", "to", "reply_to", "reply_to_session_id",
    "content_type", "partition_key",
})  # fmt: skip


#: Those that only a message has that was tried: nothing is known of them while it is sent.
OF_ATTEMPTS = frozenset({"worker", "host"})


def host_of(worker: str) -> str:
    """Return the machine of a worker, whose name is its machine, its process, and a random part."""
    return worker.split(":", 1)[0]


def system_field(name: str) -> str | None:
    """Return the field that a name of a system property stands for."""
    return SYSTEM.get(name.lower().replace("_", ""))


class Property(NamedTuple):
    """A property, as it was written too: `name` is the system's field, or the user's name in lower case.

    `scope` is "sys", "user", or "body" for the part of the body that `path` names.
    """

    scope: str
    name: str
    written: str
    path: tuple[Step, ...] = ()


#: A property of the user whose name is computed: it can be any.
COMPUTED: Final = Property("user", "", "p(…)")


class MessageView:
    """A message's properties, by names without case. `enqueued`: microseconds; `size`: bytes of the body.

    `body` returns the body. It is called once, by the first filter that asks for a part of it. `worker`: who
    tried the message last, where that is known.
    """

    __slots__ = ("_enqueued", "_size", "body", "headers", "message_id", "user", "worker")

    def __init__(
        self,
        headers: Headers = EMPTY_HEADERS,
        message_id: str | None = None,
        *,
        enqueued: int = 0,
        size: int = 0,
        body: Callable[[], bytes | None] | LazyBody | None = None,
        worker: str | None = None,
    ) -> None:
        self.headers = headers
        self.message_id = message_id
        self._enqueued = enqueued
        self._size = size
        self.worker = worker
        self.body = body if isinstance(body, LazyBody) else LazyBody(body)
        self.user: Mapping[str, Any] = {name.lower(): value for name, value in headers.properties.items()}

    def with_headers(self, headers: Headers, message_id: str | None) -> MessageView:
        """Return the message with other headers."""
        return MessageView(
            headers, message_id, enqueued=self._enqueued, size=self._size, body=self.body, worker=self.worker
        )

    def value(self, of: Property) -> Value:
        """Return the value of a property; None: not set, or no such part of the body."""
        return as_value(self.part(of)) if of.scope == "body" else self.get(of.scope, of.name)

    def part(self, of: Property) -> Value:
        """Return the value of a property as it is; MISSING: not there, rather than None."""
        if of.scope == "body":
            return part_of(self.body.value(), of.path)
        if of.scope == "user":
            return self.user.get(of.name, MISSING)
        value = self.system(of.name)
        return MISSING if value is None else value

    def get(self, scope: str, name: str) -> Any:
        """Return a property: of the system by its field, of the user by its name in lower case."""
        return self.system(name) if scope == "sys" else self.user.get(name)

    def system(self, field: str) -> Any:
        """Return a property of the system; None: not set."""
        if field == "message_id":
            return self.message_id
        if field == "size":
            return self._size
        if field == "enqueued_time":
            return to_datetime(self._enqueued)
        if field == "worker":
            return self.worker
        if field == "host":
            return None if self.worker is None else host_of(self.worker)
        value = getattr(self.headers, field)
        if value is None:
            return None
        if field == "time_to_live":
            return value / 1_000_000
        return to_datetime(value) if field == "scheduled_enqueue_time" else value


class Action(NamedTuple):
    """SET (with a value) or REMOVE of a property.

    `source`: the property whose value it takes as it is; `code`: the type in AMQP of a parameter's.
    """

    property: Property
    value: Callable[[MessageView], Value] | None
    source: Property | None = None
    code: int | None = None
