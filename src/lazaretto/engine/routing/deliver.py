"""Puts messages into an entity, forwards them, or dead-letters them."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec

from lazaretto.engine.log import note, tell
from lazaretto.engine.outcome.session_holds import release_sessions
from lazaretto.engine.queue_admission import MOST_HOPS, Undeliverable
from lazaretto.engine.routing.router import Router, with_hops
from lazaretto.model.entities import Subqueue
from lazaretto.model.failure import LONGEST_TEXT, Failure, short_error, shorten, shown_reason
from lazaretto.model.fingerprint import fingerprint_of
from lazaretto.model.headers import (
    DEAD_LETTER_DESCRIPTION,
    DEAD_LETTER_REASON,
    MAX_HEADERS_SIZE,
    decode_headers,
    encode_headers,
)
from lazaretto.model.keys import dead_key, in_main, lower_bound, main_key, place_of, queue_of, sequence_of
from lazaretto.model.messages import sent_columns
from lazaretto.model.partitions import chosen_key
from lazaretto.model.policy import Counters
from lazaretto.store.records.messages import (
    FRESH,
    READY,
    MessageRow,
    NewMessage,
    QueueRecord,
    RoutedMessage,
)
from lazaretto.store.records.repairs import DeadLetterRecord
from lazaretto.store.sql.transaction import Transaction

_replace = msgspec.structs.replace

# -- dead letters --------------------------------------------------------------------------------


def resolve(tx: Transaction, keys: Sequence[int], resolution: str) -> None:
    """Record how dead letters were resolved, and release the sessions that waited for them."""
    tx.history.resolve_dead_letters(keys, resolution)
    release_sessions(tx, keys)


def dead_letter(
    tx: Transaction,
    queue: QueueRecord,
    row: MessageRow,
    reason: str | None,
    description: str | None,
    failure: Failure | None = None,
    subqueue: Subqueue = Subqueue.DEAD_LETTER,
) -> None:
    """Move a message to a dead-letter subqueue, with its reason and history.

    If the queue forwards its dead letters, the message goes on from there.
    """
    if failure is None:
        latest = tx.history.last_error(main_key(row.key))
        if latest is not None:
            failure = Failure(latest.type, latest.message, latest.stack, latest.site)
    error_type, error_message, stack = (
        (failure.type, failure.message, failure.stack) if failure else (None, None, None)
    )
    record = DeadLetterRecord(
        key=main_key(row.key),
        message_id=row.message_id,
        reason=None if reason is None else shorten(reason, LONGEST_TEXT),
        description=None if description is None else shorten(description, LONGEST_TEXT),
        error_type=error_type,
        error_message=error_message,
        dead_lettered=tx.now,
        enqueued=row.enqueued,
        counters=msgspec.json.encode(_replace(row, moves=row.moves + 1).counters).decode(),
        generation=row.generation,
        resubmitted_from=row.resubmitted_from,
        subqueue=place_of(subqueue),
    )
    print_ = fingerprint_of(record.reason, record.description, failure)
    tx.history.insert_dead_letter(record, print_)
    # A dead-letter queue has no time to live and no session order. Its own policy counts attempts from zero.
    moved = _replace(
        row,
        state=READY,
        due=None,
        expires=None,
        session_id=None,
        deferred=0,
        cycle_attempts=0,
        cycle=0,
        suspect=0,
        moves=row.moves + 1,
    )
    key = dead_key(row.key, subqueue)
    tx.save_row(moved, key)
    # Only a message of a session can hold it, or a dead letter, which may have been one.
    if row.session_id is not None or not in_main(row.key):
        release_sessions(tx, [row.key])
    why = shown_reason(reason, short_error(error_type, error_message) if error_type else None)
    number = sequence_of(row.key)
    tell(
        tx, logging.ERROR, queue.path,
        f"message {number} ({row.message_id!r}) is a dead letter: {why}", stack,
        event="dead_lettered", sequence_number=number, message_id=row.message_id, attempt=row.deliveries,
        reason=reason, error_type=error_type,
    )  # fmt: skip
    where = {"subqueue": subqueue.value} if subqueue is not Subqueue.DEAD_LETTER else {}
    note(tx, "dead_lettered", queue, sequence_of(row.key), reason=reason, error_type=error_type, **where)
    if subqueue is Subqueue.DEAD_LETTER:
        _forward_dead_letter(tx, queue, _replace(moved, key=key), record)


def _forward_dead_letter(
    tx: Transaction, queue: QueueRecord, row: MessageRow, record: DeadLetterRecord
) -> None:
    destination = queue.options.forward_dead_lettered_messages_to
    if destination is None:
        return
    headers = decode_headers(row.headers)
    why = {DEAD_LETTER_REASON: record.reason, DEAD_LETTER_DESCRIPTION: record.description}
    properties = {**headers.properties, **{name: text for name, text in why.items() if text is not None}}
    encoded = encode_headers(_replace(headers, properties=properties, dead_letter_source=queue.path))
    if headers.hops >= MOST_HOPS or len(encoded) > MAX_HEADERS_SIZE:
        # It is already a dead letter, and this subqueue is for those that cannot be forwarded.
        note(tx, "forward_refused", queue, sequence_of(row.key), to=destination)
        return
    routed = transit_of(tx, _replace(row, headers=encoded), resubmitted_from=record.key)
    router = Router(tx)
    undeliverable = router.find_obstacle(destination, routed)
    if undeliverable is not None:
        before = shown_reason(record.reason, record.description)
        text = f"{undeliverable.text} It was a dead letter before: {before}"
        place = place_of(undeliverable.subqueue)
        text = shorten(text, LONGEST_TEXT)
        # It no longer counts in its former place.
        tx.history.resolve_dead_letters([record.key], "forwarded")
        print_ = fingerprint_of(undeliverable.reason, text, undeliverable.failure)
        instead = _replace(record, reason=undeliverable.reason, description=text, subqueue=place)
        tx.history.insert_dead_letter(instead, print_)
        tx.save_row(_replace(row, headers=encoded), dead_key(row.key, undeliverable.subqueue))
        note(tx, "dead_lettered", queue, sequence_of(row.key), reason=undeliverable.reason, error_type=None,
             subqueue=undeliverable.subqueue.value)  # fmt: skip
        return
    _hand_on(tx, router, queue, row, destination, routed)
    tx.history.send_dead_letters({record.key: router.rested.get(record.key)}, "forwarded")
    release_sessions(tx, [record.key])


# -- messages on their way -----------------------------------------------------------------------


def transit_of(
    tx: Transaction, row: MessageRow, origin: int | None = None, resubmitted_from: int | None = None
) -> RoutedMessage:
    """Return a stored message as a routed message that continues from its place."""
    headers = decode_headers(row.headers)
    body = tx.body(row.key)
    before = resubmitted_from or row.resubmitted_from
    return RoutedMessage(
        body=body if row.body_id is None else None,
        body_id=row.body_id,
        size=len(body),
        message_id=row.message_id,
        session_id=headers.session_id,
        expires=row.expires,
        headers=row.headers,
        origin=origin or row.enqueued_sequence_number or sequence_of(row.key),
        home=row.key,
        hops=headers.hops,
        partition_key=headers.partition_key,
        generation=row.generation,
        resubmitted_from=before,
        set_aside=before is not None or headers.negative_acknowledgement is not None,
        **sent_columns(row),
    )


def _hand_on(
    tx: Transaction,
    router: Router,
    queue: QueueRecord,
    row: MessageRow,
    destination: str | None,
    routed: RoutedMessage,
) -> None:
    """Route a stored message to a destination or as its entity forwards, and remove the original."""
    tx.delete_messages([row.key])
    if destination is None:
        router.enter(queue, routed)
    else:
        router.forward(queue, destination, routed)
    finish(tx, router)
    if row.body_id is not None:
        tx.bodies.delete([row.body_id])


def pass_on(tx: Transaction, queue: QueueRecord, row: MessageRow) -> int | None:
    """Forward an active message from its queue; return the key of what was a dead letter, if it is known."""
    router, routed = Router(tx), transit_of(tx, row)
    _hand_on(tx, router, queue, row, None, routed)
    if row.deliveries:
        tx.history.delete_attempts([row.key])
    return router.rested.get(routed.resubmitted_from)


def pass_all_on(tx: Transaction, queue: QueueRecord, limit: int) -> int:
    """Forward the first active messages of a queue; return how many, and make the rest due."""
    first, last = lower_bound(queue.queue_id), lower_bound(queue.queue_id, Subqueue.DEAD_LETTER)
    rows = tx.active(first, last, limit)
    for row in rows:
        pass_on(tx, queue, row)
    tx.make_due(first, last)
    return len(rows)


def pass_on_scheduled(tx: Transaction, topic: QueueRecord, row: MessageRow) -> None:
    """Route a scheduled message that is due from the topic or forwarding queue it waited in."""
    key = tx.sequences.take_key(topic)
    tx.sequences.keep(key)
    routed = _replace(transit_of(tx, row, origin=sequence_of(key)), home=key)
    _hand_on(tx, Router(tx), topic, row, None, routed)


def finish(tx: Transaction, router: Router) -> None:
    """Store routed messages, and dead-letter undeliverable ones."""
    for queue, routed, undeliverable in router.commit():
        _set_aside(tx, queue, routed, undeliverable)


def _set_aside(
    tx: Transaction, queue: QueueRecord, routed: RoutedMessage, undeliverable: Undeliverable
) -> None:
    home = routed.home
    if home is not None and queue_of(home) == queue.queue_id:
        key = main_key(home)
        submitted_here = routed.origin == sequence_of(key)
    else:
        key, submitted_here = (
            tx.sequences.take_key(queue, chosen_key(routed.session_id, routed.partition_key)),
            False,
        )
    counters = Counters()._asdict()
    row = MessageRow(
        key=key, state=FRESH, due=None, expires=None, enqueued=tx.now, message_id=routed.message_id,
        session_id=None, lock_token=None, locked_at=None, locked_by=None, **counters,
        generation=routed.generation, deferred=0,
        enqueued_sequence_number=None if submitted_here else routed.origin,
        resubmitted_from=routed.resubmitted_from,
        headers=with_hops(routed) or routed.headers, body_id=routed.body_id, **sent_columns(routed),
    )  # fmt: skip
    tx.insert_row(row, routed.body)
    dead_letter(
        tx,
        queue,
        row,
        undeliverable.reason,
        undeliverable.text,
        undeliverable.failure,
        undeliverable.subqueue,
    )


def revived(tx: Transaction, row: MessageRow) -> RoutedMessage:
    """Return a dead letter as a message of a new generation, bound for another entity."""
    routed = transit_of(tx, row, origin=sequence_of(row.key), resubmitted_from=main_key(row.key))
    headers = decode_headers(row.headers)
    life = headers.time_to_live
    return _replace(
        routed,
        expires=None if life is None else tx.now + life,
        headers=encode_headers(_replace(headers, hops=0)),
        home=None,
        hops=0,
        generation=row.generation + 1,
    )


def deliver(
    tx: Transaction, queue: QueueRecord, messages: Sequence[NewMessage], destination: str | None = None
) -> list[int]:
    """Route new messages into a topic or forwarding queue, or via a queue; return their keys there."""
    router = Router(tx)
    first = tx.sequences.take_key(queue, count=len(messages))
    for key, message in enumerate(messages, first):
        router.accept(queue, key, message, destination)
    finish(tx, router)
    return list(range(first, first + len(messages)))
