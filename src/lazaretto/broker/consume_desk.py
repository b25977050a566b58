"""`consume`: calls a handler with the messages of a queue, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from lazaretto.broker.consume import Consumer, ConsumeReport, OwnLoop, Stop
from lazaretto.broker.handling.functions import HandlerFunction
from lazaretto.broker.receiver import Receiver
from lazaretto.broker.settling import NextSession
from lazaretto.engine.entities.queues import require_queue
from lazaretto.errors import InvalidOption
from lazaretto.model.checks import GivenDuration, flag, function, seconds, shown, whole
from lazaretto.model.entities import EntityPath, Subqueue
from lazaretto.model.messages import MOST_MESSAGES
from lazaretto.store.sql.store import Store


class ConsumeDesk:
    """The consumer loop of a broker."""

    _store: Store

    if TYPE_CHECKING:

        def receiver(
            self, path: str, *, subqueue: str | None = None, session: str | NextSession | None = None
        ) -> Receiver: ...

    def consume(
        self,
        path: str,
        handler: HandlerFunction,
        *,
        batch_size: int = 100,
        subqueue: str | None = None,
        session: str | NextSession | None = None,
        stop: Stop | None = None,
        stop_when_idle: bool = False,
        max_wait: GivenDuration = 0.0,
        on_batch: Callable[[ConsumeReport], object] | None = None,
    ) -> ConsumeReport:
        """Call `handler` with each message, in this thread, and settle each batch in one commit.

        `handler`: a function of a message, or of a message and its HandlerContext; sync or async. If it
        returns, the message is completed. If it raises, the attempt has failed and the poison policy applies;
        InvalidMessage means that the message can never succeed. Runs until `stop` is set, or, with
        `stop_when_idle`, until nothing arrives for `max_wait` seconds; dead letters that fail are then tried
        only once. NEXT_SESSION processes one session after the other. `on_batch` is called with the report
        after each batch. Raises HandlerError for what can be no handler, before the first message, and
        PoisonMessageError when the queue is halted.
        """
        whole("batch_size", batch_size, 1, MOST_MESSAGES)
        wait = seconds("max_wait", max_wait)
        flag("stop_when_idle", stop_when_idle)
        function("on_batch", on_batch)
        if stop is not None and not callable(getattr(stop, "is_set", None)):
            raise InvalidOption(
                f"expected stop to be an Event of threading or asyncio, or None, got {shown(stop)}"
            )
        parsed = EntityPath.parse(path, subqueue)
        options = self._store.read(lambda tx: require_queue(tx, parsed)).options
        with self.receiver(path, subqueue=subqueue, session=session) as receiver:
            return Consumer(
                self._store,
                receiver,
                handler,
                batch_size,
                self._store.clock.now,
                # What runs the coroutines of asyncio stops the consumer, too.
                stop if isinstance(stop, OwnLoop) else OwnLoop(),
                stop,
                stop_when_idle,
                wait,
                on_batch,
                roams=isinstance(session, NextSession),
                retries_for_ever=options.policy_of(parsed.subqueue) is None,
                whole=options.whole_sessions and parsed.subqueue is Subqueue.MAIN,
            ).run()
