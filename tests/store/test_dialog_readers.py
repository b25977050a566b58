"""Activation: readers come by load, and those that do nothing are found."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from patience import wait_until

import lazaretto
from lazaretto import Broker
from lazaretto.broker.broker import store_of
from lazaretto.dialogs import DialogMessage, DialogTransaction, Reader, activation, by_type
from lazaretto.dialogs.activation import MonitorState
from lazaretto.engine.dialogs.receive_group import GroupHandover, ReceiveGroup
from lazaretto.errors import DefinitionError
from lazaretto.model.entities import EntityPath
from lazaretto.store.sql.operation import Operation
from lazaretto.store.sql.store import Store
from lazaretto.store.sql.transaction import Transaction

from .talk import FRONT, NOTE, ORDER, ORDERING, RECEIPT, SHOP, begin, far, leftovers, read, services


@pytest.fixture
def broker(url: str) -> Iterator[Broker]:
    """A broker whose clock runs: readers are threads that wait."""
    with lazaretto.connect(url) as broker:
        yield broker


class Work:
    """Functions for message types that note what they were given, and how many were at work at once."""

    def __init__(self, pause: float = 0.0, meet: int = 0) -> None:
        self.pause, self.meet = pause, meet
        self.seen: list[bytes] = []
        self.most = self._now = 0
        self._lock = threading.Lock()

    def order(self, message: DialogMessage, work: DialogTransaction) -> None:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
        # So many are at work together before the first of them goes on.
        wait_until(lambda: self.most >= self.meet)
        time.sleep(self.pause)
        work.send(message.conversation, RECEIPT, message.body)
        with self._lock:
            self._now -= 1
            self.seen.append(message.body)


def test_many_groups_get_many_readers_and_one_gets_one(broker: Broker) -> None:
    services(broker, max_readers=3)
    many, one = Work(0.01, meet=3), Work(0.01)
    for number in range(30):
        begin(broker, b"%d" % number)
    with broker.dialogs.activate(SHOP, procedure=by_type({ORDER: many.order})):
        wait_until(lambda: len(many.seen) == 30)
    assert many.most == 3
    begin(broker, *(b"%d" % number for number in range(50)))
    with broker.dialogs.activate(SHOP, procedure=by_type({ORDER: one.order})):
        wait_until(lambda: len(one.seen) == 50)
    assert one.most == 1
    assert one.seen == [b"%d" % number for number in range(50)]


def test_readers_end_when_nothing_comes(broker: Broker) -> None:
    services(broker)
    work = Work()
    with broker.dialogs.activate(SHOP, procedure=by_type({ORDER: work.order}, max_wait=0.05)) as (monitor,):
        assert monitor.status().state is MonitorState.INACTIVE
        handle = begin(broker, b"1")
        wait_until(lambda: monitor.status().state is MonitorState.RECEIVES_OCCURRING)
        wait_until(lambda: monitor.status().readers == 0)
        broker.dialogs.end(handle)
        wait_until(lambda: not monitor.has_work() and not list(broker.dialogs.conversations()))
    assert leftovers(broker) == []


def test_poison_is_not_in_the_way(broker: Broker) -> None:
    services(broker, failures=2)
    seen: list[bytes] = []

    def order(message: DialogMessage, work: DialogTransaction) -> None:
        if message.body == b"0":
            raise ValueError("poison")
        seen.append(message.body)

    bad = begin(broker, b"0", b"1")
    for _ in range(5):
        begin(broker, b"2", b"3")
    with broker.dialogs.activate(SHOP, procedure=by_type({ORDER: order}, max_wait=0.05)) as (monitor,):
        wait_until(lambda: len(seen) == 10 and not monitor.has_work())
    assert broker.dialogs.conversation(far(bad)).held is not None


def test_a_type_without_a_function_is_answered_with_an_error(broker: Broker) -> None:
    services(broker)
    handle = begin(broker, b"1")
    with broker.dialogs.transaction() as work:
        work.send(handle, NOTE, b"what is this?")
    done = Work()
    with broker.dialogs.activate(SHOP, procedure=by_type({ORDER: done.order}, max_wait=0.05)) as (monitor,):
        wait_until(lambda: not monitor.has_work())
    answers = [read(broker, "front", most=1)[0] for _ in range(2)]
    assert [a.is_error for a in answers] == [True, False]


class Interrupted:
    """A store at which something happens just before the main thread reads it, once."""

    def __init__(self, store: Any, happens: Callable[[], object]) -> None:
        self._store = store
        self._happens = [happens]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def read(self, query: Any) -> Any:
        if self._happens and threading.current_thread() is threading.main_thread():
            self._happens.pop()()
        return self._store.read(query)


def test_a_reader_that_begins_while_one_looks_for_work_is_work(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    services(broker)
    taken, go = threading.Event(), threading.Event()

    def order(message: DialogMessage, work: DialogTransaction) -> None:
        taken.set()
        assert go.wait(120)

    def happens() -> None:
        begin(broker, b"1")
        assert taken.wait(120)

    with broker.dialogs.activate(SHOP, procedure=by_type({ORDER: order}, max_wait=0.05)) as (monitor,):
        monkeypatch.setattr(monitor, "_store", Interrupted(monitor._store, happens))
        try:
            assert monitor.has_work()
        finally:
            go.set()


def test_a_procedure_that_never_receives_is_found(broker: Broker) -> None:
    services(broker)
    begin(broker, b"1")
    called = threading.Event()

    def lazy(reader: Reader) -> None:
        called.set()

    with broker.dialogs.activate(SHOP, procedure=lazy) as (monitor,):
        assert called.wait(120)
        wait_until(lambda: monitor.status().failures > 0)
    (event, *_) = broker.events(kind="reader_idle")
    assert event.detail["service"] == SHOP


def test_a_procedure_that_raises_is_found_and_tried_again_later(broker: Broker) -> None:
    services(broker)
    begin(broker, b"1")
    calls: list[float] = []

    def broken(reader: Reader) -> None:
        calls.append(time.monotonic())
        raise OSError("no database")

    with broker.dialogs.activate(SHOP, procedure=broken) as (monitor,):
        wait_until(lambda: len(calls) == 3)
        assert monitor.status().failures >= 2
    assert calls[1] - calls[0] >= activation._FIRST_REST
    assert calls[2] - calls[1] >= 2 * activation._FIRST_REST
    (event, *_) = broker.events(kind="reader_failed")
    assert event.detail["error"] == "OSError: no database"


def test_a_slow_function_keeps_its_lock(broker: Broker) -> None:
    services(broker)
    broker.dialogs.create_service(SHOP, "shop", [ORDERING], lock_duration=4.0)
    begin(broker, b"1")
    work = Work(pause=7)
    with broker.dialogs.activate(SHOP, procedure=by_type({ORDER: work.order}, max_wait=0.05)) as (monitor,):
        wait_until(lambda: len(work.seen) == 1)
        wait_until(lambda: not monitor.has_work())
    assert work.seen == [b"1"]
    assert read(broker, "front")[0].body == b"1"


def test_the_next_reader_comes_soon_after_one_has_ended(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    services(broker)
    begin(broker, b"1")
    begin(broker, b"2")
    monkeypatch.setattr(activation, "_LOOK", 3600.0)
    received: list[bytes] = []

    def once(reader: Reader) -> None:
        with reader.transaction() as work:
            received.extend(message.body for message in work.receive())
        time.sleep(0.05)

    with broker.dialogs.activate(SHOP, procedure=once):
        wait_until(lambda: len(received) == 2)


def test_a_service_without_a_handler(broker: Broker) -> None:
    services(broker)
    with pytest.raises(DefinitionError, match="has no handler"), broker.dialogs.activate(FRONT):
        pass
    with pytest.raises(DefinitionError, match="no service has a handler"), broker.dialogs.activate():
        pass


class _ReadTogether(Operation[list[GroupHandover]]):
    """What several readers do in one commit."""

    def run(self, tx: Transaction) -> list[GroupHandover]:
        path = EntityPath.parse("shop")
        readers = [ReceiveGroup(path, 1, token) for token in range(1, 6)]
        found = ReceiveGroup.run_all(tx, readers)
        return [one for one in found if isinstance(one, GroupHandover)]


def test_readers_of_one_commit_have_a_group_each(broker: Broker) -> None:
    """The first goes on where the last commit stopped; the others start anywhere."""
    services(broker)
    for number in range(8):
        begin(broker, b"%d" % number)
    found = store_of(broker).run(_ReadTogether())
    assert len({one.group for one in found}) == 5
    assert [bool(one.stream) for one in found] == [True, False, False, False, False]


def test_one_message_wakes_one_of_the_readers_that_wait(broker: Broker) -> None:
    services(broker)
    begin(broker, b"10", b"11")
    got: list[bytes] = []
    store = store_of(broker)
    assert isinstance(store, Store)

    def wait() -> None:
        with broker.dialogs.transaction("shop") as work:
            got.extend(message.body for message in work.receive(max_wait=120))

    threads = [threading.Thread(target=wait) for _ in range(4)]
    with broker.dialogs.transaction("shop") as work:
        assert len(work.receive()) == 1
        for thread in threads:
            thread.start()
        wait_until(lambda: store.notifier.waiting == 4)
    # The group is free again, and has one more message.
    wait_until(lambda: got == [b"11"])
    wait_until(lambda: store.notifier.waiting == 3)
    for number in range(3):
        begin(broker, b"%d" % number)
    for thread in threads:
        thread.join(120)
    assert sorted(got) == [b"0", b"1", b"11", b"2"]
