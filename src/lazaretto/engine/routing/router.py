"""Routes the messages of one commit through entities to the queues where they stay."""

from __future__ import annotations

import collections
import operator
from collections.abc import Sequence

import msgspec

from lazaretto.engine.log import note
from lazaretto.engine.queue_admission import (
    DISABLED_REASON,
    FILTER_REASON,
    FULL_REASON,
    LARGE_HEADERS,
    MOST_HOPS,
    NO_SESSION,
    NOT_FOUND_REASON,
    SIZE_REASON,
    TOO_FAR,
    UNMATCHED_REASON,
    Undeliverable,
    admission_of,
    not_taken,
)
from lazaretto.engine.routing.forwards import forwards, touch
from lazaretto.errors import FilterError
from lazaretto.model.entities import EntityKind
from lazaretto.model.failure import failure_of
from lazaretto.model.filters.rules import CompiledRules, Copy, compiled
from lazaretto.model.filters.view import MessageView
from lazaretto.model.headers import MAX_HEADERS_SIZE, decode_headers, encode_headers
from lazaretto.model.keys import sequence_of
from lazaretto.model.messages import sent_columns
from lazaretto.model.partitions import detection_key
from lazaretto.store.records.messages import NewMessage, QueueRecord, RoutedMessage
from lazaretto.store.sql.transaction import Transaction

_PLACE = operator.itemgetter(0)
_MOST_KNOWN = 64
_replace = msgspec.structs.replace


class Subscribers:
    """A topic's subscriptions, indexed so that few rules are evaluated for each message.

    A subscription whose only rule is a correlation filter is found by one of the filter's values. All other
    rules are evaluated one by one. `everyone`: subscriptions that store every message unchanged.
    """

    def __init__(self, subscriptions: Sequence[QueueRecord]) -> None:
        self._asked: list[tuple[int, CompiledRules]] = []
        self._wanted: dict[tuple[str, str], dict[object, list[tuple[int, CompiledRules]]]] = {}
        self.records = tuple(subscriptions)
        everyone = []
        for place, record in enumerate(self.records):
            rules = compiled(record.rules)
            key = rules.wanted()
            if rules.takes_all and _keeps_as_it_is(record):
                everyone.append(record)
            elif key is None:
                self._asked.append((place, rules))
            else:
                name, value = key
                self._wanted.setdefault(name, {}).setdefault((type(value), value), []).append((place, rules))

        self.everyone = tuple(everyone)
        #: Whether there are other subscriptions, whose rules must be evaluated.
        self.asks = len(everyone) < len(self.records)

    def concerned(self, view: MessageView) -> list[tuple[QueueRecord, CompiledRules]]:
        """Return the other subscriptions that may match a message, in order."""
        matches = self._asked
        for name, by_value in self._wanted.items():
            value = view.get(*name)
            exact = by_value.get((type(value), value))
            if exact:
                matches = sorted([*matches, *exact], key=_PLACE)
        return [(self.records[place], rules) for place, rules in matches]


def _keeps_as_it_is(record: QueueRecord) -> bool:
    options = record.options
    return (
        options.forward_to is None and not options.requires_session and options.default_time_to_live is None
    )


#: Subscribers of the latest topics, by the identity of the list that the store returned.
_known: collections.OrderedDict[int, tuple[tuple[QueueRecord, ...], Subscribers]] = collections.OrderedDict()


def subscribers(tx: Transaction, topic: QueueRecord) -> Subscribers:
    """Return a topic's subscriptions; the same object as long as nothing has changed."""
    records = tx.topics.subscriptions(topic.queue_id)
    cached = _known.get(id(records))
    if cached is None or cached[0] is not records:
        cached = _known[id(records)] = records, Subscribers(records)
        while len(_known) > _MOST_KNOWN:
            _known.popitem(last=False)
    return cached[1]


class Router:
    """Collects the messages of one commit and their final places, by entity, in order."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self._resting: dict[int, tuple[tuple[QueueRecord, ...], list[RoutedMessage]]] = {}
        self._bodies: dict[int, bytes] = {}
        self._uses: dict[int, int] = {}
        self._undelivered: list[tuple[QueueRecord, RoutedMessage, Undeliverable]] = []
        self._used: dict[int, int] = {}
        self._subscribers: dict[int, Subscribers] = {}
        self._unmatched: dict[int, int] = {}
        self._growth: dict[int, int] = {}
        #: The new key of each dead letter, by its old key; with several copies, one of them.
        self.rested: dict[int | None, int] = {}

    # -- ways in --------------------------------------------------------------------------------

    def accept(self, queue: QueueRecord, key: int, message: NewMessage, destination: str | None) -> None:
        """Accept a new message into an entity under a key, or route it through to a destination."""
        tx = self._tx
        self._used[queue.queue_id] = key
        body, life = message.body, message.time_to_live
        routed = RoutedMessage(
            body, None, len(body), message.message_id or tx.new_message_id(), message.session_id,
            message.end(tx.now, life), message.headers, sequence_of(key), key, 0,
            message.scheduled, message.partition_key, **sent_columns(message),
        )  # fmt: skip
        if destination is None:
            self.enter(queue, routed)
        else:
            self.forward(queue, destination, routed)

    def enter(self, queue: QueueRecord, routed: RoutedMessage) -> None:
        """Put a message into an entity, which stores, publishes or forwards it."""
        later = routed.scheduled is not None and routed.scheduled > self._tx.now
        if queue.kind is EntityKind.TOPIC and not later:
            self._publish(queue, routed)
        elif not later and forwards(queue):
            assert queue.options.forward_to is not None
            self.forward(queue, queue.options.forward_to, routed)
        else:
            self._rest(queue, routed)

    def forward(self, source: QueueRecord, destination: str, routed: RoutedMessage) -> None:
        """Forward a message to another entity, or dead-letter it where it comes from."""
        routed = self._shortened(source, routed)
        undeliverable = self.find_obstacle(destination, routed) if routed.hops < MOST_HOPS else TOO_FAR
        if undeliverable is not None:
            self._undelivered.append((source, routed, undeliverable))
            return
        queue = self._tx.queues.by_path(destination.lower())
        assert queue is not None
        detects = queue.options.requires_duplicate_detection and not routed.set_aside
        if detects and self._is_duplicate(queue, routed):
            return
        self._let_in(queue, _replace(routed, hops=routed.hops + 1, home=None))

    def admit(self, queue: QueueRecord, routed: RoutedMessage) -> None:
        """Accept a message that was a dead letter elsewhere; it is never a duplicate."""
        if queue.options.requires_duplicate_detection:
            # Later sends with its id are duplicates.
            self._is_duplicate(queue, routed)
        self._let_in(queue, routed)

    def _let_in(self, queue: QueueRecord, routed: RoutedMessage) -> None:
        touch(self._tx, queue)
        owner = self._tx.queues.sized(queue.queue_id)
        if owner is not None:
            self._growth[owner] = self._growth.get(owner, 0) + _size(routed)
        self.enter(queue, routed)

    def find_obstacle(self, destination: str, routed: RoutedMessage) -> Undeliverable | None:
        """Return why a message cannot go to a destination."""
        queue = self._tx.queues.by_path(destination.lower())
        growth = 0 if queue is None else self._growth.get(queue.queue_id, 0)
        undeliverable = refusal(self._tx, destination, _size(routed), growth)
        if (
            undeliverable is None
            and routed.set_aside
            and queue is not None
            and queue.kind is EntityKind.TOPIC
        ):
            subscribers = self._subscribers_of(queue)
            if not subscribers.everyone and not self._wanted(subscribers, routed)[0]:
                # A topic drops messages that match no rule. A former dead letter must not be dropped.
                return not_taken(UNMATCHED_REASON, f"No subscription of the topic {queue.path!r} matches it.")
        return undeliverable

    def _is_duplicate(self, queue: QueueRecord, routed: RoutedMessage) -> bool:
        partition = detection_key(routed.partition_key, queue.partitions)
        if self._tx.message_ids.find(queue.queue_id, routed.message_id, partition) is not None:
            return True
        remember_id(self._tx, queue, routed.message_id, partition, routed.origin)
        return False

    # -- topics ---------------------------------------------------------------------------------

    def _publish(self, topic: QueueRecord, routed: RoutedMessage) -> None:
        subscribers = self._subscribers_of(topic)
        copies, ignored = self._wanted(subscribers, routed)
        for queue, error in ignored:
            note(self._tx, "filter_failed", queue, routed.origin, error=str(error))
        number = len(subscribers.everyone) + len(copies)
        if not number:
            self._unmatched[topic.queue_id] = self._unmatched.get(topic.queue_id, 0) + 1
            return
        routed = self._shortened(topic, routed)
        if number > 1 and routed.body is not None:
            # All copies share one body.
            body_id = self._tx.bodies.take_id()
            self._bodies[body_id] = routed.body
            routed = _replace(routed, body=None, body_id=body_id)
        if subscribers.everyone:
            # Uses a number that no queue has, which stands for all of these queues.
            self._rest_in(-topic.queue_id, subscribers.everyone, routed)
        for queue, copy, failed in copies:
            if failed is not None:
                undeliverable = Undeliverable(FILTER_REASON, str(failed), failure=failure_of(failed))
                self._undelivered.append((queue, routed, undeliverable))
            elif copy is not None and copy.changed is not None:
                self._enter_changed(queue, routed, copy.changed)
            else:
                self.enter(queue, routed)

    def recipients(self, topic: QueueRecord, routed: RoutedMessage) -> list[QueueRecord]:
        """Return the subscriptions whose rules match a message, once for each copy."""
        subscribers = self._subscribers_of(topic)
        return [*subscribers.everyone, *(queue for queue, _, _ in self._wanted(subscribers, routed)[0])]

    def _subscribers_of(self, topic: QueueRecord) -> Subscribers:
        cached = self._subscribers.get(topic.queue_id)
        if cached is None:
            cached = self._subscribers[topic.queue_id] = subscribers(self._tx, topic)
        return cached

    def _body_of(self, routed: RoutedMessage) -> bytes | None:
        if routed.body is not None or routed.body_id is None:
            return routed.body
        # A body that is shared in this commit is stored at its end.
        body = self._bodies.get(routed.body_id)
        return self._tx.bodies.find(routed.body_id) if body is None else body

    def _wanted(
        self, subscribers: Subscribers, routed: RoutedMessage
    ) -> tuple[
        list[tuple[QueueRecord, Copy | None, FilterError | None]], list[tuple[QueueRecord, FilterError]]
    ]:
        """Return the subscriptions whose rules match, with what they get, or why that cannot be said.

        And those that cannot say it and leave such messages out.
        """
        copies: list[tuple[QueueRecord, Copy | None, FilterError | None]] = []
        ignored: list[tuple[QueueRecord, FilterError]] = []
        if not subscribers.asks:
            return copies, ignored
        headers = decode_headers(routed.headers)
        view = MessageView(
            headers, routed.message_id, enqueued=self._tx.now, size=routed.size,
            body=lambda: self._body_of(routed),
        )  # fmt: skip
        for queue, rules in subscribers.concerned(view):
            try:
                copies += [(queue, copy, None) for copy in rules.copies(view)]
            except FilterError as error:
                if queue.options.dead_letter_on_filter_errors:
                    copies.append((queue, None, error))
                else:
                    ignored.append((queue, error))
        return copies, ignored

    def _enter_changed(self, queue: QueueRecord, routed: RoutedMessage, changed: MessageView) -> None:
        encoded = encode_headers(changed.headers)
        if len(encoded) > MAX_HEADERS_SIZE:
            # Kept as it was before the action, because the result cannot be stored.
            self._undelivered.append((queue, routed, LARGE_HEADERS))
            return
        headers = changed.headers
        changes = {
            "headers": encoded,
            "session_id": headers.session_id,
            "partition_key": headers.partition_key,
        }
        self.enter(queue, _replace(routed, message_id=changed.message_id or routed.message_id, **changes))

    # -- coming to rest -------------------------------------------------------------------------

    def _shortened(self, queue: QueueRecord, routed: RoutedMessage) -> RoutedMessage:
        """Return the message with its time to live limited to what an entity on its way allows."""
        longest = queue.longest_life
        if longest is None:
            return routed
        begins = self._tx.now
        if routed.scheduled is not None and decode_headers(routed.headers).amqp is not None:
            begins = max(begins, routed.scheduled)
        end = begins + longest
        return _replace(routed, expires=end if routed.expires is None else min(end, routed.expires))

    def _rest(self, queue: QueueRecord, routed: RoutedMessage) -> None:
        undeliverable = admission_of(queue).undeliverable
        if undeliverable is not None:
            self._undelivered.append((queue, routed, undeliverable))
        elif queue.options.requires_session and routed.session_id is None:
            self._undelivered.append((queue, routed, NO_SESSION))
        else:
            self._rest_in(queue.queue_id, (queue,), self._shortened(queue, routed))

    def _rest_in(self, place: int, queues: tuple[QueueRecord, ...], routed: RoutedMessage) -> None:
        """Store a message unchanged in queues; each place always has the same queues."""
        if routed.hops:
            encoded = with_hops(routed)
            if encoded is None:
                self._undelivered += [(queue, routed, LARGE_HEADERS) for queue in queues]
                return
            routed = _replace(routed, headers=encoded)
        if routed.body_id is not None:
            self._uses[routed.body_id] = self._uses.get(routed.body_id, 0) + len(queues)
        resting = self._resting.get(place)
        if resting is None:
            resting = self._resting[place] = (queues, [])
        resting[1].append(routed)

    def commit(self) -> list[tuple[QueueRecord, RoutedMessage, Undeliverable]]:
        """Insert all routed messages; return the undeliverable ones, for dead-lettering."""
        tx = self._tx
        for key in self._used.values():
            tx.sequences.keep(key)
        for queue_id, count in self._unmatched.items():
            tx.queues.count_discarded(queue_id, dropped=count)
        for _, routed, _ in self._undelivered:
            if routed.body_id is not None:
                self._uses[routed.body_id] = self._uses.get(routed.body_id, 0) + 1
        self._keep_bodies()
        for queues, routed_messages in self._resting.values():
            keys = tx.topics.insert_routed(queues, routed_messages)
            if routed_messages[0].set_aside:
                self.rested.update(
                    (one.resubmitted_from, key) for one, key in zip(routed_messages, keys, strict=True)
                )
        return self._undelivered

    def _keep_bodies(self) -> None:
        """Insert the bodies of this commit's messages, and note which are shared."""
        uses = self._uses
        new = {body_id: body for body_id, body in self._bodies.items() if uses.get(body_id)}
        if new:
            self._tx.bodies.insert(new)
        # An existing body belongs to a message that is leaving its place, and counts until then.
        more = {i: n - (i in new) for i, n in uses.items()}
        shared = {body_id: count for body_id, count in more.items() if count}
        if shared:
            self._tx.bodies.add_uses(shared)


def refusal(tx: Transaction, destination: str, size: int, growth: int = 0) -> Undeliverable | None:
    """Return why an entity cannot take a message of this size, or None if it can.

    `growth`: bytes that this commit adds to the entity before this message.
    """
    queue = tx.queues.by_path(destination.lower())
    if queue is None:
        return not_taken(NOT_FOUND_REASON, f"The destination {destination!r} does not exist.")
    if not queue.status.takes:
        return not_taken(DISABLED_REASON, f"The destination {queue.path!r} is {queue.status.value}.")
    limit, most = queue.options.max_message_size, queue.options.max_size
    if size > limit:
        text = f"The destination {queue.path!r} takes at most {limit} bytes, the message has {size}."
        return not_taken(SIZE_REASON, text)
    if most is not None:
        total = tx.queues.size(queue.queue_id) + growth
        if total + size > most:
            text = f"The destination {queue.path!r} is full: it holds {total} of {most} bytes."
            return not_taken(FULL_REASON, text)
    return None


def remember_id(tx: Transaction, queue: QueueRecord, message_id: str, partition: str, number: int) -> None:
    """Remember a message id and its sequence number for the queue's duplicate detection window."""
    forget_after = tx.now + round(queue.options.duplicate_detection_window * 1_000_000)
    tx.message_ids.remember(queue.queue_id, message_id, partition, forget_after, number)


def _size(routed: RoutedMessage) -> int:
    return routed.size + len(routed.headers or b"")


def with_hops(routed: RoutedMessage) -> bytes | None:
    """Return the headers with the hop count added; None if they become too large."""
    headers = decode_headers(routed.headers)
    if headers.hops == routed.hops:
        return routed.headers
    encoded = encode_headers(_replace(headers, hops=routed.hops))
    return encoded if len(encoded) <= MAX_HEADERS_SIZE else None
