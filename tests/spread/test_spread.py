"""Several stores used as one: where messages go, who gets them, and what holds for all stores together."""

from __future__ import annotations

import concurrent.futures
import datetime
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import lazaretto
from lazaretto import (
    BrokerClosed,
    EntityNotFound,
    InvalidMessage,
    InvalidOption,
    Message,
    MessageLockLost,
    MessageNotFound,
    NotAllowed,
    PartlySent,
    PoisonPolicy,
    QueueOptions,
    ReceivedMessage,
    TopicOptions,
)
from lazaretto.broker import store_of
from lazaretto.engine.entities.spreads import JoinSpread, SpreadMark, spread_mark
from lazaretto.spread import Placed, SpreadBroker, SpreadReceiver, connect
from lazaretto.store.addresses import copy_store

from .conftest import STORES

KEYS = [f"key-{number}" for number in range(20)]


def drain(receiver: SpreadReceiver, limit: int = 7) -> Iterator[ReceivedMessage]:
    """Yield all messages that a receiver gets, completed."""
    while found := receiver.receive(limit):
        receiver.complete(found)
        yield from found


def at_once(do: Callable[[], object]) -> None:
    """Have four threads do something at the same time. Raises what one of them raises."""
    start = threading.Barrier(4)

    def begin() -> None:
        start.wait()
        do()

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for doing in [pool.submit(begin) for _ in range(4)]:
            doing.result()


class TestSending:
    def test_a_key_has_one_store_and_one_order(self, spread: SpreadBroker) -> None:
        placed = defaultdict(set)
        sender = spread.sender("orders")
        for turn in range(3):
            found = sender.send([Message(b"%d" % turn, partition_key=key) for key in KEYS])
            for key, place in zip(KEYS, found, strict=True):
                placed[key].add(place.store)
        assert all(len(stores) == 1 for stores in placed.values())
        assert set.union(*placed.values()) == set(range(STORES))
        for key in KEYS:
            own = spread.broker_of(key).peek("orders", 100)
            assert [m.body for m in own if m.partition_key == key] == [b"0", b"1", b"2"]
        by_key = defaultdict(list)
        for message in drain(spread.receiver("orders")):
            by_key[message.partition_key].append(message.body)
        assert dict(by_key) == {key: [b"0", b"1", b"2"] for key in KEYS}

    def test_what_has_no_key_goes_home_in_one_commit(self, urls: list[str], spread: SpreadBroker) -> None:
        with connect(urls, home=2) as other:
            placed = other.sender("orders").send([Message(b"one"), Message(b"two", message_id="2")])
        assert [place.store for place in placed] == [2, 2]
        assert spread.broker_at(2).queue("orders").counts.active == 2
        assert spread.sender("orders").send(Message(b"three")).store == 0

    def test_one_message_gives_one_place(self, spread: SpreadBroker) -> None:
        sender = spread.sender("orders")
        place = sender.send(Message(b"x", session_id="s"))
        assert place == Placed(place.store, place.sequence_number)
        assert sender.send([]) == []

    def test_duplicates_are_found_whoever_sends_them(self, urls: list[str], spread: SpreadBroker) -> None:
        options = QueueOptions(requires_duplicate_detection=True, duplicate_detection_window=600)
        spread.each(lambda broker: broker.create_queue("once", options))
        for home in range(STORES):
            with connect(urls, home=home) as host:
                host.sender("once").send([Message(b"x", message_id=f"id-{n}") for n in range(10)])
        assert spread.counts("once").active == 10

    def test_a_sender_that_is_older_than_its_queue_finds_duplicates(self, spread: SpreadBroker) -> None:
        sender = spread.sender("once")
        messages = [Message(b"x", message_id=f"id-{n}") for n in range(10)]
        with pytest.raises(EntityNotFound):
            sender.send(messages)
        options = QueueOptions(requires_duplicate_detection=True, duplicate_detection_window=600)
        spread.each(lambda broker: broker.create_queue("once", options))
        places = [place.store for place in sender.send(messages)]
        assert places == [place.store for place in spread.sender("once").send(messages)]
        assert set(places) == set(range(STORES))

    def test_scheduled_messages_are_cancelled_where_they_are(self, spread: SpreadBroker) -> None:
        sender = spread.sender("orders")
        later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
        places = sender.schedule([Message(b"x", partition_key=key) for key in KEYS], later)
        assert spread.counts("orders").scheduled == len(KEYS)
        sender.cancel(places[:5])
        assert spread.counts("orders").scheduled == len(KEYS) - 5
        with pytest.raises(MessageNotFound):
            sender.cancel(places[0])
        one = sender.schedule(Message(b"y"), later)
        sender.cancel(one)

    def test_a_topic_routes_in_the_store_of_the_message(self, spread: SpreadBroker) -> None:
        spread.each(lambda broker: broker.create_topic("news", TopicOptions()))
        spread.each(lambda broker: broker.create_subscription("news", "all"))
        spread.sender("news").send([Message(b"x", partition_key=key) for key in KEYS])
        got = Counter(m.partition_key for m in drain(spread.receiver("news/subscriptions/all")))
        assert got == Counter(KEYS)

    def test_bad_messages_are_refused_before_any_is_sent(self, spread: SpreadBroker) -> None:
        bad: Any = "text"
        with pytest.raises(InvalidMessage):
            spread.sender("orders").send([Message(b"x", partition_key="a"), Message(bad, partition_key="b")])
        assert spread.counts("orders").total == 0

    def test_a_queue_that_is_missing_in_one_store(self, spread: SpreadBroker) -> None:
        spread.broker_at(1).delete_queue("orders")
        with pytest.raises(PartlySent) as caught:
            spread.sender("orders").send([Message(b"x", partition_key=key) for key in KEYS])
        assert isinstance(caught.value.__cause__, EntityNotFound)
        placed = caught.value.placed
        assert len(placed) == len(KEYS)
        missing = [key for key, place in zip(KEYS, placed, strict=True) if place is None]
        assert missing
        assert {spread.broker_of(key) for key in missing} == {spread.broker_at(1)}
        with pytest.raises(EntityNotFound):
            spread.sender("orders").send([Message(b"x", partition_key=key) for key in missing])
        with pytest.raises(EntityNotFound, match="no queue"):
            spread.counts("orders")


class TestReceiving:
    def test_every_store_is_received_from(self, spread: SpreadBroker) -> None:
        for place in range(STORES):
            spread.broker_at(place).sender("orders").send([Message(b"%d" % place)] * 5)
        got = Counter(message.body for message in drain(spread.receiver("orders"), limit=2))
        assert got == {b"0": 5, b"1": 5, b"2": 5}
        assert spread.counts("orders").total == 0

    def test_no_store_starves_while_the_home_is_busy(self, spread: SpreadBroker) -> None:
        spread.broker_at(2).sender("orders").send(Message(b"elsewhere"))
        spread.broker_at(0).sender("orders").send([Message(b"home")] * 100)
        receiver = spread.receiver("orders")
        got = [receiver.receive(1)[0].body for _ in range(3)]
        assert b"elsewhere" in got

    def test_one_who_waits_gets_what_comes_to_another_store(self, spread: SpreadBroker) -> None:
        receiver, got = spread.receiver("orders"), []
        waiting = threading.Thread(target=lambda: got.extend(receiver.receive(1, max_wait=30)))
        waiting.start()
        spread.broker_at(1).sender("orders").send(Message(b"x"))
        waiting.join(20)
        assert [message.body for message in got] == [b"x"]

    def test_verbs_settle_where_the_message_is(self, spread: SpreadBroker) -> None:
        policy = PoisonPolicy(receive_retry_count=5)
        spread.each(lambda broker: broker.update_queue("orders", policy=policy))
        spread.sender("orders").send([Message(key.encode(), partition_key=key) for key in KEYS])
        receiver = spread.receiver("orders")
        held: list[ReceivedMessage] = []
        while found := receiver.receive(3):
            held += found
        assert len(held) == len(KEYS)
        assert receiver.renew_lock(held) <= max(m.locked_until for m in held if m.locked_until)
        places = [receiver.place_of(message) for message in held[:4]]
        receiver.defer(held[:4])
        receiver.dead_letter(held[4:7], reason="Bad")
        receiver.abandon(held[7:10], error="no")
        receiver.release(held[10:12])
        receiver.complete(held[12:])
        counts = spread.counts("orders")
        assert (counts.deferred, counts.dead_letter, counts.active, counts.locked) == (4, 3, 5, 0)
        again = receiver.receive_deferred(places)
        assert [m.body for m in again] and {m.body for m in again} == {m.body for m in held[:4]}
        receiver.complete(again)
        dead = list(drain(spread.receiver("orders", subqueue="dead_letter")))
        assert {m.body for m in dead} == {m.body for m in held[4:7]}
        assert sorted(m.delivery_count for m in drain(receiver)) == [0, 0, 1, 1, 1]
        with pytest.raises(MessageLockLost):
            receiver.complete(held[-1])

    def test_deferred_messages_are_received_from_all_stores_or_none(self, spread: SpreadBroker) -> None:
        spread.sender("orders").send([Message(b"x", partition_key=key) for key in KEYS])
        receiver = spread.receiver("orders")
        places = []
        while found := receiver.receive(10):
            places += [receiver.place_of(message) for message in found]
            receiver.defer(found)
        with pytest.raises(MessageNotFound):
            receiver.receive_deferred([*places, Placed(places[-1].store, 1000)])
        assert spread.counts("orders").deferred == len(KEYS)
        assert len(receiver.receive_deferred(places)) == len(KEYS)

    def test_messages_are_in_their_store_while_another_thread_renews_them(self, spread: SpreadBroker) -> None:
        spread.sender("orders").send(Message(b"x", partition_key="a"))
        receiver = spread.receiver("orders")
        (message,) = receiver.receive()
        with spread.broker_of("a").receiver("orders") as plain:
            plain.renew_lock(message)
        receiver.complete(message)
        assert spread.counts("orders").total == 0

    def test_received_and_deleted(self, spread: SpreadBroker) -> None:
        spread.sender("orders").send([Message(b"x", partition_key=key) for key in KEYS])
        receiver = spread.receiver("orders", mode="receive_and_delete")
        got = 0
        while found := receiver.receive(5):
            got += len(found)
        assert got == len(KEYS)
        assert spread.counts("orders").total == 0

    def test_messages_that_no_spread_handed_out(self, spread: SpreadBroker) -> None:
        spread.sender("orders").send(Message(b"x"))
        (plain,) = spread.broker_at(0).receiver("orders").receive(1)
        receiver = spread.receiver("orders")
        bad: Any = "x"
        for given in (plain, [plain]):
            with pytest.raises(InvalidOption, match="spread's receiver"):
                receiver.complete(given)
        wrong: list[Any] = [bad, [bad], None]
        for given in wrong:
            with pytest.raises(InvalidOption, match="expected received messages"):
                receiver.complete(given)
        with pytest.raises(InvalidOption, match="at least one"):
            receiver.renew_lock([])
        places: list[Any] = [3, bad, None, Placed(STORES, 1), [Placed(-1, 1)]]
        for place in places:
            with pytest.raises(InvalidOption):
                receiver.receive_deferred(place)

    def test_sessions_of_all_stores_in_order(self, spread: SpreadBroker) -> None:
        spread.each(lambda broker: broker.create_queue("jobs", QueueOptions(requires_session=True)))
        for turn in range(3):
            spread.sender("jobs").send([Message(b"%d" % turn, session_id=key) for key in KEYS])
        assert spread.broker_of(KEYS[0]).receiver("jobs", session=KEYS[0]).receive(1)[0].body == b"0"
        got = {}
        while (receiver := spread.accept_next_session("jobs")) is not None:
            with receiver:
                found = receiver.receive(10)
                receiver.set_session_state(b"seen")
                receiver.complete(found)
                assert receiver.session_id is not None
                got[receiver.session_id] = [message.body for message in found]
        assert got == {key: [b"0", b"1", b"2"] for key in KEYS[1:]}
        assert spread.accept_next_session("jobs", max_wait=0.3) is None

    def test_no_session_starves_while_the_home_has_some(self, spread: SpreadBroker) -> None:
        spread.each(lambda broker: broker.create_queue("jobs", QueueOptions(requires_session=True)))
        spread.sender("jobs").send([Message(b"x", session_id=key) for key in KEYS * 2])
        got = []
        for _ in KEYS:
            receiver = spread.accept_next_session("jobs")
            assert receiver is not None
            with receiver:
                receiver.complete(receiver.receive(1))
                got.append(spread._members.place_of(receiver.session_id or ""))
        assert set(got) == set(range(STORES))
        assert got[0] == 0

    def test_closed(self, spread: SpreadBroker, urls: list[str]) -> None:
        receiver, sender = spread.receiver("orders"), spread.sender("orders")
        receiver.close()
        sender.close()
        with pytest.raises(BrokerClosed):
            receiver.receive(1)
        with pytest.raises(BrokerClosed):
            sender.send(Message(b"x"))
        other = connect(urls)
        waiting = other.receiver("orders")
        other.close()
        with pytest.raises(BrokerClosed):
            waiting.receive(1)


class TestStores:
    def test_another_order_or_number_is_refused(self, urls: list[str], spread: SpreadBroker) -> None:
        for wrong in (urls[::-1], urls[:2], urls[:1]):
            with pytest.raises(InvalidOption, match="same stores in the same order"):
                connect(wrong)
        connect(urls).close()

    def test_a_store_of_another_spread_is_refused(self, urls: list[str]) -> None:
        connect(urls[:1]).close()
        connect(urls[1:]).close()
        with pytest.raises(InvalidOption, match=r"another spread|in the same order"):
            connect(urls)

    def test_moving_needs_stores_without_messages(self, urls: list[str], spread: SpreadBroker) -> None:
        spread.sender("orders").send(Message(b"x"))
        with pytest.raises(NotAllowed, match="'orders' has some"):
            connect(urls[::-1], moves=True)
        list(drain(spread.receiver("orders")))
        with connect(urls[::-1], moves=True, home=0) as moved:
            moved.sender("orders").send([Message(b"x", partition_key=key) for key in KEYS])
            assert moved.counts("orders").active == len(KEYS)
        # Nothing moves: so messages do not matter.
        connect(urls[::-1], moves=True).close()
        with pytest.raises(InvalidOption, match="same order"):
            connect(urls)

    def test_a_move_that_is_refused_changes_nothing(self, urls: list[str], spread: SpreadBroker) -> None:
        spread.broker_at(0).sender("orders").send(Message(b"x"))
        with pytest.raises(NotAllowed):
            connect(urls[::-1], moves=True)
        connect(urls).close()

    def test_stores_with_messages_are_spread_by_none_or_alone(self, urls: list[str]) -> None:
        with lazaretto.connect(urls[1]) as broker:
            broker.create_queue("orders")
            broker.sender("orders").send(Message(b"x", partition_key="a"))
            with pytest.raises(NotAllowed, match="'orders' has some"):
                connect(urls)
            connect(urls[1:2]).close()

    def test_a_move_that_was_interrupted_is_finished(self, urls: list[str], spread: SpreadBroker) -> None:
        last = store_of(spread.broker_at(STORES - 1))
        last.run(JoinSpread(SpreadMark("new", 0, STORES), last.read(spread_mark)))
        for given in (urls, urls[::-1]):
            with pytest.raises(InvalidOption, match="finish it: call connect again with moves=True"):
                connect(given)
        connect(urls[::-1], moves=True).close()
        connect(urls[::-1]).close()

    def test_a_copy_of_a_store_has_its_place(
        self, urls: list[str], spread: SpreadBroker, tmp_path: Path
    ) -> None:
        spread.sender("orders").send([Message(b"x", partition_key=key) for key in KEYS])
        spread.close()
        copy = str(tmp_path / "copy.db")
        copy_store(urls[1], copy)
        with connect([urls[0], copy, urls[2]]) as moved:
            assert moved.counts("orders").active == len(KEYS)
        with pytest.raises(InvalidOption, match="same stores in the same order"):
            connect([copy, *urls[1:]])

    def test_those_who_move_at_once_agree(self, urls: list[str], spread: SpreadBroker) -> None:
        at_once(lambda: connect(urls[::-1], moves=True).close())
        connect(urls[::-1]).close()

    def test_many_who_begin_at_once_have_one_spread(self, urls: list[str]) -> None:
        at_once(lambda: connect(urls).close())

    def test_each_calls_all_and_says_where_one_failed(self, spread: SpreadBroker) -> None:
        spread.broker_at(1).create_queue("more")
        with pytest.raises(lazaretto.EntityExists) as caught:
            spread.each(lambda broker: broker.create_queue("more"))
        assert len(caught.value.__notes__) == 1
        assert spread.each(lambda broker: broker.queue("more").path) == ["more"] * STORES

    @pytest.mark.parametrize(
        "given",
        [
            "one",
            b"one",
            None,
            3,
            [],
            ["a.db", "a.db"],
            ["a.db", "./a.db"],
            ["x.db"] * 65,
            [3],
            [b"a"],
            [None],
        ],
    )
    def test_addresses_that_are_none(
        self, given: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        with pytest.raises(InvalidOption):
            connect(given)
        assert list(tmp_path.iterdir()) == []

    def test_an_address_alone_is_refused_without_its_password(self) -> None:
        with pytest.raises(InvalidOption, match="list of addresses") as caught:
            connect("postgresql://ann:secret@127.0.0.1/orders")
        assert "secret" not in str(caught.value)

    def test_options_that_are_none(self, urls: list[str], spread: SpreadBroker) -> None:
        bad: Any = "x"
        for options in ({"home": STORES}, {"home": bad}, {"moves": bad}, {"timeout": bad}):
            with pytest.raises(InvalidOption):
                connect(urls, **options)
        with pytest.raises(InvalidOption):
            spread.each(bad)
        with pytest.raises(InvalidOption):
            spread.receiver("orders", mode=bad)
        with pytest.raises(InvalidOption):
            spread.broker_of("")
        with pytest.raises(InvalidOption):
            spread.broker_at(STORES)
