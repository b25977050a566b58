"""What a topic does with a message: each subscription whose rules match gets copies, all in one commit."""

from __future__ import annotations

import collections
import operator
from collections.abc import Sequence

import msgspec

from lazaretto.engine.dispositions import (
    HEADERS_REASON,
    HEADERS_TEXT,
    SESSION_REASON,
    SESSION_TEXT,
    dead_letter,
)
from lazaretto.engine.log import note
from lazaretto.errors import FilterError
from lazaretto.failure import failure_of
from lazaretto.filters.rules import CompiledRules, Copy
from lazaretto.filters.stored import compiled
from lazaretto.filters.view import MessageView
from lazaretto.headers import EMPTY_HEADERS, MAX_HEADERS_SIZE, decode_headers, encode_headers
from lazaretto.keys import sequence_of
from lazaretto.store.contract import Transaction
from lazaretto.store.records import NewCopy, NewMessage, QueueRecord

#: The reason as in Service Bus.
FILTER_REASON = "FilterException"

_PLACE = operator.itemgetter(0)


class Subscribers:
    """A topic's subscriptions, so that a message is shown to few of those that it does not concern.

    A subscription whose one rule is a correlation filter is looked up by one of the values it wants;
    only the others are asked one by one.
    """

    def __init__(self, subscriptions: Sequence[QueueRecord]) -> None:
        self._asked: list[tuple[int, CompiledRules]] = []
        self._wanted: dict[tuple[str, str], dict[object, list[tuple[int, CompiledRules]]]] = {}
        self.records = tuple(subscriptions)
        for place, record in enumerate(self.records):
            rules = compiled(record.rules)
            key = rules.wanted()
            if key is None:
                self._asked.append((place, rules))
            else:
                name, value = key
                self._wanted.setdefault(name, {}).setdefault((type(value), value), []).append((place, rules))

    def concerned(self, view: MessageView) -> list[tuple[QueueRecord, CompiledRules]]:
        """Return the subscriptions that may want a message, in order."""
        found = self._asked
        for name, by_value in self._wanted.items():
            value = view.get(*name)
            known = by_value.get((type(value), value))
            if known:
                found = sorted([*found, *known], key=_PLACE)
        return [(self.records[place], rules) for place, rules in found]


#: The latest topics' subscribers, by the identity of what the store returned.
_known: collections.OrderedDict[int, tuple[tuple[QueueRecord, ...], Subscribers]] = collections.OrderedDict()
_MOST_KNOWN = 64


def _subscribers(tx: Transaction, topic: QueueRecord) -> Subscribers:
    records = tx.subscriptions(topic.queue_id)
    known = _known.get(id(records))
    if known is None or known[0] is not records:
        known = _known[id(records)] = records, Subscribers(records)
        while len(_known) > _MOST_KNOWN:
            _known.popitem(last=False)
    return known[1]


class _Trouble(msgspec.Struct):
    """Why a copy is to be dead-lettered in its subscription; `place`: of it, among those of this commit."""

    place: int
    reason: str
    text: str
    error: FilterError | None = None


class _Delivery:
    """The copies of one commit, by subscription and in order."""

    def __init__(self, tx: Transaction, topic: QueueRecord) -> None:
        self._tx = tx
        self._topic = topic
        self._copies: dict[int, list[NewCopy]] = {}
        self._queues: dict[int, QueueRecord] = {}
        self._troubles: dict[int, list[_Trouble]] = {}

    def add(
        self,
        queue: QueueRecord,
        base: NewCopy,
        session_id: str | None,
        copy: Copy | None,
        error: FilterError | None,
    ) -> None:
        """Add what a subscription gets of a message. `base`: the copy of one that changes nothing."""
        copies = self._copies.setdefault(queue.queue_id, [])
        options = queue.options
        changed = None if copy is None else copy.changed
        self._queues[queue.queue_id] = queue
        plain = not options.requires_session and options.default_time_to_live is None
        if plain and changed is None and error is None:
            copies.append(base)
            return
        headers, message_id = base.headers, base.message_id
        trouble = None if error is None else _Trouble(len(copies), FILTER_REASON, str(error), error)
        if changed is not None:
            encoded = encode_headers(changed.headers)
            if len(encoded) > MAX_HEADERS_SIZE:
                # As it was before the action, so that it can be kept at all.
                trouble = _Trouble(len(copies), HEADERS_REASON, HEADERS_TEXT)
            else:
                headers, session_id = encoded, changed.headers.session_id
                message_id = changed.message_id or message_id
        if options.requires_session and session_id is None and trouble is None:
            trouble = _Trouble(len(copies), SESSION_REASON, SESSION_TEXT)
        if trouble is not None:
            self._troubles.setdefault(queue.queue_id, []).append(trouble)
        copies.append(
            msgspec.structs.replace(
                base,
                message_id=message_id,
                headers=headers,
                session_id=session_id if options.requires_session else None,
                expires=_sooner(base.expires, self._tx.now, options.default_time_to_live),
            )
        )

    def commit(self) -> None:
        """Insert all of them, and set those aside that cannot be delivered."""
        same: dict[tuple[int, ...], int] = {}
        for queue_id, copies in self._copies.items():
            queue = self._queues[queue_id]
            # Most subscriptions get the very same: the store repeats that by itself.
            which = tuple(map(id, copies))
            if which in same:
                self._tx.repeat_copies(queue, same[which], len(copies))
                continue
            keys = self._tx.insert_copies(queue, copies)
            same[which] = keys[0]
            for trouble in self._troubles.get(queue_id, ()):
                row = self._tx.row(keys[trouble.place])
                assert row is not None
                failure = None if trouble.error is None else failure_of(trouble.error)
                dead_letter(self._tx, queue, row, trouble.reason, trouble.text, failure)


def _sooner(expires: int | None, now: int, seconds: float | None) -> int | None:
    """Return the earlier of two ends of a life: one that is known, and one so many seconds from now."""
    if seconds is None:
        return expires
    other = now + round(seconds * 1_000_000)
    return other if expires is None else min(expires, other)


def publish(tx: Transaction, topic: QueueRecord, messages: Sequence[NewMessage]) -> list[int]:
    """Give each subscription its copies; return the messages' sequence numbers in the topic."""
    subscribers = _subscribers(tx, topic)
    delivery = _Delivery(tx, topic)
    numbers: list[int] = []
    unmatched = key = 0
    for message in messages:
        key = tx.take_key(topic.queue_id)
        numbers.append(sequence_of(key))
        unmatched += not _copy(tx, topic, subscribers, message, numbers[-1], delivery)
    tx.keep_sequence(key)
    if unmatched:
        tx.count_discarded(topic.queue_id, dropped=unmatched)
    delivery.commit()
    return numbers


def _copy(
    tx: Transaction,
    topic: QueueRecord,
    subscribers: Subscribers,
    message: NewMessage,
    number: int,
    delivery: _Delivery,
) -> bool:
    """Add a message's copies to a delivery; return whether there are any."""
    headers = decode_headers(message.headers) if message.headers else EMPTY_HEADERS
    message_id = message.message_id or tx.new_message_id()
    view = MessageView(headers, message_id, enqueued=tx.now, size=len(message.body))
    wanted: list[tuple[QueueRecord, Copy | None, FilterError | None]] = []
    for queue, rules in subscribers.concerned(view):
        try:
            wanted += [(queue, copy, None) for copy in rules.copies(view)]
        except FilterError as error:
            if queue.options.dead_letter_on_filter_errors:
                wanted.append((queue, None, error))
            else:
                note(tx, "filter_failed", queue, number, error=str(error))
    # One body for all of them, however many there are.
    body_id = tx.insert_body(message.body) if len(wanted) > 1 else None
    life = None if message.time_to_live is None else tx.now + message.time_to_live
    base = NewCopy(
        message.body if body_id is None else None, body_id, message_id, None,
        _sooner(life, tx.now, topic.options.default_time_to_live), message.headers, number,
    )  # fmt: skip
    for queue, copied, failed in wanted:
        delivery.add(queue, base, message.session_id, copied, failed)
    return bool(wanted)
