"""Moves tokens between queues in every way there is, each time in another order, and never loses one."""

from __future__ import annotations

import functools
import random
import sys
import threading
import time

import lazaretto
from lazaretto import Broker, DeadLetterFilter, Message, Outcome, ReceivedMessage
from lazaretto.broker.claims import ClaimConsumer, _keys_of
from lazaretto.dialogs import DialogMessage
from lazaretto.engine.claims.settle_claims import StagedRow, staged_rows
from lazaretto.engine.messages.prepare import prepare_all
from lazaretto.store.records.claims import ShardRecord
from lazaretto.store.sql.transaction import Transaction

QUEUES = ("a", "b", "c")
#: Where tokens are sent: to queues, through one that forwards, and through a topic.
PLACES = (*QUEUES, "through", "news")
FRONT, SHOP, TALK, WORD = "//test/Front", "//test/Shop", "//test/Talk", "//test/Word"
THREADS = 2


class Mover:
    """One thread's random moves."""

    def __init__(self, broker: Broker, seed: str) -> None:
        self._broker = broker
        self._draw = random.Random(seed)
        self._seed = seed
        #: Its consumer of claims of each queue, and the last claim of each.
        self._claims: dict[str, tuple[ClaimConsumer, int]] = {}
        param = "?" if "sqlite" in broker.facts() else "%s"
        self._count = f"UPDATE moves SET n = n + 1 WHERE place = {param}"
        self.moves = 0

    def _copies(self, messages: list[ReceivedMessage]) -> list[Message]:
        draw = self._draw
        draw.shuffle(messages)
        return [Message(m.body, properties={"side": draw.randrange(2)}) for m in messages]

    def move(self) -> None:
        """Move tokens from two queues to two places, with SQL between, in one commit."""
        draw = self._draw
        sources, targets = draw.sample(QUEUES, 2), draw.sample(PLACES, 2)
        with self._broker.transaction() as tx:
            messages = [m for path in sources for m in tx.receive(path, draw.randrange(1, 4))]
            copies = self._copies(messages)
            half = len(copies) // 2
            tx.send(targets[0], copies[:half])
            if draw.random() < 0.5:
                # Rows of one's own are locked in one order, as in any transactions on a server.
                for path in sorted(sources):
                    tx.execute(self._count, (path,))
                self.moves += 2
            tx.send(targets[1], copies[half:])

    def settle(self) -> None:
        """Settle messages of two queues in one commit, each in its own way."""
        draw = self._draw
        with self._broker.transaction() as tx:
            for path in draw.sample(QUEUES, 2):
                for message in tx.receive(path, 3):
                    draw.choice([tx.abandon, tx.release, tx.dead_letter])(message)

    def claim(self) -> None:
        """Take messages as a claim; send each on in the commit that settles it, or have it failed."""
        draw, store = self._draw, self._broker._store
        source, target = draw.choice(QUEUES), draw.choice(PLACES)
        if source not in self._claims:
            consumer = ClaimConsumer(store, source, self._seed)
            self._claims[source] = consumer, consumer.attach()
        consumer, last = self._claims[source]
        number = consumer.take(last, max_rows=4, shards=2)
        if number is None:
            return
        for _, shard in consumer.shards(last, number):
            consumer.start(shard.token, self._seed)
            consumer.stage("done", staged_rows(shard.token, [], self._outcomes(shard, target), {}))
        consumer.settle([number], ["done"])
        self._claims[source] = consumer, number
        consumer.trim(last)

    def _outcomes(self, shard: ShardRecord, target: str) -> list[StagedRow]:
        draw, store = self._draw, self._broker._store
        found: list[StagedRow] = []
        for key in store.read(functools.partial(_keys_of, shard)):
            body = store.read(functools.partial(_body, key))
            message = Message(body, properties={"side": draw.randrange(2)})
            sent = [(target, prepare_all([message]))]
            outcome = draw.choice(
                [Outcome.COMPLETED, Outcome.COMPLETED, Outcome.DEAD_LETTERED, Outcome.RELEASED]
            )
            found.append(StagedRow(key, outcome.value, sends=sent if outcome is Outcome.COMPLETED else []))
        return found

    def resubmit(self) -> None:
        """Send dead letters back, as an operator does."""
        self._broker.resubmit(self._draw.choice(QUEUES), DeadLetterFilter())

    def ask(self) -> None:
        """Begin a dialog, and move a token in the same commit."""
        source, target = self._draw.sample(QUEUES, 2)
        with self._broker.dialogs.transaction() as work:
            copies = self._copies(work.messages.receive(source, 1))
            handle = work.begin_dialog(FRONT, SHOP, TALK)
            work.send(handle, WORD, b"ask")
            work.messages.send(target, copies)

    def answer(self) -> None:
        """Answer what was asked, or end what was answered."""
        queue = self._draw.choice(["shop", "front"])
        with self._broker.dialogs.transaction(queue) as work:
            messages: list[DialogMessage] = work.receive(max_messages=5)
            for message in messages:
                if message.type == WORD and queue == "shop":
                    work.send(message.conversation, WORD, b"answer")
                elif message.type == WORD or queue == "shop":
                    work.end(message.conversation)


def _body(key: int, tx: Transaction) -> bytes:
    return tx.body(key)


def main(place: str, name: str, seconds: float) -> None:
    """Move for some seconds in several threads, and print how many rows were counted up. Errors end it."""
    errors: list[BaseException] = []
    movers: list[Mover] = []
    end = time.monotonic() + seconds

    def run(mover: Mover) -> None:
        draw = random.Random(id(mover))
        verbs = [
            mover.move,
            mover.move,
            mover.settle,
            mover.resubmit,
            mover.ask,
            mover.answer,
            mover.answer,
            mover.claim,
        ]
        try:
            # On a busy machine the first move may come late.
            while time.monotonic() < end or not mover.moves:
                draw.choice(verbs)()
        except BaseException as error:
            errors.append(error)

    with lazaretto.connect(place, timeout=60) as broker:
        movers += [Mover(broker, f"{name}-{n}") for n in range(THREADS)]
        threads = [threading.Thread(target=run, args=(mover,)) for mover in movers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for error in errors:
        raise error
    print(sum(mover.moves for mover in movers))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
