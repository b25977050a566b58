"""The event log, which programs follow from a position, and the audit log."""

from __future__ import annotations

import getpass
import threading
import time
from datetime import timedelta

import pytest

import lazaretto.engine.log
from lazaretto import Broker, BrokerClosed, EntityExists, Event, InvalidOption, ManualClock
from lazaretto.engine.log import actor_name
from lazaretto.model.actors import Actor
from lazaretto.model.clock import to_datetime

from .actions import create, fail, kinds, send, set_aside
from .conftest import Connect


class TestEvents:
    """Events in order, from a position on."""

    def test_what_an_event_tells(self, broker: Broker, clock: ManualClock) -> None:
        create(broker, "Orders")
        (event,) = broker.events()
        assert event == Event(1, to_datetime(clock.now()), "queue_created", "Orders", None, {})

    def test_followed_from_a_position(self, broker: Broker) -> None:
        position, seen = 0, []
        for n in range(5):
            create(broker, f"q{n}")
            for event in broker.events(position):
                seen.append(event.queue)
                position = event.position
        assert seen == [f"q{n}" for n in range(5)]
        assert broker.events(position) == []
        assert position == broker.last_event()

    def test_a_page_at_a_time(self, broker: Broker) -> None:
        create(broker)
        set_aside(broker, *[b"x"] * 5)
        first = broker.events(limit=4)
        rest = broker.events(first[-1].position, limit=4)
        assert [e.position for e in first + rest] == [1, 2, 3, 4, 5, 6]

    def test_of_one_kind_or_one_queue(self, broker: Broker) -> None:
        create(broker, "A")
        create(broker, "b")
        set_aside(broker, b"x", path="a")
        assert kinds(broker.events(queue="a")) == ["queue_created", "dead_lettered"]
        assert [e.queue for e in broker.events(kind="queue_created")] == ["A", "b"]
        assert len(broker.events(kind="queue_created", queue="B")) == 1

    def test_an_unknown_kind_gets_a_suggestion(self, broker: Broker) -> None:
        with pytest.raises(
            InvalidOption, match=r"unknown kind of event 'dead_letter'; did you mean 'dead_lettered'"
        ):
            broker.events(kind="dead_letter")

    def test_an_event_is_part_of_its_commit(self, broker: Broker) -> None:
        """What was rolled back is not told."""
        create(broker)
        send(broker, b"x", b"y")
        receiver = broker.receiver("q")
        messages = receiver.receive(2)
        receiver.complete(messages[1])
        with pytest.raises(lazaretto.MessageLockLost):
            receiver.dead_letter(messages)
        assert kinds(broker.events()) == ["queue_created"]

    def test_they_survive_a_restart(self, connect: Connect) -> None:
        first = connect()
        create(first)
        before = first.events()
        first.close()
        assert connect().events() == before

    def test_positions_are_never_used_again(self, connect: Connect, clock: ManualClock) -> None:
        first = connect()
        create(first)
        last = first.last_event()
        first.close()
        second = connect()
        create(second, "other")
        assert second.last_event() == last + 1

    def test_every_kind_is_described(self) -> None:
        for kind, text in lazaretto.engine.log.EVENT_KINDS.items():
            assert kind.isidentifier()
            assert text.endswith(".")


class TestWaiting:
    """Waiting for the next event."""

    def test_nothing_happened(self, broker: Broker) -> None:
        start = time.monotonic()
        assert broker.events(broker.last_event(), max_wait=0.02) == []
        assert time.monotonic() - start >= 0.02

    @pytest.mark.parametrize("mine", [True, False])
    def test_woken_by_this_broker_or_another(self, broker: Broker, connect: Connect, mine: bool) -> None:
        other = broker if mine else connect()
        found: list[Event] = []
        thread = threading.Thread(target=lambda: found.extend(broker.events(0, max_wait=120)), daemon=True)
        thread.start()
        create(other)
        thread.join(120)
        assert kinds(found) == ["queue_created"]

    def test_only_what_is_asked_for_ends_the_wait(self, broker: Broker) -> None:
        found: list[Event] = []
        thread = threading.Thread(
            target=lambda: found.extend(broker.events(0, kind="dead_lettered", max_wait=120)), daemon=True
        )
        thread.start()
        create(broker)
        set_aside(broker, b"x")
        thread.join(120)
        assert kinds(found) == ["dead_lettered"]

    def test_closing_ends_it(self, broker: Broker) -> None:
        errors: list[Exception] = []

        def wait() -> None:
            try:
                broker.events(0, max_wait=None)
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        end = time.monotonic() + 120
        while not broker._store.notifier.waiting and time.monotonic() < end:
            time.sleep(0.001)
        broker.close()
        thread.join(120)
        assert [type(error) for error in errors] == [BrokerClosed]


class TestAudit:
    """Who did what, when, to which messages."""

    def test_every_operators_action(self, broker: Broker, clock: ManualClock) -> None:
        create(broker, receive_retry_count=0)
        for _ in range(2):
            send(broker, b"x")
            fail(broker)
        broker.update_queue("q", lock_duration=5, actor="ann")
        broker.resubmit("q", 1, actor="bob")
        clock.advance(60)
        broker.purge("q", 2, actor="eve")
        broker.delete_queue("q", actor="ann")
        found = broker.audit()
        assert [(e.actor, e.action) for e in found] == [
            ("ann", "delete"),
            ("eve", "purge"),
            ("bob", "resubmit"),
            ("ann", "update"),
            (actor_name(), "create"),
        ]
        assert found[1].time - found[2].time == timedelta(seconds=60)
        assert [e.detail.get("sequence_numbers") for e in found] == [None, [2], [1], None, None]

    def test_the_user_of_the_process_by_default(self, broker: Broker) -> None:
        create(broker)
        broker.update_queue("q", lock_duration=5)
        assert broker.audit()[0].actor.startswith(f"{getpass.getuser()}@")

    def test_of_one_queue_and_limited(self, broker: Broker) -> None:
        for path in ("A", "b"):
            create(broker, path)
            for seconds in (5, 6, 7):
                broker.update_queue(path, lock_duration=seconds)
        assert [e.queue for e in broker.audit(queue="a")] == ["A"] * 4
        assert [e.queue for e in broker.audit(limit=5)] == ["b"] * 4 + ["A"]

    def test_by_pages_actors_actions_and_times(self, broker: Broker, clock: ManualClock) -> None:
        create(broker)
        for place, actor in enumerate(("ann", "bob", "ann", "bob")):
            broker.update_queue("q", lock_duration=5 + place, actor=actor)
            broker.set_status("q", ("disabled", "active")[place % 2], actor=actor)
            clock.advance(60)
        whole = broker.audit()
        assert [e.actor for e in broker.audit(actor="ann")] == ["ann"] * 4
        assert broker.audit(actor="Ann") == []
        assert [e.action for e in broker.audit(actor="ann", action="update")] == ["update"] * 2
        first = broker.audit(limit=3)
        assert first + broker.audit(before=first[-1].position) == whole
        assert broker.audit(since=whole[4].time) == whole[:6]
        assert broker.audit(until=whole[4].time) == whole[6:]
        assert whole[-1].action == "create"
        assert broker.audit(queue="q", actor="bob", since=whole[0].time) == whole[:2]
        for wrong in ({"before": 0}, {"actor": 5}, {"since": "today"}, {"repair": 5}):
            with pytest.raises(InvalidOption):
                broker.audit(**wrong)

    def test_of_one_repair(self, broker: Broker) -> None:
        """Also where names begin alike."""
        create(broker)
        set_aside(broker, b"x")
        names = ("mend", "mend-it", "m_nd", "Mend")
        for name in names:
            plan = broker.plan_repair("q", [1], name=name, actor="ann")
            plan.set_pace(rate=5, actor="ann")
            plan.apply(actor=Actor.at("bob", "10.0.0.1"))
            plan.pause()
            broker.set_breaker("q", "open")
            plan.resume()
            plan.cancel()
        for name in names:
            found = broker.audit(repair=name)
            assert [e.action for e in found] == [
                f"repair: {verb}" for verb in ("cancel", "resume", "pause", "apply", "pace", "plan")
            ]
            assert {e.detail["repair"] for e in found} == {name}
            assert broker.audit(repair=name, limit=2, before=found[1].position, actor="ann") == found[4:]
        assert broker.audit(repair="men") == []

    def test_what_creates_an_entity(self, broker: Broker) -> None:
        broker.create_queues(["a", "shop/b"], actor="ann")
        broker.create_queue("c")
        broker.create_topic("t", actor="bob")
        broker.create_subscription("t", "s", actor="eve")
        with pytest.raises(EntityExists):
            broker.create_queue("A", actor="ann")
        assert [(e.actor, e.action, e.queue) for e in broker.audit()] == [
            ("eve", "create", "t/subscriptions/s"),
            ("bob", "create", "t"),
            (actor_name(), "create", "c"),
            ("ann", "create", "shop/b"),
            ("ann", "create", "a"),
        ]

    def test_what_changes_nothing_is_not_audited(self, broker: Broker) -> None:
        create(broker, lock_duration=5)
        before = broker.audit()
        broker.update_queue("q", lock_duration=5)
        broker.resubmit("q", 99)
        broker.purge("q", 99)
        assert broker.audit() == before
