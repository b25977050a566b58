"""A link on which a client receives from a queue or a subscription."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from lazaretto.aio import AsyncReceiver
from lazaretto.aio.posting import Receiving, choose_suspects, lose_client
from lazaretto.errors import BrokerClosed, LazarettoError, SessionLockLost, SettlementError
from lazaretto.model.messages import Lock, ReceivedMessage, Suspects
from lazaretto.servicebus.amqp import Delivery, Link
from lazaretto.servicebus.amqp.performatives import DeliveryState, Outcome, Rejected, TransactionalState
from lazaretto.servicebus.answers import (
    INTERNAL,
    Settlement,
    Verb,
    condition_of,
    description_of,
    echo,
    rejected,
    settlement_of,
)
from lazaretto.servicebus.conversions import encode_message
from lazaretto.servicebus.order import BEFORE_RECEIVING, Kind
from lazaretto.servicebus.server import Client
from lazaretto.servicebus.transactions import in_transaction
from lazaretto.servicebus.trials import ClientWork

if TYPE_CHECKING:
    from datetime import datetime


#: Messages that are received at once for one link.
MOST_AT_ONCE: Final = 200
#: Seconds until a session's lock is looked at again that has run out here and not in the store.
_SOON: Final = 0.01


class Consumer:
    """Hands messages over as the client gives credit, and nothing beyond that."""

    def __init__(
        self, client: Client, link: Link, path: str, receiver: AsyncReceiver, *, deletes: bool, blames: bool
    ) -> None:
        self._client = client
        self._link = link
        self.path = path
        self.receiver = receiver
        self.deletes = deletes
        self._gone = False
        self._order = client.links.order(link)
        self._changed = asyncio.Event()
        self._waiting: asyncio.Task[list[ReceivedMessage]] | None = None
        self._spare: list[ReceivedMessage] = []
        self._receiving = Receiving(receiver)
        self._trials = client.trials
        #: What its client works on, if that is to tell whom a lost connection is charged to.
        self._work: ClientWork | None = None
        #: What it worked on and what it had not begun when the connection was lost.
        self._lost: tuple[list[ReceivedMessage], list[ReceivedMessage]] | None = None
        if blames:
            self._work = ClientWork(client.door.widths.get(path, 0))
            choose_suspects(receiver, self)
        #: For how many messages the store is asked that no task awaits.
        self._asked = 0
        #: Done once the receiver is closed, and its session free.
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = client.start(self._serve())
        # A task that is cancelled before it begins runs nothing of its own.
        self._task.add_done_callback(lambda _: client.start(self._close()))
        self._keeping = None if receiver.session_id is None else client.start(self._keep_session())

    @property
    def name(self) -> str:
        """The link's name, which its client chose."""
        return self._link.name

    @property
    def alive(self) -> bool:
        """Whether the link is still attached."""
        return not self._task.done()

    def look(self) -> None:
        """Look at the link's credit again: it changed, or the client reads again."""
        if self._waiting is None and not self._asked and not self._spare and not self._link.drain:
            self._ask()
        self._changed.set()
        if self._link.drain or self._link.credit <= 0:
            self.stop_waiting()

    @property
    def holds(self) -> bool:
        """Whether its client has messages of it."""
        return self._link.unsettled > 0

    @property
    def asks(self) -> bool:
        """Whether it is about to get some."""
        return self._asked > 0 or self._waiting is not None

    def choose(self) -> Suspects:
        """Return what a receive does about suspects."""
        return self._trials.choose(self)

    def wants_skipped(self) -> bool:
        """Return whether a suspect that was skipped is for this connection to try."""
        return self._trials.claim(self)

    def stop_waiting(self) -> None:
        """Wait for messages no longer."""
        if self._waiting is not None:
            # A receive that is cancelled gives its messages back.
            self._waiting.cancel()

    def look_anew(self) -> None:
        """Ask again for messages: the entity at the path is another one now."""
        self.stop_waiting()
        self._changed.set()

    def lose(self) -> None:
        """Detach, because the client is gone without a goodbye."""
        if self._work is not None:
            self._lost = self._work.split()
        self.detach()

    def detach(self) -> None:
        """Stop handing over, and let the session go. Locks of messages stay with the client."""
        if self._work is not None:
            widths = self._client.door.widths
            widths[self.path] = max(self._work.width, widths.get(self.path, 0))
        self._gone = True
        self._task.cancel()
        if self._keeping is not None:
            self._keeping.cancel()

    async def _serve(self) -> None:
        try:
            while True:
                self._changed.clear()
                if self._room > 0 and not self._asked:
                    await self._feed()
                if self._full and self._link.drain and not self._asked:
                    # The client waits to hear that no more come.
                    self._link.session.finish_drain(self._link)
                    self._client.flush()
                if self._room <= 0 or self._asked:
                    await self._changed.wait()
        except (LazarettoError, OSError) as error:
            if not isinstance(error, BrokerClosed):
                self._link.session.detach(self._link, condition_of(error), description_of(error))
                self._client.flush()
        except Exception as error:
            self._fail(error)
            self._client.flush()

    async def _close(self) -> None:
        try:
            with contextlib.suppress(LazarettoError):
                if self._lost is not None and any(self._lost):
                    await self._lose(*self._lost)
            with contextlib.suppress(LazarettoError):
                await self.receiver.close()
        finally:
            self.closed.set_result(None)

    async def _lose(self, working: list[ReceivedMessage], waiting: list[ReceivedMessage]) -> None:
        """End what the client held whose connection is lost."""
        door, together = self._client.door, False
        if any(message.suspect for message in working):
            together = await door.losses.others(self._client.grants.address, self._client)
        await lose_client(door.broker, self.path, working, waiting, together=together)

    def _fail(self, error: Exception) -> None:
        """Detach the link for a fault: whoever waits on a link that is dead waits forever."""
        self._client.log_fault(error)
        self._link.session.detach(self._link, INTERNAL, description_of(error))

    @property
    def _room(self) -> int:
        """How many messages the client can have now."""
        if self._client.paused or self._trials.blocks(self):
            return 0
        return min(self._link.credit, self._client.door.limits.unsettled - self._link.unsettled)

    @property
    def _full(self) -> bool:
        """Whether the client asks for more and has all the messages that it may have."""
        link = self._link
        return link.attached and link.credit > 0 and link.unsettled >= self._client.door.limits.unsettled

    async def _keep_session(self) -> None:
        """Tell the client when its session's lock runs out. Without locks on messages, renew it instead."""
        session, until = self.receiver.session_id, self.receiver.session_locked_until
        while until is not None:
            rest = (until - self._client.door.now()).total_seconds()
            await self._client.door.sleep(max(rest / 2 if self.deletes else rest + 0.01, _SOON))
            until = await self._session_locked_until()
        link = self._link
        lost = SessionLockLost(f"the lock on session {session!r} expired")
        link.session.detach(link, condition_of(lost), description_of(lost))
        self._client.flush()
        self._task.cancel()

    async def _session_locked_until(self) -> datetime | None:
        """Return when the session's lock runs out now; None: it has."""
        if self.deletes:
            return await self.receiver.renew_session_lock()
        until, session = self.receiver.session_locked_until, self.receiver.session_id
        if until is None or session is None:
            # Its receiver has lost it, or given it up.
            return None
        if until <= self._client.door.now():
            # Another door may have renewed it.
            joined = self._client.door.broker.receiver(self.path)
            try:
                await joined.join_session(session, self._link.name)
            except LazarettoError:
                return None
            until = joined.session_locked_until
        return until

    def _ask(self) -> None:
        """Ask for what there is for the credit, before anything else that came with it is begun.

        A commit that delivers does not wait for the disk. So its messages are handed over while what the
        client settles with the same words goes there.
        """
        # What the client said before may bring back messages that come before those that there are.
        self._asked = 0 if self._order.blocks(BEFORE_RECEIVING) else min(self._room, MOST_AT_ONCE)
        if self._asked > 0 and self.alive:
            self._client.begin()
            self._receiving.receive(self._asked, self._take)
        else:
            self._asked = 0

    def _take(self, messages: list[ReceivedMessage] | None, error: BaseException | None) -> None:
        """Hand over what there was. If that is not all that was asked for, a task waits for more."""
        self._client.end()
        asked, self._asked = self._asked, 0
        self._spare += messages or ()
        if not self._spare:
            self._trials.give_up(self)
        try:
            self._offer()
        except Exception as fault:
            self._fail(fault)
            self._task.cancel()
        if self._spare and not self.deletes:
            back, self._spare = self._spare, []
            self._client.begin()
            then = functools.partial(self._given_back, self._order.begin(Kind.CHANGE))
            self._client.door.begin_to_settle(self.path, back, Settlement(Verb.RELEASE), then)
        if messages and len(messages) == asked and not self._link.drain:
            self._ask()
        if not self._asked:
            # What went wrong here meets the task too.
            self._changed.set()
        self._client.flush()

    def _given_back(self, number: int, _: object, error: BaseException | None) -> None:
        """Hear how it went to give messages back. If it cannot be done, their locks expire."""
        self._client.end()
        self._order.end(number)
        if error is not None and not isinstance(error, LazarettoError):
            self._client.log_fault(error)

    def _offer(self) -> bool:
        """Hand over what was received, as far as there is credit; return whether it was any."""
        room = self._link.credit if self._link.attached and not self._gone else 0
        if self._spare and not self._trials.take(self, self._spare):
            room = 0
        messages_, self._spare = self._spare[:room], self._spare[room:]
        self._hand_over(messages_)
        return bool(messages_)

    async def _feed(self) -> None:
        """Hand over what there is for the credit, or wait for the first that comes."""
        await self._order.turn(BEFORE_RECEIVING)
        link, drains = self._link, self._link.drain
        if self._room <= 0:
            return
        if not self._spare:
            wait = 0.0 if drains else None
            # Others get nothing while suspects are tried, so this one does not wait for more of them.
            wait = 0.0 if self._trials.is_tester(self) else wait
            receive = self.receiver.receive(min(self._room, MOST_AT_ONCE), wait)
            self._waiting = asyncio.ensure_future(receive)
            try:
                self._spare = await self._waiting
            except asyncio.CancelledError:
                if not self._waiting.cancelled() or self._task.cancelling():
                    self._waiting.cancel()
                    raise
                return
            finally:
                self._waiting = None
                self._trials.settled()
            if not self._spare and wait == 0.0:
                self._trials.give_up(self)
        handed_over = self._offer()
        if self._spare and not self.deletes:
            back, self._spare = self._spare, []
            await self.receiver.release(back)
        if drains and link.attached and link.drain and not handed_over:
            link.session.finish_drain(link)
        self._client.flush()

    def _hand_over(self, messages: Sequence[ReceivedMessage]) -> None:
        link = self._link
        transfer = link.session.transfer
        before: Lock | None = None
        head = swapped = b""
        if self._work is not None:
            self._work.begin(messages)
        for message in messages:
            lock = message.lock
            if lock is None or self.deletes:
                transfer(link, encode_message(message, deleted=True), b"", settled=True)
                continue
            # Messages received together share one object.
            if lock is not before:
                before, head = lock, lock.token.to_bytes(8, "big")
                # Service Bus's clients read the tag as a lock token in the byte order of Windows.
                swapped = head[3::-1] + head[5:3:-1] + head[7:5:-1]
            number = message.sequence_number.to_bytes(8, "big")
            payload = encode_message(message, token=head + number, locked_until=lock.until)
            transfer(link, payload, swapped + number, context=message)

    def settle(self, deliveries: Sequence[Delivery], state: DeliveryState | None, *, settled: bool) -> None:
        """Settle messages as the client says, and confirm it unless the client has settled already."""
        if self._work is not None:
            self._note_work(deliveries, state)
        if isinstance(state, TransactionalState):
            self._enlist(deliveries, state, settled)
            return
        self._settle(deliveries, state, settled)

    def _note_work(self, deliveries: Sequence[Delivery], state: DeliveryState | None) -> None:
        """Note what the client has done with messages. What it gives back it need not have begun."""
        assert self._work is not None
        with contextlib.suppress(LazarettoError):
            if (settlement := settlement_of(state)) is not None:
                begun = settlement.verb is not Verb.RELEASE
                self._work.end([delivery.context for delivery in deliveries], begun=begun)

    def _enlist(self, deliveries: Sequence[Delivery], state: TransactionalState, settled: bool) -> None:
        """Keep a settlement until its transaction commits. The lock goes on."""
        answer = in_transaction(state.txn_id, _without_error(state.outcome))
        try:
            settlement = settlement_of(state)
            if settlement is None:
                return
            work = self._client.transactions.enlist(state.txn_id, self.path)
            work.settle([delivery.context for delivery in deliveries], settlement)
        except LazarettoError as error:
            answer = rejected(error)
        self._answer(deliveries, answer, settled)

    def _settle(self, deliveries: Sequence[Delivery], state: DeliveryState | None, settled: bool) -> None:
        try:
            settlement = settlement_of(state)
        except LazarettoError as error:
            self._answer(deliveries, rejected(error), settled)
            return
        if settlement is not None:
            self._client.begin()
            number = self._order.begin(Kind.COMPLETE if settlement.verb is Verb.COMPLETE else Kind.CHANGE)
            then = functools.partial(self._settled, deliveries, state, settled, number)
            messages = [one.context for one in deliveries]
            begin = functools.partial(
                self._client.door.begin_to_settle, self.path, messages, settlement, then
            )
            self._order.when_due(number, begin)

    def _settled(
        self,
        deliveries: Sequence[Delivery],
        state: DeliveryState | None,
        settled: bool,
        number: int,
        _: object,
        error: BaseException | None,
    ) -> None:
        """Confirm a settlement, now that it is on disk, or tell why it cannot be."""
        self._client.end()
        self._order.end(number)
        if isinstance(error, SettlementError) and len(deliveries) > 1:
            # One lost lock must not keep the others from being settled.
            for delivery in deliveries:
                self._settle([delivery], state, settled)
        elif error is None:
            self._answer(deliveries, echo(state), settled)
        else:
            if not isinstance(error, LazarettoError):
                self._client.log_fault(error)
            # Who is not told would wait until its own time is over.
            self._answer(deliveries, rejected(error), settled)

    def _answer(self, deliveries: Sequence[Delivery], state: bytes, settled: bool) -> None:
        if not settled:
            self._link.session.settle_sent(deliveries, state)
        # A client with all the messages that it may have can have more now.
        self._changed.set()
        self._trials.settled()
        self._client.flush_soon()


def _without_error(outcome: Outcome | None) -> Outcome | None:
    """Return an outcome as it is confirmed: an error would say that it failed."""
    return Rejected() if isinstance(outcome, Rejected) else outcome
