"""Sessions: locked by one receiver, in order, with a state."""

from __future__ import annotations

import threading
from datetime import UTC, datetime

import pytest

from lazaretto import (
    NEXT_SESSION,
    Broker,
    InvalidMessage,
    LazarettoError,
    ManualClock,
    Message,
    MessageLockLost,
    MessageNotFound,
    MessageState,
    MessageTooLarge,
    NotAllowed,
    PoisonPolicy,
    Receiver,
    SessionCannotBeLocked,
    SessionLockLost,
)

from .actions import bodies, create, send, states
from .conftest import Connect


@pytest.fixture(autouse=True)
def queue(broker: Broker) -> None:
    create(broker, requires_session=True, lock_duration=30)


def _fill(broker: Broker, **bodies_of: str) -> None:
    """Send one message for each letter, to the session of that name."""
    for session, letters in bodies_of.items():
        for letter in letters:
            send(broker, letter.encode(), session_id=session)


class TestLock:
    """A session belongs to one receiver at a time."""

    def test_nobody_else_gets_it(self, connect: Connect, broker: Broker) -> None:
        broker.receiver("q", session="a")
        for other in (broker, connect()):
            with pytest.raises(SessionCannotBeLocked, match="session 'a' of 'q' is locked by another"):
                other.receiver("q", session="a")

    def test_it_need_not_have_messages(self, broker: Broker, clock: ManualClock) -> None:
        receiver = broker.receiver("q", session="empty")
        assert receiver.session_id == "empty"
        assert receiver.session_locked_until == datetime.fromtimestamp(clock.now() / 1e6 + 30, UTC)
        assert receiver.receive() == []

    def test_closing_frees_it_and_what_it_held(self, broker: Broker) -> None:
        _fill(broker, a="xy")
        with broker.receiver("q", session="a") as receiver:
            assert bodies(receiver.receive(2)) == [b"x", b"y"]
        (x, y) = broker.receiver("q", session="a").receive(2)
        assert [(m.body, m.delivery_count) for m in (x, y)] == [(b"x", 0), (b"y", 0)]

    def test_one_is_accepted_without_receiving(self, broker: Broker) -> None:
        _fill(broker, a="x", b="y")
        first, second, third = (broker.receiver("q", session=NEXT_SESSION) for _ in range(3))
        assert [first.accept_session(), second.accept_session(), third.accept_session()] == ["a", "b", None]
        assert first.accept_session() == first.session_id == "a"
        with pytest.raises(SessionCannotBeLocked):
            broker.receiver("q", session="a")
        assert bodies(first.receive()) == [b"x"]
        with pytest.raises(NotAllowed, match="session=…"):
            broker.receiver("q").accept_session()

    def test_it_runs_out(self, broker: Broker, clock: ManualClock) -> None:
        _fill(broker, a="x")
        receiver = broker.receiver("q", session="a")
        held = receiver.receive()
        clock.advance(30)
        for call in (receiver.receive, lambda: receiver.complete(held), receiver.get_session_state,
                     lambda: receiver.set_session_state(b""), receiver.renew_session_lock):  # fmt: skip
            with pytest.raises(SessionLockLost, match="the lock on session 'a' of 'q' is no longer held"):
                call()
        assert broker.receiver("q", session="a").receive()[0].delivery_count == 1

    def test_renewed_it_holds(self, broker: Broker, clock: ManualClock) -> None:
        _fill(broker, a="x")
        receiver = broker.receiver("q", session="a")
        held = receiver.receive()
        for _ in range(5):
            clock.advance(29)
            until = receiver.renew_session_lock()
        assert until == receiver.session_locked_until
        receiver.complete(held)

    def test_a_message_has_no_lock_of_its_own(self, broker: Broker) -> None:
        _fill(broker, a="x")
        receiver = broker.receiver("q", session="a")
        with pytest.raises(NotAllowed, match="renew its session's"):
            receiver.renew_lock(receiver.receive())

    def test_a_former_holders_settle_changes_nothing(self, broker: Broker, clock: ManualClock) -> None:
        _fill(broker, a="x")
        former = broker.receiver("q", session="a")
        held = former.receive()
        clock.advance(30)
        current = broker.receiver("q", session="a")
        again = current.receive()
        with pytest.raises(SessionLockLost):
            former.complete(held)
        current.complete(again)

    def test_a_message_settled_twice(self, broker: Broker) -> None:
        _fill(broker, a="x")
        receiver = broker.receiver("q", session="a")
        held = receiver.receive()
        receiver.complete(held)
        with pytest.raises(MessageLockLost):
            receiver.complete(held)


class TestJoining:
    """Whoever knows the name under which a session was locked uses the lock, also in another process."""

    @pytest.fixture
    def holder(self, broker: Broker) -> Receiver:
        _fill(broker, a="xy")
        holder = broker.receiver("q", session=NEXT_SESSION)
        assert holder.accept_session(name="link 1") == "a"
        return holder

    def test_another_process_uses_the_lock(
        self, connect: Connect, broker: Broker, holder: Receiver, clock: ManualClock
    ) -> None:
        x, y = holder.receive(2)
        holder.defer(y)
        other = connect()
        joined = other.receiver("q")
        joined.join_session("a", "link 1")
        assert joined.session_locked_until == holder.session_locked_until
        joined.set_session_state(b"half")
        assert holder.get_session_state() == b"half"
        clock.advance(20)
        assert joined.renew_session_lock() == datetime.fromtimestamp(clock.now() / 1e6 + 30, UTC)
        clock.advance(20)
        assert x.lock_token is not None
        joined.complete([*joined.messages_held(x.lock_token), *joined.receive_deferred(y.sequence_number)])
        # The lock is the holder's, who releases it.
        joined.close()
        with pytest.raises(SessionCannotBeLocked):
            other.receiver("q", session="a")
        holder.close()
        assert other.receiver("q", session="a").receive() == []

    def test_only_by_its_name_and_while_it_is_held(
        self, broker: Broker, holder: Receiver, clock: ManualClock
    ) -> None:
        for session, name in (("a", "link 2"), ("b", "link 1")):
            with pytest.raises(SessionLockLost, match=f"session '{session}' of 'q' is not locked under"):
                broker.receiver("q").join_session(session, name)
        joined = broker.receiver("q")
        joined.join_session("a", "link 1")
        clock.advance(30)
        # Locked again, it is another lock.
        again = broker.receiver("q", session="a")
        for call in (joined.renew_session_lock, lambda: joined.set_session_state(b"late")):
            with pytest.raises(SessionLockLost):
                call()
        with pytest.raises(SessionLockLost):
            broker.receiver("q").join_session("a", "link 1")
        assert again.get_session_state() is None

    def test_what_cannot_join(self, broker: Broker, holder: Receiver) -> None:
        with pytest.raises(NotAllowed, match="without a session"):
            holder.join_session("a", "link 1")
        for name in ("", "x" * 257, 1):
            with pytest.raises(LazarettoError):
                broker.receiver("q").join_session("a", name)  # type: ignore[arg-type]
            with pytest.raises(LazarettoError):
                broker.receiver("q", session=NEXT_SESSION).accept_session(name=name)  # type: ignore[arg-type]


class TestOrder:
    """Within a session messages are handed out in order."""

    def test_only_its_own(self, broker: Broker) -> None:
        _fill(broker, a="13", b="24")
        assert bodies(broker.receiver("q", session="b").receive(9)) == [b"2", b"4"]
        assert bodies(broker.receiver("q", session="a").receive(9)) == [b"1", b"3"]

    def test_an_abandoned_message_is_the_next_one_again(self, broker: Broker) -> None:
        _fill(broker, a="xyz")
        receiver = broker.receiver("q", session="a")
        receiver.abandon(receiver.receive())
        assert bodies(receiver.receive(3)) == [b"x", b"y", b"z"]

    def test_later_ones_wait_behind_a_delayed_one(self, broker: Broker, clock: ManualClock) -> None:
        _fill(broker, a="xyz", b="w")
        receiver = broker.receiver("q", session="a")
        receiver.abandon(receiver.receive(), delay=10)
        assert receiver.receive(3) == []
        assert bodies(broker.receiver("q", session="b").receive()) == [b"w"]
        clock.advance(10)
        assert bodies(receiver.receive(3)) == [b"x", b"y", b"z"]

    def test_a_dead_letter_leaves_a_hole_and_the_rest_goes_on(self, broker: Broker) -> None:
        _fill(broker, a="xyz")
        receiver = broker.receiver("q", session="a")
        receiver.dead_letter(receiver.receive())
        assert bodies(receiver.receive(3)) == [b"y", b"z"]

    def test_a_deferred_message_by_its_own_session_alone(self, broker: Broker) -> None:
        _fill(broker, a="x", b="y")
        one, other = broker.receiver("q", session="a"), broker.receiver("q", session="b")
        (message,) = one.receive()
        one.defer(message)
        with pytest.raises(MessageNotFound):
            other.receive_deferred(message.sequence_number)
        one.complete(one.receive_deferred(message.sequence_number))


class TestNext:
    """The next session that is free and has something to receive."""

    @staticmethod
    def _accept(broker: Broker) -> tuple[Receiver, str | None]:
        receiver = broker.receiver("q", session=NEXT_SESSION)
        receiver.receive()
        return receiver, receiver.session_id

    def test_each_receiver_gets_another(self, broker: Broker) -> None:
        _fill(broker, a="1", b="2", c="3")
        assert {self._accept(broker)[1] for _ in range(3)} == {"a", "b", "c"}
        assert self._accept(broker)[1] is None

    def test_none_starves(self, broker: Broker) -> None:
        _fill(broker, a="1" * 9, b="2" * 9, c="3" * 9)
        turns = []
        for _ in range(6):
            receiver, session = self._accept(broker)
            turns.append(session)
            receiver.close()
        assert turns == ["a", "b", "c", "a", "b", "c"]

    def test_it_waits_for_one(self, broker: Broker) -> None:
        found: list[bytes] = []
        receiver = broker.receiver("q", session=NEXT_SESSION)
        thread = threading.Thread(
            target=lambda: found.extend(bodies(receiver.receive(max_wait=120))), daemon=True
        )
        thread.start()
        _fill(broker, a="x")
        thread.join(120)
        assert (found, receiver.session_id) == ([b"x"], "a")

    def test_a_session_that_is_freed_wakes_who_waits(self, broker: Broker) -> None:
        _fill(broker, a="x")
        holder = broker.receiver("q", session="a")
        found: list[bytes] = []
        receiver = broker.receiver("q", session=NEXT_SESSION)
        thread = threading.Thread(
            target=lambda: found.extend(bodies(receiver.receive(max_wait=120))), daemon=True
        )
        thread.start()
        holder.close()
        thread.join(120)
        assert found == [b"x"]

    def test_one_held_back_by_a_delay_is_passed_over(self, broker: Broker) -> None:
        _fill(broker, a="12", b="3")
        with broker.receiver("q", session="a") as receiver:
            receiver.abandon(receiver.receive(), delay=60)
        assert self._accept(broker)[1] == "b"
        assert self._accept(broker)[1] is None

    def test_nothing_held_yet(self, broker: Broker) -> None:
        receiver = broker.receiver("q", session=NEXT_SESSION)
        assert (receiver.receive(), receiver.session_id, receiver.session_locked_until) == ([], None, None)
        with pytest.raises(NotAllowed, match="holds no session"):
            receiver.get_session_state()


class TestState:
    """A session's own bytes."""

    def test_it_outlives_receivers_and_messages(self, broker: Broker, connect: Connect) -> None:
        with broker.receiver("q", session="a") as receiver:
            assert receiver.get_session_state() is None
            receiver.set_session_state(b"\x00step 2")
        assert connect().receiver("q", session="a").get_session_state() == b"\x00step 2"

    def test_none_clears(self, broker: Broker) -> None:
        with broker.receiver("q", session="a") as receiver:
            receiver.set_session_state(b"x")
            receiver.set_session_state(None)
            assert receiver.get_session_state() is None
        assert broker.sessions("q") == []

    def test_empty_is_not_none(self, broker: Broker) -> None:
        receiver = broker.receiver("q", session="a")
        receiver.set_session_state(b"")
        assert receiver.get_session_state() == b""

    def test_limits(self, broker: Broker) -> None:
        receiver = broker.receiver("q", session="a")
        receiver.set_session_state(b"x" * 262_144)
        with pytest.raises(MessageTooLarge, match="at most 262144 bytes, got 262145"):
            receiver.set_session_state(b"x" * 262_145)
        with pytest.raises(InvalidMessage, match="to be bytes or None, got 'x'"):
            receiver.set_session_state("x")  # type: ignore[arg-type]
        assert len(receiver.get_session_state() or b"") == 262_144

    def test_sessions_are_listed(self, broker: Broker) -> None:
        _fill(broker, b="1")
        with broker.receiver("q", session="a") as receiver:
            receiver.set_session_state(b"x")
        lock = broker.receiver("q", session="c")
        assert broker.sessions("q") == ["a", "b", "c"]
        lock.close()
        assert broker.sessions("q") == ["a", "b"]


class TestRefusals:
    """Sessions where there are none, and none where there must be."""

    def test_a_message_without_a_session(self, broker: Broker) -> None:
        with pytest.raises(InvalidMessage, match="a message needs a session_id"):
            send(broker, b"x")

    def test_receiving_without_a_session(self, broker: Broker) -> None:
        with pytest.raises(NotAllowed, match="requires sessions: receive with session="):
            broker.receiver("q").receive()

    def test_a_session_of_a_queue_without(self, broker: Broker) -> None:
        create(broker, "plain")
        with pytest.raises(NotAllowed, match="has no sessions"):
            broker.receiver("plain", session="a")

    def test_a_session_of_a_dead_letter_subqueue(self, broker: Broker) -> None:
        with pytest.raises(NotAllowed, match="has no sessions"):
            broker.receiver("q;poison", session="a")

    def test_a_session_id_is_carried_by_a_queue_without_sessions(self, broker: Broker) -> None:
        create(broker, "plain")
        send(broker, b"x", path="plain", session_id="a")
        assert broker.receiver("plain").receive()[0].session_id == "a"


class TestEmptyId:
    """The empty text is a session like others."""

    def test_it_comes_first_and_in_turn(self, broker: Broker) -> None:
        for session in ("b", "", "a"):
            send(broker, session.encode() + b"!", session_id=session)
        assert broker.sessions("q") == ["", "a", "b"]
        assert broker.sessions("q", after="") == ["a", "b"]
        found = []
        for _ in range(3):
            with broker.receiver("q", session=NEXT_SESSION) as receiver:
                (message,) = receiver.receive(5)
                found.append((receiver.session_id, message.session_id, message.body))
                receiver.complete(message)
        assert found == [("", "", b"!"), ("a", "a", b"a!"), ("b", "b", b"b!")]

    def test_nobody_waits_while_others_take_turns(self, broker: Broker) -> None:
        _fill(broker, a="1234")
        send(broker, b"5", session_id="")
        taken = []
        for _ in range(3):
            with broker.receiver("q", session=NEXT_SESSION) as receiver:
                taken.append(receiver.receive()[0].session_id)
                assert receiver.session_id == taken[-1]
        assert taken == ["", "a", ""]

    def test_its_lock_state_and_messages(self, broker: Broker) -> None:
        send(broker, b"1", session_id="")
        send(broker, b"2", session_id="")
        receiver = broker.receiver("q", session="")
        with pytest.raises(SessionCannotBeLocked, match="session '' of 'q' is locked"):
            broker.receiver("q", session="")
        assert bodies(broker.peek("q", 5, session_id="")) == [b"1", b"2"]
        receiver.set_session_state(b"state")
        (first,) = receiver.receive()
        receiver.defer(first)
        (first,) = receiver.receive_deferred([first.sequence_number])
        receiver.complete(first)
        receiver.dead_letter(receiver.receive())
        assert receiver.get_session_state() == b"state"
        (letter,) = broker.dead_letters("q")
        assert letter.message is not None
        assert letter.message.session_id == ""
        assert broker.session("q", "").has_state

    @pytest.mark.partitioned
    def test_its_order_in_any_queue(self, broker: Broker, queues: str) -> None:
        create(broker, "p", requires_session=True)
        for number in range(8):
            send(broker, b"%d" % number, path="p", session_id="")
        receiver = broker.receiver("p", session="")
        assert bodies(receiver.receive(8)) == [b"%d" % number for number in range(8)]


def test_dead_letters_are_read_without_a_session_and_keep_its_id(broker: Broker) -> None:
    _fill(broker, a="x")
    receiver = broker.receiver("q", session="a")
    receiver.dead_letter(receiver.receive())
    (message,) = broker.receiver("q;poison").receive()
    assert (message.body, message.session_id) == (b"x", "a")


def test_a_poison_message_does_not_stop_its_session(broker: Broker) -> None:
    broker.update_queue("q", policy=PoisonPolicy.service_bus(2))
    _fill(broker, a="xyz")
    receiver = broker.receiver("q", session="a")
    for _ in range(2):
        receiver.abandon(receiver.receive())
    assert bodies(receiver.receive(3)) == [b"y", b"z"]
    assert states(broker, "q;poison") == [(b"x", MessageState.ACTIVE)]


def test_many_sessions_whose_locks_run_out_at_once(broker: Broker, clock: ManualClock) -> None:
    names = [f"s{n:03}" for n in range(400)]
    with broker.sender("q") as sender:
        sender.send([Message(b"x", session_id=name) for name in names])
    for name in names:
        broker.receiver("q", session=name).receive()
    clock.advance(30)
    (message,) = broker.receiver("q", session=names[-1]).receive()
    assert (message.session_id, message.delivery_count) == (names[-1], 1)


class TestListing:
    """Sessions by name."""

    def test_active_ones(self, broker: Broker) -> None:
        _fill(broker, a="x", b="x", c="x")
        with broker.receiver("q", session="b") as receiver:
            receiver.defer(receiver.receive())
        with broker.receiver("q", session="c") as receiver:
            receiver.complete(receiver.receive())
            receiver.set_session_state(b"s")
        with broker.receiver("q", session="locked"):
            assert broker.sessions("q") == ["a", "b", "c", "locked"]
            assert broker.sessions("q", active=True) == ["a", "c"]

    def test_a_page_at_a_time(self, broker: Broker, clock: ManualClock) -> None:
        _fill(broker, a="xx", b="x", d="x", e="x")
        for session in ("b", "c"):
            with broker.receiver("q", session=session) as receiver:
                receiver.set_session_state(b"s")
        past = datetime.fromtimestamp(clock.now() / 1e6 - 1, UTC)
        for kind, expected in (({}, "abcde"), ({"active": True}, "abcde"), ({"state_set_after": past}, "bc")):
            found: list[str] = []
            while page := broker.sessions("q", limit=2, after=found[-1] if found else None, **kind):
                assert len(page) <= 2
                found += page
            assert "".join(found) == expected
        # One that is gone is no longer a page's beginning, and still its place.
        with broker.receiver("q", session="b") as receiver:
            receiver.complete(receiver.receive())
            receiver.set_session_state(None)
        assert broker.sessions("q", limit=2, after="b") == ["c", "d"]
        assert broker.sessions("q", after="e") == []
        with pytest.raises(LazarettoError, match="limit"):
            broker.sessions("q", limit=0)

    def test_those_whose_state_was_set_later(self, broker: Broker, clock: ManualClock) -> None:
        _fill(broker, a="x", b="x")
        for session in ("a", "b", "none"):
            with broker.receiver("q", session=session) as receiver:
                receiver.set_session_state(b"1")
        clock.advance(1)
        since = datetime.fromtimestamp(clock.now() / 1e6, UTC)
        assert broker.sessions("q", state_set_after=since) == []
        clock.advance(1)
        for session, state in (("b", b"2"), ("none", None)):
            with broker.receiver("q", session=session) as receiver:
                receiver.set_session_state(state)
        assert broker.sessions("q", state_set_after=since) == ["b"]
