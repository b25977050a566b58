"""Does the same, at random, to two stores: claims lock ranges in one and each message in the other."""

from __future__ import annotations

import contextlib
import difflib
import pprint
import random
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

import lazaretto
from lazaretto import Broker, ManualClock, Message, PoisonPolicy, QueueOptions
from lazaretto.broker.claims import ClaimConsumer
from lazaretto.engine.claims.settle_claims import StagedRow, staged_rows
from lazaretto.engine.messages.prepare import prepare
from lazaretto.engine.messages.settle import COMPLETE, Settle, Settled, Settlement
from lazaretto.engine.timers import CleanUp, Sweep
from lazaretto.errors import LazarettoError
from lazaretto.model.clock import to_datetime
from lazaretto.model.entities import EntityPath
from lazaretto.model.failure import Failure
from lazaretto.model.keys import lower_bound, queue_of, sequence_of
from lazaretto.model.messages import Lock
from lazaretto.model.policy import Disposition, Outcome

_OUTCOMES = (
    Outcome.FAILED, Outcome.RELEASED, Outcome.DEFERRED, Outcome.DEAD_LETTERED, Outcome.INVALID,
    Outcome.COMPLETED,
)  # fmt: skip
_VERBS = ("complete", "abandon", "defer", "dead_letter", "renew_lock")
_POLICIES = (
    PoisonPolicy(receive_retry_count=1, max_retry_cycles=1, retry_cycle_delay=20.0),
    PoisonPolicy.service_bus(2),
    PoisonPolicy(receive_retry_count=0, on_poison=Disposition.DROP),
)
PATH = "work"


def options(random: random.Random) -> QueueOptions:
    """Return some options of a queue."""
    return QueueOptions(
        lock_duration=random.choice((10, 40)),
        policy=random.choice(_POLICIES),
        partitions=random.choice((1, 1, 3)),
        max_size=random.choice((None, 1 << 30)),
        default_time_to_live=random.choice((None, None, None, 90)),
        kept_samples=random.choice((0, 20)),
    )


class Side:
    """One of the stores, opened twice: each broker comes upon what the other one has done."""

    def __init__(self, url: str, *, ranges: bool) -> None:
        self.clock = ManualClock()
        self.brokers = [lazaretto.connect(url, clock=self.clock) for _ in range(2)]
        for slot, broker in enumerate(self.brokers):
            broker._store._tx.context.claims_ranges = ranges
            # Which partitions are its homes must not depend on its name, which has a random part.
            broker._store._memory.homes.slot = slot
        self.consumers: list[ClaimConsumer] = []
        self.held: list[Any] = []
        #: The latest stage of each shard, by consumer, claim and the shard's place.
        self.stages: dict[tuple[str, int, int], str] = {}

    def close(self) -> None:
        """Close it."""
        for broker in self.brokers:
            broker.close()

    def settle_down(self) -> None:
        """Do all that is due, until nothing is."""
        store = self.brokers[0]._store
        while store.run(Sweep()) or store.read(lambda tx: tx.anything_due()):
            pass

    def attach(self, broker: Broker, name: str, lease: float) -> int:
        """Become the driver of a consumer."""
        consumer = ClaimConsumer(broker._store, PATH, name, lease=lease)
        self.consumers = [one for one in self.consumers if one.name != name] + [consumer]
        return consumer.attach()

    def of(self, name: str) -> ClaimConsumer | None:
        """Return a consumer that has a driver."""
        return next((one for one in self.consumers if one.name == name), None)

    def plain(self, answer: Any) -> Any:
        """Return an answer in which the other side's workers have the same names."""
        text = msgspec.json.encode(answer, enc_hook=repr).decode()
        for number, broker in enumerate(self.brokers):
            text = text.replace(broker._store.worker, f"worker {number}")
        return msgspec.json.decode(text)

    def numbers(self, shard: Any) -> list[int]:
        """Return what a shard holds, by keys."""
        return self.brokers[0]._store.read(lambda tx: tx.claims.shard_keys(shard, 1_000))


class Claimants:
    """Both stores, and what happens to them."""

    def __init__(self, seed: int, locked: str, ranged: str) -> None:
        self.random = random.Random(seed)
        self.sides = [Side(locked, ranges=False), Side(ranged, ranges=True)]
        self._sent = 0
        #: How often a range locked something.
        self.ranges = 0
        self.claims = 0
        chosen = options(self.random)
        self.both(lambda side, _: side.brokers[0].create_queue("other") and None, works=True)
        self.both(lambda side, _: side.brokers[0].create_queue(PATH, chosen) and None, works=True)
        self.both(lambda side, broker: side.attach(broker, "job", 300.0), works=True)

    def close(self) -> None:
        """Close both."""
        for side in self.sides:
            side.close()

    def both(self, do: Callable[[Side, Broker], Any], *, works: bool = False) -> Any:
        """Do the same to both: the answers must be the same. Where it `works`, none may be an error."""
        which = self.random.randrange(2)
        answers: list[Any] = []
        for side in self.sides:
            try:
                answers.append(side.plain(do(side, side.brokers[which])))
            except LazarettoError as error:
                if works:
                    raise
                answers.append(side.plain(f"{type(error).__name__}: {error}"))
        locked, ranged = answers
        assert locked == ranged, f"\n{_apart(locked, ranged)}"
        return ranged

    # -- what may happen ------------------------------------------------------------------------

    def step(self) -> None:
        """Do one thing at random, and compare all there is."""
        verbs: dict[Callable[[], None], int] = {
            self.send: 8, self.take: 10, self.read: 5, self.stage: 8, self.settle: 4, self.attach: 2,
            self.receive: 5, self.settle_held: 5, self.wait: 3, self.revoke: 1, self.by_number: 2,
            self.deferred: 1, self.by_token: 2, self.forward: 1, self.status: 1, self.letters: 2,
            self.look: 3, self.clean: 1, self.anew: 1, self.whole: 2, self.cancel: 1,
        }  # fmt: skip
        (verb,) = self.random.choices(list(verbs), list(verbs.values()))
        verb()
        self.compare()

    def send(self) -> None:
        messages = []
        for _ in range(self.random.choice((1, 3, 10, 30))):
            self._sent += 1
            messages.append(
                Message(
                    b"%d" % self._sent * self.random.choice((1, 1, 300)),
                    message_id=f"m{self._sent}",
                    partition_key=f"p{self._sent % 5}",
                    time_to_live=self.random.choice((None, None, None, None, 15)),
                )
            )
        later = self.random.choice((None, None, None, 25))

        def do(side: Side, broker: Broker) -> Any:
            sender = broker.sender(PATH)
            if later is None:
                return sender.send(messages)
            # At different times: what comes due at the same moment comes in any order on a server.
            at = side.clock.now() + later * 1_000_000 + self._sent
            return [sender.schedule(one, to_datetime(at + n)) for n, one in enumerate(messages)]

        self.both(do)

    def _name(self) -> str:
        return self.random.choice(("job", "job", "job", "another"))

    def attach(self) -> None:
        name, lease = self._name(), self.random.choice((20.0, 300.0))
        self.both(lambda side, broker: side.attach(broker, name, lease))

    def take(self) -> None:
        name = self._name()
        wanted: dict[str, Any] = {
            "max_rows": self.random.choice((1, 4, 20, 1_000)),
            "max_bytes": self.random.choice((1, 500, 1 << 20)),
            "shards": self.random.choice((1, 2, 5)),
        }
        bounded = self.random.random() < 0.2

        def do(side: Side, broker: Broker) -> Any:
            consumer = side.of(name)
            if consumer is None:
                return None
            last = consumer.last_sequences() if bounded else None
            taken = max((one.number for one in broker.claims(PATH) if one.consumer == name), default=0)
            return consumer.take(taken, last=last, **wanted)

        if self.both(do) is not None:
            self.claims += 1
            if self.sides[1].brokers[0]._store.read(_any_claimed):
                self.ranges += 1

    def _shards(self, side: Side, name: str) -> Iterator[tuple[ClaimConsumer, Any, Any]]:
        consumer = side.of(name)
        if consumer is not None:
            for claim, shard in consumer.shards(0, 1 << 40):
                yield consumer, claim, shard

    def read(self) -> None:
        name, part, begun, marked = (
            self._name(),
            self.random.random(),
            self.random.random(),
            self.random.random(),
        )

        def do(side: Side, broker: Broker) -> Any:
            found = list(self._shards(side, name))
            if not found:
                return None
            consumer, claim, shard = found[int(part * len(found))]
            careful = consumer.start(shard.token, "a task", begun=begun < 0.7)
            keys = side.numbers(shard)
            if keys and marked < 0.3:
                consumer.mark(shard.token, keys[int(marked / 0.3 * len(keys))])
            return claim.number, careful, keys

        self.both(do)

    def stage(self) -> None:
        name, part, seed = self._name(), self.random.random(), self.random.random()
        share = self.random.choice((0.0, 0.0, 0.3, 1.0))
        leave = self.random.choice((0.0, 0.0, 0.2))

        def do(side: Side, broker: Broker) -> Any:
            found = list(self._shards(side, name))
            if not found:
                return None
            consumer, claim, shard = found[int(part * len(found))]
            own = random.Random(seed)
            completed, others = [], []
            for key in side.numbers(shard):
                if own.random() < leave:
                    continue
                if own.random() >= share:
                    completed.append(key)
                    continue
                outcome = own.choice(_OUTCOMES)
                sends = (
                    [("other", [prepare(Message(b"sent", message_id=f"of {key}"))])]
                    if own.random() < 0.1
                    else []
                )
                failure = Failure("ValueError", "no", "a stack") if outcome is Outcome.FAILED else None
                others.append(StagedRow(key, outcome.value, failure, sends=sends))
            place = shard.token - claim.token
            stage = side.stages[name, claim.number, place] = f"{len(side.stages)} {name} {seed}"
            consumer.stage(stage, staged_rows(shard.token, completed, others, {}))
            return len(completed), len(others)

        self.both(do)

    def settle(self) -> None:
        name = self._name()
        every = self.random.random() < 0.3

        def do(side: Side, broker: Broker) -> Any:
            consumer = side.of(name)
            if consumer is None:
                return None
            numbers = [one.number for one in broker.claims(PATH) if one.consumer == name]
            numbers = sorted(numbers)[-3:] if every else sorted(numbers)[-1:]
            stages = [
                stage for (who, number, _), stage in side.stages.items() if who == name and number in numbers
            ]
            found = consumer.settle(numbers, stages)
            return [msgspec.structs.replace(one, seconds={}, stages=[]) for one in found]

        self.both(do)

    def whole(self) -> None:
        name, share = self._name(), self.random.random()

        def do(side: Side, broker: Broker) -> Any:
            found = list(self._shards(side, name))
            if not found:
                return None
            consumer, claim, shard = found[0]
            keys = side.numbers(shard)
            failed = {
                sequence_of(key): (Outcome.FAILED, Failure("ValueError", "no"))
                for key in keys[: int(share * 3)]
            }
            summary = consumer.settle_whole(claim.number, failed)
            return summary and msgspec.structs.replace(summary, seconds={}, stages=[])

        self.both(do)

    def revoke(self) -> None:
        name = self._name()
        self.both(lambda side, _: (one := side.of(name)) and one.revoke(why="so it is"))

    def receive(self) -> None:
        count, path = (
            self.random.choice((1, 2, 6)),
            self.random.choice((PATH, PATH, PATH, f"{PATH}/$deadletterqueue")),
        )

        def do(side: Side, broker: Broker) -> Any:
            receiver = broker.receiver(path)
            found = receiver.receive(count)
            side.held += [(receiver, message) for message in found]
            return [(one.sequence_number, one.body, one.attempt, one.delivery_count) for one in found]

        self.both(do)

    def settle_held(self) -> None:
        verb, part = self.random.choice(_VERBS), self.random.random()

        def do(side: Side, broker: Broker) -> Any:
            if not side.held:
                return None
            receiver, message = side.held[int(part * len(side.held))]
            if verb != "renew_lock":
                side.held.remove((receiver, message))
            getattr(receiver, verb)(message)
            return message.sequence_number

        self.both(do)

    def _some(self, side: Side) -> list[int]:
        return [one.sequence_number for one in side.brokers[0].peek(PATH, 1_000)]

    def by_number(self) -> None:
        part, count = self.random.random(), self.random.choice((1, 2))

        def do(side: Side, broker: Broker) -> Any:
            numbers = self._some(side)
            start = int(part * len(numbers))
            if not numbers:
                return None
            receiver = broker.receiver(PATH)
            found = receiver.receive_by_number(numbers[start : start + count])
            side.held += [(receiver, message) for message in found]
            return [(one.sequence_number, one.attempt) for one in found]

        self.both(do)

    def deferred(self) -> None:
        part = self.random.random()

        def do(side: Side, broker: Broker) -> Any:
            numbers = self._some(side)
            if not numbers:
                return None
            receiver = broker.receiver(PATH)
            found = receiver.receive_deferred(numbers[int(part * len(numbers))])
            side.held += [(receiver, message) for message in found]
            return [(one.sequence_number, one.attempt) for one in found]

        self.both(do)

    def cancel(self) -> None:
        part = self.random.random()

        def do(side: Side, broker: Broker) -> Any:
            numbers = self._some(side)
            return broker.sender(PATH).cancel(numbers[int(part * len(numbers))]) if numbers else None

        self.both(do)

    def by_token(self) -> None:
        """Settle messages with the token of their shard, as nobody should."""
        part, fails = self.random.random(), self.random.random() < 0.5

        def do(side: Side, broker: Broker) -> Any:
            found = list(self._shards(side, "job"))
            if not found:
                return None
            _, _, shard = found[int(part * len(found))]
            keys = side.numbers(shard)[:2]
            if not keys:
                return None
            lock = Lock(EntityPath.parse(PATH), shard.token, side.clock.now() + 1)
            (message, *_) = broker.peek(PATH, 1, sequence_of(keys[0]))
            held = _ReceivedLike(keys[0], lock, message)
            settlement = Settlement(Outcome.FAILED, Failure("ValueError", "no")) if fails else COMPLETE
            return len(broker._store.run(Settle([Settled(held, settlement)])))  # type: ignore[arg-type]

        self.both(do)

    def forward(self) -> None:
        target = self.random.choice((None, "other"))

        self.both(lambda _, broker: broker.update_queue(PATH, forward_to=target) and None)
        if target is not None:
            self.compare()
            self.both(lambda _, broker: broker.update_queue(PATH, forward_to=None) and None)

    def status(self) -> None:
        wanted = self.random.choice(("disabled", "receive_disabled", "active"))
        self.both(lambda _, broker: broker.set_status(PATH, wanted) and None)
        self.compare()
        self.both(lambda _, broker: broker.set_status(PATH, "active") and None)

    def letters(self) -> None:
        verb = self.random.choice(("resubmit", "purge"))

        def do(_: Side, broker: Broker) -> Any:
            numbers = [one.sequence_number for one in broker.dead_letters(PATH)][:3]
            return getattr(broker, verb)(PATH, numbers) if numbers else None

        self.both(do)

    def look(self) -> None:
        """Explain a message."""
        part = self.random.random()

        def do(side: Side, broker: Broker) -> Any:
            numbers = self._some(side)
            if not numbers:
                return None
            number = numbers[int(part * len(numbers))]
            row = broker._store.read(lambda tx: tx.row(_first(tx) + number))
            assert row is not None
            told = broker.message_history(PATH, number), broker.attempts(PATH, number)
            return row.state, row.due, row.deliveries, row.lock_token is None, row.locked_at, told

        self.both(do)

    def wait(self) -> None:
        for_seconds = self.random.choice((1, 12, 30, 100))
        self.both(lambda side, _: side.clock.advance(for_seconds))

    def clean(self) -> None:
        self.both(lambda _, broker: broker._store.run(CleanUp()) and None)

    def anew(self) -> None:
        """Delete the queue, and make it again."""
        if self.random.random() < 0.5:
            return
        chosen = options(self.random)

        def do(side: Side, broker: Broker) -> Any:
            broker.delete_queue(PATH)
            while broker._store.run(CleanUp()):
                pass
            broker.create_queue(PATH, chosen)
            side.consumers.clear()
            side.held.clear()
            side.stages.clear()
            side.attach(broker, "job", 20.0)

        self.both(do)

    # -- comparing ------------------------------------------------------------------------------

    def compare(self) -> None:
        """Compare all that anybody can see."""
        for side in self.sides:
            side.settle_down()
        self.both(self._seen, works=True)

    def _seen(self, side: Side, broker: Broker) -> Any:
        shown = {
            path: [{**msgspec.structs.asdict(one), "body_id": None} for one in broker.peek(path, 1_000)]
            for path in (PATH, f"{PATH}/$deadletterqueue", "other")
        }
        claims = [
            (c.consumer, c.number, c.state, c.rows, c.bytes, c.shards, c.reads, c.lease_until, c.outcomes)
            for c in broker.claims(PATH)
        ]
        queue = broker.queue(PATH)
        keys = [
            side.numbers(shard) for name in ("job", "another") for _, _, shard in self._shards(side, name)
        ]
        events = sorted((e.kind, e.queue, e.sequence_number or 0) for e in broker.events(limit=10_000))
        samples = broker._store.read(lambda tx: tx.samples.of_queue(queue_of(_first(tx))))
        return shown, claims, queue.counts, queue.status, keys, events, samples


class _ReceivedLike:
    """What settling needs of a received message."""

    def __init__(self, key: int, lock: Lock, message: Any) -> None:
        self.key, self.lock = key, lock
        self.body_id = message.body_id
        self.sequence_number = message.sequence_number
        self.deliveries = self.attempt = 1

    def __getattr__(self, name: str) -> Any:
        return None


def _any_claimed(tx: Any) -> bool:
    return bool(tx.context.any_claimed())


def _first(tx: Any) -> int:
    queue = tx.queues.by_path(PATH)
    return lower_bound(queue.queue_id)


def run(seed: int, steps: int, locked: str, ranged: str) -> Claimants:
    """Do so much at random; return what was done."""
    with contextlib.closing(Claimants(seed, locked, ranged)) as both:
        for _ in range(steps):
            both.step()
        both.both(lambda _, broker: broker.check(), works=True)
        assert both.sides[1].brokers[0].check() == []
    return both


def _apart(locked: Any, ranged: Any) -> str:
    """Return the lines in which two answers differ."""
    before, after = (pprint.pformat(answer, width=100).splitlines() for answer in (locked, ranged))
    return "\n".join(difflib.unified_diff(before, after, n=1, lineterm=""))
