"""Sends dead letters back to their queue: the rows of it, and the operation that resubmits them.

Letters of a session that is received as one unit are indivisible: they go in one commit.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from lazaretto.engine.command import OfLetters
from lazaretto.engine.entities.status import refuse_sending
from lazaretto.engine.four_eyes import count_letters
from lazaretto.engine.log import audit, note_all
from lazaretto.engine.messages.prepare import check_size, prepare
from lazaretto.engine.outcome.dead_letter_operations import (
    Skipped,
    find_obstacle,
    holder,
    letter_of,
    messages_of,
    name_numbers,
)
from lazaretto.engine.outcome.session_holds import HeldRecord, holding, release_sessions
from lazaretto.engine.queue_hooks import hooks_of
from lazaretto.engine.routing.deliver import pass_on
from lazaretto.engine.routing.forwards import forwards
from lazaretto.errors import InvalidMessage, LazarettoError, NotAllowed
from lazaretto.model.entities import EntityKind, EntityPath, Subqueue
from lazaretto.model.headers import decode_headers, encode_headers
from lazaretto.model.keys import dead_key, lower_bound, main_key, sequence_of
from lazaretto.model.messages import DeadLetter, Message, sent_columns
from lazaretto.model.partitions import chosen_key
from lazaretto.store.records.messages import (
    FRESH,
    READY,
    SCHEDULED,
    MessageRow,
    NewMessage,
    QueueRecord,
)
from lazaretto.store.records.repairs import DeadLetterRecord
from lazaretto.store.sql.transaction import Transaction

_replace = msgspec.structs.replace

#: Returns what to send instead of a dead letter, or None: as it is. Raises LazarettoError to refuse it.
Prepare = Callable[[MessageRow, DeadLetterRecord], NewMessage | None]

#: Returns the message to send instead of a dead letter, or None to send it back as it is.
EditFunction = Callable[[DeadLetter], Message | None]
#: What was made of dead letters before, by sequence number: what to send, None, or why one is refused.
EditedLetters = Mapping[int, NewMessage | str | None]


@dataclasses.dataclass(slots=True)
class SentBack:
    """Outcomes of dead letters, by their keys in the queue itself.

    `sent`: the new keys. `skipped`: why they stay. `rows`: the dead letters as they were. `held`: how those
    that returned to their places had held their sessions. `edited`: those that were edited. `rewritten`:
    those whose headers changed. `forwarded`: the keys that they have where the queue forwards to. `full`: why
    nothing more can be sent now; what follows was not looked at.
    """

    sent: dict[int, int] = dataclasses.field(default_factory=dict)
    skipped: dict[int, str] = dataclasses.field(default_factory=dict)
    rows: dict[int, MessageRow] = dataclasses.field(default_factory=dict)
    held: dict[int, HeldRecord] = dataclasses.field(default_factory=dict)
    edited: set[int] = dataclasses.field(default_factory=set)
    rewritten: set[int] = dataclasses.field(default_factory=set)
    forwarded: dict[int, int] = dataclasses.field(default_factory=dict)
    full: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class ResubmitReport:
    """Resubmitted dead letters by old and new sequence number; and those skipped, and why."""

    resubmitted: dict[int, int]
    skipped: list[Skipped]


def send_back(
    tx: Transaction,
    queue: QueueRecord,
    subqueue: Subqueue,
    keys: Sequence[int],
    prepare: Prepare | None = None,
    until: int | None = None,
) -> SentBack:
    """Send dead letters back, those that can be; what cannot be sent stays as it is.

    `until`: letters that were set aside later are skipped. Each is given a new number in the order of `keys`,
    except that one for which its session waits returns to its place.
    """
    rows = tx.rows([dead_key(key, subqueue) for key in keys])
    records = tx.history.some_dead_letters(keys)
    holds = holding(tx, queue, {main_key(row.key): row for row in rows.values()})
    reviver = Reviver(tx, queue)
    result = SentBack()
    plain: dict[int, MessageRow] = {}
    replaced: list[MessageRow] = []
    instead: list[tuple[MessageRow, bytes]] = []
    for key in keys:
        row, record = rows.get(dead_key(key, subqueue)), records.get(key)
        why = find_obstacle(row, record, until)
        if why is not None:
            result.skipped[key] = why
            continue
        assert row is not None
        assert record is not None
        try:
            edited = None if prepare is None else prepare(row, record)
            live = reviver.live(row, edited)
            session_id = decode_headers(row.headers).session_id if key in holds else None
            in_place = session_id is not None and live.session_id == session_id
            if in_place and live.state == SCHEDULED:
                raise NotAllowed("it cannot be scheduled, because its session waits for it")
        except LazarettoError as error:
            result.skipped[key] = str(error)
            continue
        new_key = result.sent[key] = key if in_place else _new_key(tx, queue, row, live)
        result.rows[key] = row
        if live.headers is not row.headers:
            result.rewritten.add(key)
        if in_place:
            live = _back_in_place(live, row)
            result.held[key] = holds[key]
        if edited is None:
            plain[new_key] = live
        else:
            result.edited.add(key)
            replaced.append(row)
            instead.append((_replace(live, key=new_key, body_id=None), edited.body))
    if replaced:
        tx.replace_messages(replaced, instead)
    if plain:
        tx.save_rows(plain)
    if result.sent:
        tx.history.send_dead_letters(result.sent, "resubmitted")
        release_sessions(tx, list(result.sent))
        if forwards(queue):
            _forward(tx, queue, result)
    return result


def _forward(tx: Transaction, queue: QueueRecord, result: SentBack) -> None:
    for key, new_key in result.sent.items():
        row = tx.row(new_key)
        if row is not None and row.state != SCHEDULED:
            at_rest = pass_on(tx, queue, row)
            if at_rest is not None:
                result.forwarded[key] = at_rest
                result.rewritten.add(key)


def _new_key(tx: Transaction, queue: QueueRecord, row: MessageRow, live: MessageRow) -> int:
    """Return a key at the end of the queue, or of the partition that a message belongs to."""
    if queue.partitions > 1:
        # Not always where it was: the queue may have got more partitions since.
        headers = decode_headers(live.headers)
        key = chosen_key(headers.session_id, headers.partition_key)
        if key is not None:
            return tx.sequences.take_key(queue, key)
    return tx.sequences.take_key_beside(row.key)


class Reviver:
    """Makes active messages of dead letters of one queue."""

    def __init__(self, tx: Transaction, queue: QueueRecord) -> None:
        self._tx, self._queue = tx, queue
        self._hooks = hooks_of(queue)
        # A copy lives no longer than its topic and subscription allow, however it arrives.
        topic = None if queue.topic_id is None else tx.queues.by_id(queue.topic_id)
        defaults = [e.options.default_time_to_live for e in (queue, topic) if e is not None]
        self._lives = [round(seconds * 1_000_000) for seconds in defaults if seconds is not None]

    def live(self, row: MessageRow, edited: NewMessage | None) -> MessageRow:
        """Return a dead letter as an active message again, or its edited replacement."""
        tx, queue = self._tx, self._queue
        headers = decode_headers(row.headers)
        message_id, encoded, ttl = row.message_id, row.headers, headers.time_to_live
        if headers.hops:
            # It may be forwarded from the start again.
            headers = _replace(headers, hops=0)
            encoded = encode_headers(headers)
        if edited is not None:
            ttl = edited.time_to_live
            headers = _replace(decode_headers(edited.headers), edit_of=row.message_id)
            encoded = encode_headers(headers)
            message_id = edited.message_id or row.message_id
            if message_id == row.message_id:
                message_id = f"{row.message_id}.{row.generation + 1}"
        again = self._hooks.headers_again(tx, row, headers)
        if again is not headers:
            headers, encoded = again, encode_headers(again)
        if queue.options.requires_session and headers.session_id is None:
            raise InvalidMessage(f"queue {queue.path!r} requires sessions: a message needs a session_id")
        lives = self._lives if ttl is None else [*self._lives, ttl]
        begins = 0 if edited is None else edited.begins
        expires = max(tx.now, begins) + min(lives) if lives else None
        later = edited is not None and edited.scheduled is not None and edited.scheduled > tx.now
        times = (expires, edited.scheduled if later and edited is not None else None)
        return _replace(
            row,
            state=SCHEDULED if later else FRESH,
            due=min((time for time in times if time is not None), default=None),
            expires=expires,
            enqueued=tx.now,
            message_id=message_id,
            session_id=headers.session_id if queue.options.requires_session else None,
            delivery_count=0,
            cycle_attempts=0,
            cycle=0,
            deferred=0,
            generation=row.generation + 1,
            enqueued_sequence_number=sequence_of(row.key),
            resubmitted_from=main_key(row.key),
            headers=encoded,
            **sent_columns(edited or row),
        )


def _back_in_place(live: MessageRow, dead: MessageRow) -> MessageRow:
    """Return a message to its place in its session, which waits behind it."""
    return _replace(
        live,
        state=READY,
        enqueued_sequence_number=dead.enqueued_sequence_number,
        resubmitted_from=dead.resubmitted_from,
    )


class Resubmit(OfLetters[ResubmitReport], frozen=True, kw_only=True):
    """Send dead letters back to their queue."""

    action = "resubmit"

    def run(self, tx: Transaction, actor: str) -> ResubmitReport:
        return resubmit(tx, self.place, self.numbers, actor)

    def sends_to(self) -> str:
        return self.path


def resubmit(
    tx: Transaction,
    path: EntityPath,
    numbers: Sequence[int],
    actor: str,
    edit: EditFunction | EditedLetters | None = None,
    detail: Mapping[str, Any] | None = None,
) -> ResubmitReport:
    """Resubmit dead letters to the queue they came from, in one commit.

    A message keeps its id and begins a new generation: its cycle counters restart, its lifetime totals
    continue. An edited message gets a new id. A dead letter that cannot be resubmitted stays where it is.
    """
    queue = holder(tx, path)
    refuse_sending(queue)
    keys = [lower_bound(queue.queue_id) + number for number in dict.fromkeys(numbers)]
    prepared = None if edit is None else functools.partial(_edited, tx, queue, edit)
    result = send_back(tx, queue, path.subqueue, keys, prepared)
    sent = {sequence_of(old): sequence_of(new) for old, new in result.sent.items()}
    skipped = [Skipped(sequence_of(key), why) for key, why in result.skipped.items()]
    count_letters(tx, actor, len(sent), "resubmit")
    if sent:
        edited = {sequence_of(key) for key in result.edited}
        events = [(old, {"new_sequence_number": new, "edited": old in edited}) for old, new in sent.items()]
        note_all(tx, "resubmitted", [(queue, *event) for event in events])
        audit(tx, actor, "resubmit", queue.path, **name_numbers(sent), **(detail or {}))
    return ResubmitReport(sent, skipped)


def _edited(
    tx: Transaction,
    queue: QueueRecord,
    edit: EditFunction | EditedLetters,
    row: MessageRow,
    record: DeadLetterRecord,
) -> NewMessage | None:
    """Return the edited message, or None to resubmit the dead letter unchanged."""
    if isinstance(edit, Mapping):
        new = edit.get(sequence_of(record.key), "it was not there when the edit was made")
        if isinstance(new, str):
            raise InvalidMessage(new)
    else:
        try:
            edited = edit(letter_of(tx, queue, record, messages_of(tx, [record]).get(record.key)))
        except LazarettoError:
            raise
        except Exception as error:
            raise InvalidMessage(f"the edit failed: {type(error).__name__}: {error}") from error
        new = None if edited is None else prepare(edited)
    if new is None:
        return None
    check_size(new, queue.options.max_message_size)
    return new


#: The most messages of a unit.
MOST_IN_UNIT = 100_000
#: Letters whose sessions are looked up at once.
_PAGE = 10_000


def takes_units(tx: Transaction, queue: QueueRecord) -> bool:
    """Return whether what goes to an entity can come to a queue whose sessions are units."""
    ahead, seen = [queue], {queue.queue_id}
    while ahead:
        entity = ahead.pop()
        following: Sequence[QueueRecord] = ()
        if entity.kind is EntityKind.TOPIC:
            following = tx.topics.subscriptions(entity.queue_id)
        elif forwards(entity):
            target = tx.queues.by_path((entity.options.forward_to or "").lower())
            following = [] if target is None else [target]
        elif entity.options.whole_sessions:
            return True
        ahead += [one for one in following if one.queue_id not in seen]
        seen.update(one.queue_id for one in following)
    return False


def goes_to_units(tx: Transaction, path: EntityPath) -> bool:
    """Return the same for the entity at a path, if there is one."""
    queue = tx.queues.by_path(path.key)
    return queue is not None and takes_units(tx, queue)


def sessions_of(tx: Transaction, keys: Iterable[int]) -> dict[int, str | None]:
    """Return the session ids of messages, by their keys; those that are gone are left out."""
    headers = tx.repairs.headers(list(keys))
    return {key: decode_headers(encoded).session_id for key, encoded in headers.items()}


def portions(
    tx: Transaction,
    path: EntityPath,
    target: EntityPath,
    numbers: Sequence[int],
    most: int,
    edited: Mapping[int, str | None] | None = None,
) -> list[Sequence[int]]:
    """Return numbers of dead letters by the commit in which they go to a target, so many in each.

    The letters of a session that is one unit there are in one of them, however many they are. `edited`: the
    sessions of letters, by number, that an edit changes.
    """
    changed = edited or {}
    queue, to = holder(tx, path), tx.queues.by_path(target.key)
    if to is None or len(numbers) <= most or not takes_units(tx, to):
        return [numbers[start : start + most] for start in range(0, len(numbers), most)]
    first = lower_bound(queue.queue_id)
    units: dict[object, list[int]] = {}
    for start in range(0, len(numbers), _PAGE):
        keys = {number: dead_key(first + number, path.subqueue) for number in numbers[start : start + _PAGE]}
        sessions = sessions_of(tx, keys.values())
        for number, key in keys.items():
            # A letter without a session is a unit of its own.
            units.setdefault(changed.get(number, sessions.get(key)) or number, []).append(number)
    return list(_filled(units.values(), most))


def _filled(units: Iterable[list[int]], most: int) -> Iterator[list[int]]:
    portion: list[int] = []
    for unit in units:
        if portion and len(portion) + len(unit) > most:
            yield portion
            portion = []
        portion += unit
    if portion:
        yield portion
