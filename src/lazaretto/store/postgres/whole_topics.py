"""Plans messages on their way through topics and forwarding queues, to the queues where they stay."""

from __future__ import annotations

from collections.abc import Sequence

from lazaretto.model.keys import LAST_SEQUENCE, lower_bound
from lazaretto.model.messages import sets_columns
from lazaretto.model.rates import SENT
from lazaretto.store.postgres.arrays import blobs, numbers, texts
from lazaretto.store.postgres.plan import Unforeseen
from lazaretto.store.postgres.queue_locks import QueueLock
from lazaretto.store.postgres.whole_context import WholeContext
from lazaretto.store.postgres.whole_sequences import WholeSequences, is_placeholder, key_ranges
from lazaretto.store.records.messages import QueueRecord, RoutedMessage
from lazaretto.store.sql.body_tables import BodyTables
from lazaretto.store.sql.queue_tables import QueueTables
from lazaretto.store.sql.rows import INLINE_BODY
from lazaretto.store.sql.sequence_numbers import PartitionTables
from lazaretto.store.sql.topic_tables import TopicTables


class WholeTopics(TopicTables):
    """The part for topics, from remembered subscriptions. The server assigns the numbers."""

    def __init__(
        self,
        context: WholeContext,
        queues: QueueTables,
        bodies: BodyTables,
        sequences: WholeSequences,
        partitions: PartitionTables,
    ) -> None:
        super().__init__(context, queues, bodies, sequences, partitions)
        self._whole = context
        self._numbers = sequences

    def subscriptions(self, topic_id: int) -> tuple[QueueRecord, ...]:
        subscriptions = self._whole.settings.subscriptions(topic_id)
        self._whole.asked_topics.add(topic_id)
        return subscriptions

    def insert_routed(
        self, queues: Sequence[QueueRecord], routed_messages: Sequence[RoutedMessage]
    ) -> list[int]:
        new = all(is_placeholder(m.origin) and not (m.generation or sets_columns(m)) for m in routed_messages)
        if not new or any(self._queues.sized(queue.queue_id) is not None for queue in queues):
            raise Unforeseen
        whole = [queue for queue in queues if queue.partitions == 1]
        if whole:
            self._insert([queue.queue_id for queue in whole], queues[0], routed_messages)
        for queue in queues:
            if queue.partitions > 1:
                for lane, some in self._partitions.split(queue, routed_messages).items():
                    self._insert([lane], queue, [routed_messages[place] for place in some])
            self._rates.count(queue.queue_id, SENT, len(routed_messages))
        # Where they stay, nobody asks for the keys of new messages.
        return [one.origin for one in routed_messages]

    def _insert(self, lanes: Sequence[int], queue: QueueRecord, routed: Sequence[RoutedMessage]) -> None:
        """Append messages to lanes, of which `queue` is the first."""
        context, count = self._whole, len(routed)
        origins = [self._numbers.behind(one.origin) for one in routed]
        ((entry, _), *_) = origins
        if any(lane != entry for lane, _ in origins):
            raise Unforeseen
        sessions = [one.session_id if queue.options.requires_session else None for one in routed]
        body_ids: list[int | None] = []
        bodies: list[bytes | None] = []
        for one in routed:
            body, body_id = one.body, one.body_id
            if body is not None and len(body) > INLINE_BODY:
                body_id, body = self._bodies.insert_one(body), None
            body_ids.append(body_id)
            bodies.append(body)
            context.note_due(one.expires)
        ranges = [key_ranges(lane) for lane in lanes]
        sent = context.run(
            "send_routed",
            {
                "lanes": list(lanes),
                "floors": [context.floors.get(lane, 0) for lane in lanes],
                "mains": [of["main"] for of in ranges],
                "deads": [of["dead"] for of in ranges],
                "transfers": [of["transfer"] for of in ranges],
                "mosts": [of["most"] for of in ranges],
                "entry": entry,
                "entered": lower_bound(entry) & LAST_SEQUENCE,
                "now": context.now,
                "lives": numbers(one.expires for one in routed),
                "ids": texts(one.message_id for one in routed),
                "sessions": texts(sessions),
                "headers": blobs(one.headers for one in routed),
                "body_ids": numbers(body_ids),
                "bodies": blobs(bodies),
                "behind": numbers(behind for _, behind in origins),
                "count": count,
            },
        )
        for lane in lanes:
            context.locks.hold(lane, QueueLock.END)
            context.wake(lower_bound(lane), count)

        def note() -> None:
            for lane, (last,) in zip(lanes, sent.fetchall(), strict=True):
                context.raise_floor(lane, last + count)

        context.afterwards.append(note)
