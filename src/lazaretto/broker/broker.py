"""Connects to a store and offers all its operations."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from lazaretto.broker.administration import AccessDesk, Administration, ListingDesk
from lazaretto.broker.causes import CauseDesk
from lazaretto.broker.claims import Claim, describe_claims
from lazaretto.broker.consume_desk import ConsumeDesk
from lazaretto.broker.dead_letters import DeadLetterDesk
from lazaretto.broker.receiver import Receiver
from lazaretto.broker.repairs import RepairDesk
from lazaretto.broker.sender import Sender, sendable
from lazaretto.broker.settling import Mode, NextSession
from lazaretto.broker.steps import Look, Steps, Wait, verb
from lazaretto.broker.transaction import BrokerTransaction
from lazaretto.commands.desk import CommandDesk
from lazaretto.commands.methods import BrokerMethods
from lazaretto.dialogs import Dialogs
from lazaretto.engine.entities.queues import OpenStore, require_queue
from lazaretto.engine.log import (
    LONGEST_ACTOR,
    AuditEntry,
    Event,
    acting,
    detail_of_repair,
    read_audit,
    read_events,
)
from lazaretto.engine.maintenance import Maintenance, look
from lazaretto.engine.messages.delete import DeleteMessages
from lazaretto.engine.messages.sessions import list_sessions
from lazaretto.engine.outcome.dead_letter_operations import (
    history,
)
from lazaretto.engine.outcome.held_sessions import describe_session, held_sessions
from lazaretto.engine.outcome.message_history import show_message
from lazaretto.engine.workers.list_workers import Worker, list_workers
from lazaretto.engine.workers.workers import Leave
from lazaretto.errors import InvalidOption, LazarettoError, MessageNotFound, StoreError
from lazaretto.model.checks import GivenDuration, flag, moment, seconds, shown, text, whole
from lazaretto.model.clock import Clock
from lazaretto.model.descriptions import HeldSession, SessionDescription
from lazaretto.model.entities import SYSTEM_DEAD_LETTER_QUEUE, EntityPath, Subqueue
from lazaretto.model.headers import LONGEST_ID
from lazaretto.model.keys import LAST_SEQUENCE, lower_bound
from lazaretto.model.message_history import MessageHistory
from lazaretto.model.messages import MOST_MESSAGES, Attempt, PeekedMessage
from lazaretto.store.addresses import open_store
from lazaretto.store.records.access import SPREAD
from lazaretto.store.records.messages import AuditCriteria
from lazaretto.store.sql.store import Store
from lazaretto.tools.closing import Closing
from lazaretto.tools.surroundings import why_threads_cannot_wait

_log = logging.getLogger("lazaretto")


def connect(
    url: str | os.PathLike[str],
    *,
    clock: Clock | None = None,
    create: bool = True,
    adopt: bool = False,
    timeout: GivenDuration = 10.0,
    durable_attempts: bool = False,
    create_spans: bool = True,
) -> Broker:
    """Open the broker whose store is at `url`.

    `sqlite:///orders.db` is a file in the current folder, `sqlite:////var/lib/orders.db` a file with an
    absolute path; a plain path works too. `create`: create the store if it does not exist. `adopt`: keep
    the store's tables in another application's database. `timeout`: seconds to wait for other processes.
    `durable_attempts`: sync the record of each delivery to disk before the receiver gets the message, so
    that even a power cut loses no count. `create_spans`: where traced, each message of a batch has a span of
    its own. `clock`: for tests.

    Raises StoreCorrupt, StoreForeign, StoreTooNew (the file stays as it is), StoreNotFound, StoreError,
    InvalidOption.
    """
    flags = {
        "create": create, "adopt": adopt, "durable_attempts": durable_attempts, "create_spans": create_spans,
    }  # fmt: skip
    for name, value in flags.items():
        flag(name, value)
    if clock is not None and not isinstance(getattr(clock, "ticks", None), bool):
        raise InvalidOption(f"expected clock to be a SystemClock, a ManualClock or None, got {shown(clock)}")
    why = why_threads_cannot_wait()
    if why is not None:
        raise StoreError(why)
    store = open_store(
        url,
        clock=clock,
        create=create,
        adopt=adopt,
        timeout=seconds("timeout", timeout),
        durable_attempts=durable_attempts,
    )
    store.create_spans = create_spans
    return Broker(store)


def store_of(broker: Broker) -> Store:
    """Return what a broker works on, for the parts of this package: host, Spark, test kit.

    They run operations of the engine and queries in it, and see its clock and its errors. Not for programs:
    operations change between versions.
    """
    return broker._store


class Broker(
    Administration,
    DeadLetterDesk,
    ListingDesk,
    CauseDesk,
    RepairDesk,
    CommandDesk,
    AccessDesk,
    ConsumeDesk,
    BrokerMethods,
    Closing,
):
    """A store and all its operations. Threads can share it. A context manager.

    Paths name queues (`orders`, `shop/orders`) and their subqueues (`orders/$deadletterqueue` or
    `orders;poison`, `orders;retry`); they are not case-sensitive. `actor` is the name
    for the audit log; None means the user of this process.
    """

    _store: Store

    def __init__(self, store: Store) -> None:
        if not isinstance(store, Store):
            raise InvalidOption(
                f"expected an open store, got {shown(store)}; lazaretto.connect(address) makes a broker"
            )
        self._store = store
        self._rotation: dict[str, str | None] = {}
        try:
            # Looked for first, so that opening a store writes nothing, nor waits for who is writing.
            system, spread = store.read(
                lambda tx: (tx.queues.by_path(SYSTEM_DEAD_LETTER_QUEUE), tx.access.setting(SPREAD))
            )
            if system is None:
                store.run(OpenStore())
            if spread is not None:
                _log.warning(
                    "This store was one of several that were used as one queue (%s), which this version does "
                    "not do: it is opened by itself. Open the others, too, and receive what they still have",
                    spread,
                )
        except BaseException:
            store.close()
            raise
        self._maintenance = Maintenance(store, store.clock)
        #: Dialogs between services: contracts, conversations, and what operators do with them.
        self.dialogs = Dialogs(store)

    # -- messages -------------------------------------------------------------------------------

    def sender(self, path: str, *, via: str | None = None) -> Sender:
        """Return a sender to a queue or topic, which is looked up when a message is sent.

        `via`: a queue that the messages pass through. A send succeeds once that queue accepts them. If
        `path` is then missing, disabled or full, they move to its transfer dead-letter subqueue.
        """
        return Sender(self._store, sendable(path), None if via is None else sendable(via))

    def receiver(
        self,
        path: str,
        *,
        subqueue: str | None = None,
        mode: Mode = "peek_lock",
        session: str | NextSession | None = None,
    ) -> Receiver:
        """Return a receiver.

        `subqueue`: "dead_letter" and others, instead of a suffix of the path. `mode`: "peek_lock",
        or "receive_and_delete". `session`: the id of a session, locked now (SessionCannotBeLocked
        if another receiver has it), or NEXT_SESSION, locked by the first `receive`.
        """
        return self._receiver(path, subqueue=subqueue, mode=mode, session=session)

    def _receiver(
        self,
        path: str,
        *,
        subqueue: str | None = None,
        mode: Mode = "peek_lock",
        session: str | NextSession | None = None,
        accept: bool = True,
    ) -> Receiver:
        parsed = EntityPath.parse(path, subqueue)
        return Receiver(self._store, parsed, mode, session, self._rotation, accept=accept)

    def peek(
        self,
        path: str,
        max_messages: int = 1,
        from_sequence_number: int = 0,
        *,
        subqueue: str | None = None,
        session_id: str | None = None,
    ) -> list[PeekedMessage]:
        """Return messages in every state, without locking them or counting an attempt.

        `session_id`: only messages of this session.
        """
        with self.receiver(path, subqueue=subqueue) as receiver:
            return receiver.peek(max_messages, from_sequence_number, session_id=session_id)

    def transaction(self) -> BrokerTransaction:
        """Return a transaction: receives, settlements, sends and your own SQL in one commit."""
        return BrokerTransaction(self._store)

    def delete_messages(
        self,
        path: str,
        count: int,
        *,
        subqueue: str | None = None,
        session_id: str | None = None,
        enqueued_before: datetime | None = None,
        actor: str | None = None,
    ) -> int:
        """Delete up to `count` active messages for good, the first ones first; return how many.

        Messages that are locked, deferred or scheduled stay. `session_id`: only messages of this session.
        `enqueued_before`: only those that came earlier. Raises NotAllowed where nothing can be received.
        """
        command = DeleteMessages(
            path=path, count=count, session_id=session_id, enqueued_before=enqueued_before
        )
        return self._store.run(command.of_part(subqueue, acting(actor)))

    def sessions(
        self,
        path: str,
        *,
        active: bool = False,
        state_set_after: datetime | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> list[str]:
        """Return the ids of a queue's sessions that have messages, a lock or a state, by name.

        `active`: only those with a state, or with messages that are not deferred or scheduled.
        `state_set_after`: only those whose state was set after a time. `limit`: at most so many; `after`:
        those behind this one, such as the last of the page before. Default: all.
        """
        parsed = EntityPath.parse(path)
        flag("active", active)
        since = moment("state_set_after", state_set_after)
        most = 1 << 30 if limit is None else whole("limit", limit, 1, 1 << 30)
        if after is not None:
            text("after", after, LONGEST_ID, 0)
        return look(self._store, lambda tx: list_sessions(tx, parsed, since, after, most, active=active))

    def session(self, path: str, session_id: str) -> SessionDescription:
        """Return a session's description. Raises MessageNotFound if the session is empty."""
        parsed = EntityPath.parse(path)
        id_ = text("session_id", session_id, LONGEST_ID, 0)
        return look(self._store, lambda tx: describe_session(tx, parsed, id_))

    def workers(self) -> list[Worker]:
        """Return the processes that take messages, by name, with what each holds.

        Of a receiver: up to 1,000 messages, and the sessions it has locked. It looks at the 10,000 messages
        whose locks or other times end first. `complete` says whether that was enough.
        """
        return look(self._store, list_workers)

    def held_sessions(self, path: str, *, limit: int = 1000) -> list[HeldSession]:
        """Return the sessions that are held by a poison message."""
        parsed = EntityPath.parse(path)
        whole("limit", limit, 1, MOST_MESSAGES)
        return look(self._store, lambda tx: held_sessions(tx, parsed, limit))

    def claims(self, path: str, *, limit: int = 100) -> list[Claim]:
        """Return the claims on a queue, newest first."""
        parsed = EntityPath.parse(path)
        whole("limit", limit, 1, MOST_MESSAGES)
        return look(self._store, lambda tx: describe_claims(tx, parsed, limit))

    def attempts(self, path: str, sequence_number: int) -> tuple[Attempt, ...]:
        """Return the history of a message, live or dead: every attempt that did not complete."""
        parsed = EntityPath.parse(path)
        number = whole("sequence_number", sequence_number, 1, LAST_SEQUENCE)

        def find(tx: Any) -> tuple[Attempt, ...]:
            queue = require_queue(tx, parsed)
            key = lower_bound(queue.queue_id) + number
            attempts = history(tx, key)
            parts = (Subqueue.MAIN, Subqueue.DEAD_LETTER)
            exists = any(tx.row(lower_bound(queue.queue_id, part) + number) for part in parts)
            if not attempts and not exists and tx.history.dead_letter(key) is None:
                raise MessageNotFound(f"no message {number} in {queue.path!r}")
            return attempts

        return look(self._store, find)

    def message_history(self, path: str, sequence_number: int) -> MessageHistory:
        """Return what is known of a message that a queue has or had: where it is, and all its generations.

        Those before it was sent back, and those after, up to 100 each. Of a message that is completed,
        discarded or deleted nothing is kept: its state is "gone". Raises MessageNotFound for a number
        that the queue has not given to a message yet.
        """
        parsed = EntityPath.parse(path)
        number = whole("sequence_number", sequence_number, 1, LAST_SEQUENCE)
        return look(self._store, lambda tx: show_message(tx, parsed, number))

    # -- logs -----------------------------------------------------------------------------------

    @verb
    def events(
        self,
        after: int = 0,
        *,
        kind: str | None = None,
        queue: str | None = None,
        limit: int = 1000,
        max_wait: GivenDuration | None = 0.0,
        before: int | None = None,
    ) -> Steps[list[Event]]:
        """Return events after a position, oldest first; wait up to `max_wait` seconds for the first.

        To continue, pass the last event's `position`. `before`: instead those below this position, newest
        first, such as the last one of the page before. Events are kept for 30 days.
        """
        whole("after", after, 0, 1 << 62)
        if before is not None:
            whole("before", before, 1, 1 << 62)
            if after:
                raise InvalidOption("expected after or before, got both")
            max_wait = 0.0
        whole("limit", limit, 1, MOST_MESSAGES)
        queue = None if queue is None else EntityPath.parse(queue).queue
        end = None if max_wait is None else time.monotonic() + seconds("max_wait", max_wait)
        while True:
            seen = self._store.changes(0)
            if not self._store.clock.ticks:
                look(self._store, lambda tx: None)
            events: list[Event] = yield Look(lambda tx: read_events(tx, after, limit, kind, queue, before))
            rest = 3600.0 if end is None else end - time.monotonic()
            if events or rest <= 0:
                return events
            yield Wait(0, seen, rest, None)

    def last_event(self) -> int:
        """Return the position of the latest event, from which to follow later events."""
        return look(self._store, lambda tx: tx.history.last_event())

    def audit(
        self,
        *,
        queue: str | None = None,
        limit: int = 100,
        actor: str | None = None,
        action: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        before: int | None = None,
        repair: str | None = None,
    ) -> list[AuditEntry]:
        """Return the operators' actions, newest first.

        Only those of an `actor`, of an `action` such as "update", from the time `since` on, and earlier than
        `until`. `before`: only those below this position, such as the last one of the page before. `repair`:
        only what was done with a repair of this name.
        """
        whole("limit", limit, 1, MOST_MESSAGES)
        start, end = moment("since", since), moment("until", until)
        criteria = AuditCriteria(
            below=LAST_SEQUENCE if before is None else whole("before", before, 1, LAST_SEQUENCE),
            since=0 if start is None else start,
            until=1 << 62 if end is None else end,
            queue=None if queue is None else str(EntityPath.parse(queue)).lower(),
            actor=None if actor is None else text("actor", actor, LONGEST_ACTOR),
            action=None if action is None else text("action", action, LONGEST_ACTOR),
            detail=None if repair is None else detail_of_repair(text("repair", repair, LONGEST_ACTOR)),
        )
        return look(self._store, lambda tx: read_audit(tx, criteria, limit))

    # -- the store ------------------------------------------------------------------------------

    def facts(self) -> Mapping[str, Any]:
        """Return the store's settings and sizes."""
        return self._store.facts()

    def check(self) -> list[str]:
        """Read the whole store and return the problems found; an empty result means none."""
        return self._store.check()

    def close(self) -> None:
        """Close the broker. Waiting callers get BrokerClosed. Everything acknowledged is safe."""
        self._maintenance.stop()
        # Should it fail, others find out that this process is gone.
        with contextlib.suppress(LazarettoError):
            if self._store.read(lambda tx: tx.workers.needs_heartbeat()):
                self._store.run(Leave())
        self._store.close()
