"""A service host's hand-overs go out whole: no lock is held while the network is waited for."""

from __future__ import annotations

import multiprocessing
import threading
from collections import Counter
from typing import Any

import pytest

import lazaretto
from lazaretto import Broker, Message, PoisonPolicy, QueueOptions, ReceivedMessage
from lazaretto.engine.workers.leases import Handover, Take
from lazaretto.host import Handler, HandlerContext, ServiceHost
from lazaretto.model.entities import EntityPath
from lazaretto.store.postgres import writer_commits

from .witness import Witness, store_of, waits_under_a_lock

_WORK = EntityPath.parse("work")


@pytest.mark.parametrize("options", [{}, {"batch_size": 1}, {"concurrency": 3, "batch_bytes": 300_000}])
@pytest.mark.parametrize("partitions", [1, 4])
def test_no_handover_waits_under_a_lock(
    hosts: tuple[Broker, Broker],
    witness: Witness,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    partitions: int,
) -> None:
    # A process that finds itself alone commits in another way.
    monkeypatch.setattr(writer_commits, "_LONE_COMMITS", 1 << 40)
    one, other = hosts
    policy = PoisonPolicy(receive_retry_count=3)
    one.create_queue("much", QueueOptions(policy=policy, partitions=partitions))
    one.create_queue("done")
    once, twice = threading.Event(), threading.Event()
    seen: Counter[bytes] = Counter()
    done: set[bytes] = set()

    def work(message: ReceivedMessage, context: HandlerContext) -> None:
        seen[message.body] += 1
        if message.body.startswith(b"bad") and message.attempt == 1:
            raise ValueError("not the first time")
        context.send("done", Message(message.body))

    def finish(message: ReceivedMessage) -> None:
        done.add(message.body)
        if len(done) >= 60:
            (twice if once.is_set() else once).set()

    sender, said = other.sender("much"), witness.writing(one)

    def send(turn: int) -> None:
        for n in range(60):
            sender.send(Message(b"%s %d %d" % (b"bad" if n % 10 == 0 else b"good", turn, n)))

    handlers = [
        Handler("much", work, isolation="inline", **options),
        Handler("done", finish, isolation="inline"),
    ]
    with ServiceHost(one, handlers):
        # The first time, what holds for long is asked, and the process registers as a worker.
        send(0)
        assert once.wait(120)
        done.clear()
        said.clear()
        send(1)
        assert twice.wait(120)
        told = list(said)
    assert not waits_under_a_lock(told)
    assert all(times == 1 + body.startswith(b"bad") for body, times in seen.items())
    assert one.check() == []


def test_the_first_receive_of_a_process_waits_for_nothing_under_a_lock(url: str, witness: Witness) -> None:
    with lazaretto.connect(url) as other:
        other.create_queue("work")
        other.sender("work").send([Message(b"x")] * 3)
        for path in ("receive", "take"):
            with lazaretto.connect(witness.url(url)) as one:
                said = witness.writing(one)
                said.clear()
                if path == "receive":
                    assert one.receiver("work").receive(1)
                else:
                    assert take(one, 2).messages
                assert not waits_under_a_lock(said), path


def take(broker: Broker, limit: int, **options: Any) -> Handover:
    operation = Take(_WORK, limit, **options)
    found = store_of(broker).run(operation)
    assert isinstance(found, Handover)
    assert operation.handed == found
    return found


def test_a_handover_has_its_lease_and_the_past_of_its_messages(hosts: tuple[Broker, Broker]) -> None:
    one, _ = hosts
    one.update_queue("work", policy=PoisonPolicy(receive_retry_count=5))
    one.sender("work").send([Message(b"%d" % n) for n in range(6)])
    first = take(one, 1)
    one.receiver("work").abandon(first.messages, error=ValueError("it failed"))
    for started in (True, False):
        found = take(one, 3, started=started)
        leases = store_of(one).read(lambda tx: tx.workers.leases_of(tx.worker))
        (lease,) = [lease for lease in leases if lease.token == found.lock.token]
        assert lease.keys == [message.key for message in found.messages]
        assert (lease.started, lease.session_id) == (started, None)
        if started:
            (past,) = found.past.values()
            assert (past.error_type, past.error_message) == ("ValueError", "it failed")
            assert list(found.past) == [found.messages[0].key] == [first.messages[0].key]
        else:
            assert found.past == {}


def test_a_handover_is_a_host_s_share_and_fits_into_a_size(hosts: tuple[Broker, Broker]) -> None:
    one, _ = hosts
    one.receiver("work").receive(1)
    sender = one.sender("work")
    sender.send([Message(b"x" * 1000)] * 22)
    # Of a process's first one, all is read before; the others find what they take themselves.
    assert [len(take(one, 100, sharers=lambda: 5).messages) for _ in range(4)] == [5, 4, 3, 2]
    assert [len(take(one, 2, sharers=lambda: 5).messages) for _ in range(2)] == [2, 2]
    sender.send([Message(b"x" * 1000)] * 8 + [Message(b"x" * 9_000)] * 2)
    assert len(take(one, 50, most_bytes=3_500).messages) == 3
    assert len(take(one, 50, sharers=lambda: 2, most_bytes=3_500).messages) == 3
    assert len(take(one, 50, sharers=lambda: 6, most_bytes=3_500).messages) == 2
    assert [len(take(one, 50, most_bytes=3_500).messages) for _ in range(4)] == [3, 1, 1, 1]


def _serve(url: str, out: str) -> None:
    """Work off a queue in a process of its own, and send on what comes."""

    def work(message: ReceivedMessage, context: HandlerContext) -> None:
        if message.attempt == 1 and message.sequence_number % 10 == 0:
            raise ValueError("not the first time")
        context.send(out, Message(message.body))

    with lazaretto.connect(url) as broker:
        handler = Handler("work", work, isolation="inline", concurrency=2, batch_size=5)
        with ServiceHost(broker, [handler]) as host:
            end = threading.Event()
            while not end.wait(0.05) and broker.queue("work").counts.total:
                assert host.running


def test_hosts_in_several_processes_pass_on_each_message_once(url: str) -> None:
    with lazaretto.connect(url) as owner:
        owner.create_queue("work", QueueOptions(policy=PoisonPolicy(receive_retry_count=3)))
        owner.create_queue("out")
        bodies = [b"%d" % n for n in range(400)]
        owner.sender("work").send([Message(body) for body in bodies])
        context = multiprocessing.get_context("spawn")
        processes = [context.Process(target=_serve, args=(url, "out")) for _ in range(3)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(90)
            assert process.exitcode == 0
        found = [message.body for message in owner.receiver("out").receive(1000)]
        assert sorted(found) == sorted(bodies)
        with owner.transaction() as tx:
            assert tx.execute("SELECT count(*) FROM lazaretto_leases").fetchone() == (0,)
        assert owner.check() == []
