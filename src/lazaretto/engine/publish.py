"""What a topic does with a message: each subscription whose rules match gets copies, all in one commit."""

from __future__ import annotations

import collections
from collections.abc import Sequence

import msgspec

from lazaretto.engine.dispositions import dead_letter
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

#: Reasons and texts as in Service Bus.
FILTER_REASON = "FilterException"
HEADERS_REASON = "HeaderSizeExceeded"
HEADERS_TEXT = "The size quota for this stream has been exceeded."
SESSION_REASON = "Session ID is null."
SESSION_TEXT = "Session enabled entity doesn't allow a message whose session identifier is null."


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
        found = list(self._asked)
        for name, by_value in self._wanted.items():
            value = view.get(*name)
            found += by_value.get((type(value), value), ())
        found.sort(key=lambda pair: pair[0])
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


class _Waiting(msgspec.Struct):
    """A copy on its way: its subscription, and why it is to be dead-lettered there, if it is."""

    queue: QueueRecord
    copy: NewCopy
    reason: str | None = None
    text: str | None = None
    error: FilterError | None = None


def publish(tx: Transaction, topic: QueueRecord, messages: Sequence[NewMessage]) -> list[int]:
    """Give each subscription its copies; return the messages' sequence numbers in the topic."""
    subscribers = _subscribers(tx, topic)
    numbers: list[int] = []
    waiting: list[_Waiting] = []
    unmatched = key = 0
    for message in messages:
        key = tx.take_key(topic.queue_id)
        numbers.append(sequence_of(key))
        copies = _copies(tx, topic, subscribers, message, numbers[-1])
        waiting += copies
        unmatched += not copies
    tx.keep_sequence(key)
    if unmatched:
        tx.count_discarded(topic.queue_id, dropped=unmatched)
    _deliver(tx, waiting)
    return numbers


def _copies(
    tx: Transaction, topic: QueueRecord, subscribers: Subscribers, message: NewMessage, number: int
) -> list[_Waiting]:
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
    base = NewCopy(
        message.body if body_id is None else None, body_id, message_id, message.session_id, None,
        message.headers, number,
    )  # fmt: skip
    return [_waiting(tx, topic, queue, message, base, copy, error) for queue, copy, error in wanted]


def _waiting(
    tx: Transaction,
    topic: QueueRecord,
    queue: QueueRecord,
    message: NewMessage,
    base: NewCopy,
    copy: Copy | None,
    error: FilterError | None,
) -> _Waiting:
    """Return a copy as the subscription gets it, with what stands against it."""
    session_id, headers, message_id = base.session_id, base.headers, base.message_id
    reason = text = None
    if error is not None:
        reason, text = FILTER_REASON, str(error)
    if copy is not None and copy.changed is not None:
        encoded = encode_headers(copy.changed.headers)
        if len(encoded) > MAX_HEADERS_SIZE:
            # As it was before the action, so that it can be kept at all.
            reason, text = HEADERS_REASON, HEADERS_TEXT
        else:
            headers, session_id = encoded, copy.changed.headers.session_id
            message_id = copy.changed.message_id or message_id
    sessions = queue.options.requires_session
    if sessions and session_id is None and reason is None:
        reason, text = SESSION_REASON, SESSION_TEXT
    finished = msgspec.structs.replace(
        base,
        message_id=message_id,
        headers=headers,
        session_id=session_id if sessions else None,
        expires=_expiry(tx, message, topic, queue),
    )
    return _Waiting(queue, finished, reason, text, error)


def _expiry(tx: Transaction, message: NewMessage, *entities: QueueRecord) -> int | None:
    """Return when a copy's life ends: the shortest of its own time to live and the entities'."""
    lives = [message.time_to_live]
    for entity in entities:
        longest = entity.options.default_time_to_live
        lives.append(None if longest is None else round(longest * 1_000_000))
    shortest = min((life for life in lives if life is not None), default=None)
    return None if shortest is None else tx.now + shortest


def _deliver(tx: Transaction, waiting: Sequence[_Waiting]) -> None:
    """Insert copies, those of one subscription together and in their order."""
    by_queue: dict[int, list[_Waiting]] = {}
    for one in waiting:
        by_queue.setdefault(one.queue.queue_id, []).append(one)
    for ones in by_queue.values():
        keys = tx.insert_copies(ones[0].queue, [one.copy for one in ones])
        for key, one in zip(keys, ones, strict=True):
            if one.reason is not None:
                row = tx.row(key)
                assert row is not None
                failure = None if one.error is None else failure_of(one.error)
                dead_letter(tx, one.queue, row, one.reason, one.text, failure)
