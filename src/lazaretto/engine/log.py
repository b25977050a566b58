"""The event log, which programs follow, and the audit log of operators' actions."""

from __future__ import annotations

import getpass
import logging
import os
import socket
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from lazaretto.errors import InvalidOption
from lazaretto.model.actors import STORE_DOOR, Actor, NameKind
from lazaretto.model.checks import shown, suggestion, text
from lazaretto.model.clock import to_datetime
from lazaretto.model.fingerprint import shown_plain
from lazaretto.store.records.messages import AuditCriteria, AuditRecord, NewEvent, Notice, QueueRecord
from lazaretto.store.sql.transaction import Transaction

#: Maximum length of a name in the audit log.
LONGEST_ACTOR = 1024


def user_name() -> str:
    """Return the user of this process: its number, where the system has no name for it, as in containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return f"uid {os.getuid()}" if hasattr(os, "getuid") else "unknown"


def actor_name() -> str:
    """Return the default actor for the audit log: the user of this process."""
    return f"{user_name()}@{socket.gethostname()}"


def acting(actor: object) -> str:
    """Return the actor for the audit log: the given name, or the user of this process."""
    if actor is None or (isinstance(actor, str) and not actor):
        return actor_name()
    name = text("actor", actor, LONGEST_ACTOR)
    if not isinstance(actor, Actor):
        return name
    return Actor.at(
        name, actor.origin, actor.makers, by_server=actor.by_server, door=actor.door, kind=actor.kind
    )


#: Every kind of event, and the contents of its detail.
EVENT_KINDS = {
    "queue_created": "A queue was created.",
    "queue_updated": "A queue's options changed. Detail: the names that changed.",
    "queue_deleted": "A queue was deleted with all its messages.",
    "queue_halted": "A poison message halted the queue. Detail: delivery count, cycle, reason.",
    "status_set": "An operator switched an entity on or off. Detail: the status.",
    "queue_disabled": "Consecutive rollbacks switched the queue off. Detail: how many.",
    "queue_resumed": "An operator resumed the queue. Detail: the verdict on the culprit.",
    "session_held": "A poison message holds its session back. Detail: session, mode, reason.",
    "session_released": "A held session continues. Detail: session.",
    "dead_lettered": "A message was dead-lettered. Detail: reason, error type; the subqueue, if unusual.",
    "dropped": "A message was deleted by the disposition drop. Detail: reason, error type.",
    "rejected": "A message was returned to its sender. Detail: reason, the queue it went to.",
    "moved": "A dead letter was moved to another queue. Detail: to, its new sequence number there.",
    "republished": "A dead letter was published to a topic again. Detail: topic, how many copies.",
    "resubmitted": "A dead letter was sent back. Detail: its new sequence number, whether edited.",
    "repair_changed": "A repair entered another phase. Detail: repair, phase, why, counts.",
    "suspects_held": "A worker died holding several messages. Detail: worker, how many of this queue.",
    "killer_found": "A worker died holding this message alone. Detail: worker, deaths charged.",
    "suspect_cleared": "A suspect was tried alone and killed nothing. Detail: deaths it was suspected of.",
    "breaker_opened": "An outage was detected. Detail: fingerprint, error, messages with attempts undone.",
    "breaker_ramping": "A probe was processed: delivery increases step by step. Detail: fingerprint, error.",
    "breaker_closed": "The outage is over. Detail: fingerprint, seconds it took.",
    "breaker_set": "An operator set the breaker. Detail: the verb.",
    "dialog_ended": "Both sides of a dialog have ended. Detail: dialog, services, contract, error, dropped.",
    "reader_idle": "A reader of a service was started and received nothing. Detail: service, handler.",
    "reader_failed": "A reader of a service ended with an error. Detail: service, handler, error.",
    "claim_settled": "A claim was settled. Detail: consumer, number, messages by outcome, seconds.",
    "rows_set_aside": "Rows of a Spark query became dead letters, or wait in the queue. Detail: how many.",
    "origin_reused": "A row failed whose origin another one had before. Detail: before, its number.",
    "claim_revoked": "A claim was released. Detail: consumer, number, why.",
    "topic_created": "A topic was created.",
    "subscription_created": "A subscription was created.",
    "rules_changed": "A subscription's rules changed. Detail: their names.",
    "forward_refused": "A dead letter could not be forwarded; it stays. Detail: to.",
    "filter_failed": "A subscription's rules failed on a message, which it did not get. Detail: error.",
    "purged": "An operator set a dead letter aside; it is deleted in 7 days.",
    "restored": "An operator made a dead letter of a purged one again.",
}


#: Kinds of events that are logged: as warnings, and for information.
_WARNED = {
    "breaker_opened",
    "dropped",
    "filter_failed",
    "forward_refused",
    "killer_found",
    "queue_disabled",
    "queue_halted",
    "rejected",
    "session_held",
    "suspects_held",
}
_INFORMED = {
    "breaker_closed",
    "breaker_ramping",
    "breaker_set",
    "queue_resumed",
    "repair_changed",
    "session_released",
}


class Event(msgspec.Struct, frozen=True):
    """Something that happened, with a position in the log from which programs can continue."""

    position: int
    time: datetime
    kind: str
    queue: str
    sequence_number: int | None
    detail: dict[str, Any]


class AuditEntry(msgspec.Struct, frozen=True):
    """An operator's action: who, when, what, and to which messages.

    `door`: where the actor came in: "http", "amqp", or "store" for a program that has the store itself.
    `address`: from where; empty for such a program. `kind`: what the actor's name is that of: "person",
    "key", "token" or "process".
    """

    position: int
    time: datetime
    actor: str
    action: str
    queue: str
    detail: dict[str, Any]
    door: str = STORE_DOOR
    address: str = ""
    kind: str = NameKind.PROCESS.value


def note(
    tx: Transaction, kind: str, queue: QueueRecord, sequence_number: int | None = None, **detail: Any
) -> None:
    """Write an event."""
    note_all(tx, kind, [(queue, sequence_number, detail)])


def note_all(
    tx: Transaction, kind: str, events: Sequence[tuple[QueueRecord, int | None, dict[str, Any]]]
) -> None:
    """Write several events of one kind, each with its queue, a sequence number and its detail."""
    assert kind in EVENT_KINDS, kind
    encode = msgspec.json.encode
    if kind in _WARNED or kind in _INFORMED:
        for queue, number, detail in events:
            tell_event(tx, kind, queue.path, number, detail)
    tx.history.insert_events(
        kind, [NewEvent(queue.path, number, encode(detail).decode()) for queue, number, detail in events]
    )


def tell_event(
    tx: Transaction,
    kind: str,
    queue: str,
    number: int | None,
    detail: Mapping[str, Any],
    *,
    warn: bool = False,
) -> None:
    """Log an event once the commit is done. `warn`: as a warning, whatever its kind."""
    level = logging.WARNING if warn or kind in _WARNED else logging.INFO
    values = {name: value for name, value in detail.items() if value is not None}
    about = ", ".join(f"{name} {value}".replace("\n", " ") for name, value in values.items())
    which = "" if number is None else f"message {number}: "
    sentence = EVENT_KINDS[kind].partition(" Detail:")[0]
    tell(tx, level, queue, f"{which}{sentence} ({about})", event=kind, sequence_number=number, detail=values)


def tell(tx: Transaction, level: int, queue: str, text: str, stack: str | None = None, **fields: Any) -> None:
    """Log something about a queue once the commit is done. `fields`: the same for programs."""
    tx.tell(Notice(level, queue, f"{queue!r}: {text}", stack, fields))


def audit(tx: Transaction, actor: str, action: str, queue: str, **detail: Any) -> None:
    """Write an entry of the audit log. `detail`: besides, "origin" where the actor has one."""
    audit_all(tx, actor, action, [queue], **detail)


def audit_all(tx: Transaction, actor: str, action: str, queues: Sequence[str], **detail: Any) -> None:
    """Write an entry of the audit log about each of several entities."""
    if isinstance(actor, Actor):
        if actor.origin:
            detail["origin"] = actor.origin
        if actor.door != STORE_DOOR or actor.kind is not NameKind.PROCESS:
            detail[_ACTOR] = {"door": actor.door, "kind": actor.kind.value}
    tx.history.insert_audit(str(actor), action, queues, msgspec.json.encode(detail).decode())


#: The part of a stored detail that says where an actor came in; without it, that was the store.
_ACTOR: Final = "actor"


def detail_of_repair(name: str) -> str:
    """Return how the detail of whatever is done with a repair begins: with the repair's name."""
    return msgspec.json.encode({"repair": name}).decode().removesuffix("}")


def read_events(
    tx: Transaction,
    after: int,
    limit: int,
    kind: str | None = None,
    queue: str | None = None,
    before: int | None = None,
) -> list[Event]:
    """Return events after a position, oldest first; or those `before` one, newest first."""
    if kind is not None and (not isinstance(kind, str) or kind not in EVENT_KINDS):
        raise InvalidOption(f"unknown kind of event {shown(kind)}{suggestion(kind, EVENT_KINDS)}")
    decode = msgspec.json.decode
    if before is None:
        events = tx.history.events(after, limit, kind=kind, queue=queue)
    else:
        events = tx.history.events_before(before, limit, kind=kind, queue=queue)
    return [
        Event(e.position, to_datetime(e.time), e.kind, e.queue, e.sequence_number, decode(e.detail))
        for e in events
    ]


def read_audit(tx: Transaction, criteria: AuditCriteria, limit: int) -> list[AuditEntry]:
    """Return operators' actions, newest first."""
    return [_entry(tx, record) for record in tx.history.audit(criteria, limit)]


def _entry(tx: Transaction, record: AuditRecord) -> AuditEntry:
    detail = _detail(tx, record)
    address = detail.get("origin", "")
    # Before doors were noted, only HTTP noted an address.
    came = detail.pop(_ACTOR, None) or (
        {"door": "http", "kind": NameKind.PERSON.value}
        if address
        else {"door": STORE_DOOR, "kind": NameKind.PROCESS.value}
    )
    return AuditEntry(
        record.position, to_datetime(record.time), record.actor, record.action, record.queue, detail,
        came["door"], address, came["kind"],
    )  # fmt: skip


def _detail(tx: Transaction, entry: AuditRecord) -> dict[str, Any]:
    """Return the detail of an entry, with fingerprints as people see them."""
    detail: dict[str, Any] = msgspec.json.decode(entry.detail)
    if not entry.action.endswith(("merge_causes", "split_cause")):
        return detail
    key = tx.access.fingerprint_key()

    def shown_names(names: Any) -> Any:
        if isinstance(names, dict):
            return {number: shown_names(some) for number, some in names.items()}
        return names and [shown_plain(name, key) for name in names]

    return detail | {name: shown_names(detail[name]) for name in ("fingerprints", "parts") if name in detail}
