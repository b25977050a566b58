"""Moves dead letters to another queue, or republishes them to a topic."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from lazaretto.engine.command import OfLetters
from lazaretto.engine.entities.queues import require_queue
from lazaretto.engine.entities.status import refuse_sending
from lazaretto.engine.entities.topics import require_topic
from lazaretto.engine.four_eyes import count_letters
from lazaretto.engine.log import audit, note_all
from lazaretto.engine.outcome.dead_letter_operations import Skipped, find_obstacle, name_numbers
from lazaretto.engine.outcome.send_back import Prepare, SentBack
from lazaretto.engine.outcome.session_holds import release_sessions
from lazaretto.engine.queue_admission import DISABLED_REASON, FULL_REASON, NOT_FOUND_REASON, admission_of
from lazaretto.engine.routing.deliver import finish, resolve, revived
from lazaretto.engine.routing.router import Router
from lazaretto.errors import LazarettoError, NotAllowed
from lazaretto.model.entities import SYSTEM_DEAD_LETTER_QUEUE, EntityKind, EntityPath, Subqueue
from lazaretto.model.grants import Permission
from lazaretto.model.headers import (
    DEAD_LETTER_DESCRIPTION,
    DEAD_LETTER_REASON,
    MAX_HEADERS_SIZE,
    decode_headers,
    encode_headers,
)
from lazaretto.model.keys import dead_key, lower_bound, main_key, sequence_of
from lazaretto.model.messages import sent_columns
from lazaretto.model.paths import split_subscription
from lazaretto.store.records.messages import MessageRow, NewMessage, QueueRecord, RoutedMessage
from lazaretto.store.records.repairs import DeadLetterRecord
from lazaretto.store.sql.transaction import Transaction

_replace = msgspec.structs.replace

#: Why a queue takes nothing at present, whatever the message is.
_PASSING = (FULL_REASON, DISABLED_REASON, NOT_FOUND_REASON)


@dataclasses.dataclass(frozen=True, slots=True)
class MoveReport:
    """Which dead letters were moved to another queue, and which were not, and why.

    `moved`: the new sequence number by the dead letter's number; None if the target queue forwards and could
    not deliver the message.
    """

    moved: dict[int, int | None]
    skipped: list[Skipped]


@dataclasses.dataclass(frozen=True, slots=True)
class RepublishReport:
    """Which dead letters were republished to a topic, and which were not, and why.

    `published`: the number of copies by the dead letter's number. `subscriptions`: the number of copies that
    each subscription gets, by its path.
    """

    topic: str
    published: dict[int, int]
    subscriptions: dict[str, int]
    skipped: list[Skipped]

    @property
    def copies(self) -> int:
        """Number of copies in all subscriptions together."""
        return sum(self.subscriptions.values())

    def add(self, other: RepublishReport) -> None:
        """Add the report on another part of the dead letters."""
        self.published.update(other.published)
        self.skipped.extend(other.skipped)
        for path, count in other.subscriptions.items():
            self.subscriptions[path] = self.subscriptions.get(path, 0) + count


class MoveDeadLetters(OfLetters[MoveReport], frozen=True, kw_only=True):
    """Move dead letters to another queue."""

    action = "move"
    to: str

    def run(self, tx: Transaction, actor: str) -> MoveReport:
        return move_dead_letters(tx, self.place, self.numbers, EntityPath.parse(self.to), actor)

    def needs(self) -> list[tuple[Permission, str | None]]:
        return [(self.permission, self.path), (Permission.OPERATE, self.to)]

    def sends_to(self) -> str:
        return self.to


def move_dead_letters(
    tx: Transaction,
    path: EntityPath,
    numbers: Sequence[int],
    to: EntityPath,
    actor: str,
    detail: Mapping[str, Any] | None = None,
) -> MoveReport:
    """Move dead letters to another queue as new messages, in one commit.

    Each message keeps its id, properties and body, leads to its history, and records where it came from and
    why. A dead letter that the queue cannot take stays where it is. None is dropped as a duplicate.
    """
    source, target = require_queue(tx, path), check_target(tx, path, to)
    keys = [lower_bound(source.queue_id) + number for number in dict.fromkeys(numbers)]
    result = move_letters(tx, source, path, target, keys)
    report = MoveReport({}, [Skipped(sequence_of(key), why) for key, why in result.skipped.items()])
    count_letters(tx, actor, len(result.rows), "move")
    if result.rows:
        for key in result.rows:
            new = result.sent.get(key)
            report.moved[sequence_of(key)] = None if new is None else sequence_of(new)
        details = (
            (old, {"to": target.path, "new_sequence_number": new}) for old, new in report.moved.items()
        )
        note_all(tx, "moved", [(source, *one) for one in details])
        audit(tx, actor, "move", source.path, to=target.path, **name_numbers(report.moved), **(detail or {}))
    return report


def move_letters(
    tx: Transaction,
    source: QueueRecord,
    path: EntityPath,
    target: QueueRecord,
    keys: Sequence[int],
    prepare: Prepare | None = None,
    until: int | None = None,
    *,
    stops_if_full: bool = False,
) -> SentBack:
    """Move dead letters to a queue, those that it can take; what it cannot take stays as it is.

    `prepare`, `until`: as `send_back` has them. `sent` has no key of one that the queue could not deliver on.
    """
    delivery, result = Router(tx), SentBack()
    for row, record in _letters(tx, source, path, keys, result.skipped, until):
        key = main_key(row.key)
        try:
            edited = None if prepare is None else prepare(row, record)
        except LazarettoError as error:
            result.skipped[key] = str(error)
            continue
        routed = revived(tx, row)
        if edited is not None:
            routed = _edited(tx, routed, edited, row)
            result.edited.add(key)
        routed = _with_reason(routed, record, source)
        trouble = delivery.find_obstacle(target.path, routed)
        if trouble is None and target.options.requires_session and routed.session_id is None:
            why = f"Queue {target.path!r} requires sessions, and the message has no session id."
        elif trouble is None:
            delivery.admit(target, routed)
            result.rows[key] = row
            continue
        elif stops_if_full and trouble.reason in _PASSING:
            result.full = trouble.text
            result.edited.discard(key)
            break
        else:
            why = trouble.text
        result.skipped[key] = why
        result.edited.discard(key)
    _go(tx, delivery, list(result.rows.values()))
    if result.rows:
        went = {key: delivery.rested.get(key) for key in result.rows}
        result.sent = {key: new for key, new in went.items() if new is not None}
        result.rewritten = set(went)
        tx.history.send_dead_letters(went, "moved")
        release_sessions(tx, list(went))
    return result


def _edited(tx: Transaction, routed: RoutedMessage, new: NewMessage, row: MessageRow) -> RoutedMessage:
    """Return a letter on its way with what an edit has made of it."""
    headers = _replace(decode_headers(new.headers), edit_of=row.message_id)
    message_id = new.message_id or row.message_id
    return _replace(
        routed,
        body=new.body,
        body_id=None,
        size=len(new.body),
        message_id=f"{row.message_id}.{row.generation + 1}" if message_id == row.message_id else message_id,
        session_id=headers.session_id,
        partition_key=headers.partition_key,
        expires=new.end(tx.now, new.time_to_live),
        headers=encode_headers(headers),
        **sent_columns(new),
    )


class Republish(OfLetters[RepublishReport], frozen=True, kw_only=True):
    """Publish dead letters to a topic again; null: that of their subscription."""

    action = "republish"
    topic: str | None = None

    def run(self, tx: Transaction, actor: str) -> RepublishReport:
        topic = None if self.topic is None else EntityPath.parse(self.topic)
        return republish(tx, self.place, self.numbers, topic, actor)

    def needs(self) -> list[tuple[Permission, str | None]]:
        return [(self.permission, self.path), (Permission.OPERATE, self.sends_to())]

    def sends_to(self) -> str:
        of = split_subscription(EntityPath.parse(self.path))
        return self.topic if self.topic is not None else self.path if of is None else of[0]


def republish(
    tx: Transaction,
    path: EntityPath,
    numbers: Sequence[int],
    to: EntityPath | None,
    actor: str,
    detail: Mapping[str, Any] | None = None,
) -> RepublishReport:
    """Republish dead letters to a topic: each goes to every subscription whose rules match it.

    Runs in one commit. A dead letter that no subscription matches, or that the topic cannot take, stays where
    it is.
    """
    source, topic = require_queue(tx, path), find_topic(tx, path, to)
    refuse_sending(topic)
    delivery, report = Router(tx), RepublishReport(topic.path, {}, {}, [])
    rows = []
    for row, routed in _published(tx, source, topic, path, numbers, delivery, report):
        key = tx.sequences.take_key(topic)
        tx.sequences.keep(key)
        delivery.admit(topic, _replace(routed, origin=sequence_of(key)))
        rows.append(row)
    _go(tx, delivery, rows)
    count_letters(tx, actor, len(rows), "republish")
    if rows:
        resolve(tx, [main_key(row.key) for row in rows], "republished")
        details = ((n, {"topic": topic.path, "copies": copies}) for n, copies in report.published.items())
        note_all(tx, "republished", [(source, *one) for one in details])
        named = name_numbers(report.published)
        audit(tx, actor, "republish", source.path, topic=topic.path, **named, **(detail or {}))
    return report


def count_republished(
    tx: Transaction, path: EntityPath, numbers: Sequence[int], to: EntityPath | None
) -> RepublishReport:
    """Return what would be published and where, without changing anything."""
    source, topic = require_queue(tx, path), find_topic(tx, path, to)
    refuse_sending(topic)
    report = RepublishReport(topic.path, {}, {}, [])
    for _ in _published(tx, source, topic, path, numbers, Router(tx), report):
        pass
    return report


def check_target(tx: Transaction, path: EntityPath, to: EntityPath) -> QueueRecord:
    """Return the queue to move dead letters to. Raises an error if it cannot take them."""
    target = require_queue(tx, to)
    refuse_sending(target)
    admission_of(target).check_access(target)
    if to.subqueue is not Subqueue.MAIN:
        raise NotAllowed(f"nothing can be moved to {str(to)!r}; name the queue itself")
    if target.kind is EntityKind.TOPIC:
        raise NotAllowed(f"{target.path!r} is a topic: use republish, which counts the copies first")
    if target.kind is EntityKind.SUBSCRIPTION and to.key != path.key:
        raise NotAllowed(f"nothing can be moved to the subscription {target.path!r} of a topic; name a queue")
    if to.key == path.key:
        raise NotAllowed(f"dead letters of {target.path!r} cannot be moved to it: use resubmit")
    if to.key == SYSTEM_DEAD_LETTER_QUEUE:
        raise NotAllowed(f"{SYSTEM_DEAD_LETTER_QUEUE} holds rejected messages; nothing can be moved to it")
    return target


def find_topic(tx: Transaction, path: EntityPath, to: EntityPath | None) -> QueueRecord:
    """Return the topic that is named, or the one that the dead letters came from."""
    if to is not None:
        return require_topic(tx, to)
    source = require_queue(tx, path)
    topic = None if source.topic_id is None else tx.queues.by_id(source.topic_id)
    if topic is None:
        raise NotAllowed(f"{source.path!r} is not a subscription: name the topic for its dead letters")
    return topic


def _letters(
    tx: Transaction,
    source: QueueRecord,
    path: EntityPath,
    keys: Sequence[int],
    skipped: dict[int, str],
    until: int | None = None,
) -> Iterator[tuple[MessageRow, DeadLetterRecord]]:
    """Yield the dead letters that can be moved; report the others, by key, with the reason."""
    rows = tx.rows([dead_key(key, path.subqueue) for key in keys])
    records = tx.history.some_dead_letters(keys)
    for key in keys:
        row, record = rows.get(dead_key(key, path.subqueue)), records.get(key)
        why = find_obstacle(row, record, until) or admission_of(source).keeps_dead_letters
        if why is not None:
            skipped[key] = why
            continue
        assert row is not None
        assert record is not None
        yield row, record


def _published(
    tx: Transaction,
    source: QueueRecord,
    topic: QueueRecord,
    path: EntityPath,
    numbers: Sequence[int],
    delivery: Router,
    report: RepublishReport,
) -> Iterator[tuple[MessageRow, RoutedMessage]]:
    """Yield messages that a topic takes; report the copies, and the messages it does not take."""
    keys = [lower_bound(source.queue_id) + number for number in dict.fromkeys(numbers)]
    skipped: dict[int, str] = {}
    for row, _ in _letters(tx, source, path, keys, skipped):
        routed = revived(tx, row)
        trouble = delivery.find_obstacle(topic.path, routed)
        if trouble is not None:
            skipped[main_key(row.key)] = trouble.text
            continue
        counts = Counter(queue.path for queue in delivery.recipients(topic, routed))
        report.published[sequence_of(row.key)] = counts.total()
        for name, count in counts.items():
            report.subscriptions[name] = report.subscriptions.get(name, 0) + count
        yield row, routed
    report.skipped.extend(Skipped(sequence_of(key), why) for key, why in skipped.items())


def _with_reason(routed: RoutedMessage, record: DeadLetterRecord, source: QueueRecord) -> RoutedMessage:
    """Return the message with its source entity and reason added, if its headers have room."""
    headers = decode_headers(routed.headers)
    why = {DEAD_LETTER_REASON: record.reason, DEAD_LETTER_DESCRIPTION: record.description}
    properties = {**headers.properties, **{name: text for name, text in why.items() if text is not None}}
    for changes in ({"properties": properties}, {}):
        encoded = encode_headers(_replace(headers, dead_letter_source=source.path, **changes))
        if len(encoded) <= MAX_HEADERS_SIZE:
            return _replace(routed, headers=encoded)
    return routed


def _go(tx: Transaction, delivery: Router, rows: Sequence[MessageRow]) -> None:
    """Store routed messages in their new places, and remove them from the old ones."""
    tx.delete_messages([row.key for row in rows])
    finish(tx, delivery)
    # Bodies stored separately are now used in the new places.
    tx.bodies.delete([row.body_id for row in rows if row.body_id is not None])
