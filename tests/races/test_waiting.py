"""Many threads that wait for the same: each message wakes one who takes it, and none is left lying."""

from __future__ import annotations

import threading
import time

import pytest

import lazaretto
from lazaretto import Message
from lazaretto.broker.broker import store_of
from lazaretto.store.sql.store import Store
from lazaretto.store.sqlite import wake_file


def test_each_message_is_taken_though_not_all_are_woken(place: str) -> None:
    waiters, messages = 40, 200
    taken: list[bytes] = []
    done = threading.Event()
    with lazaretto.connect(place) as broker, lazaretto.connect(place) as other:
        broker.create_queue("q")

        def wait(broker: lazaretto.Broker) -> None:
            with broker.receiver("q", mode="receive_and_delete") as receiver:
                while not done.is_set():
                    # Some give up at the very moment in which they are woken.
                    taken.extend(m.body for m in receiver.receive(2, max_wait=0.05 if len(taken) % 3 else 20))
                    if len(taken) >= messages:
                        done.set()

        threads = [
            threading.Thread(target=wait, args=(each,))
            for each in (broker, other)
            for _ in range(waiters // 2)
        ]
        for thread in threads:
            thread.start()
        with other.sender("q") as sender:
            for number in range(0, messages, 4):
                sender.send([Message(b"%d" % each) for each in range(number, number + 4)])
        assert done.wait(120), len(taken)
        # Those who still wait are let go.
        broker.sender("q").send([Message(b"") for _ in range(2 * waiters)])
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive()
    assert sorted(filter(None, taken), key=int) == [b"%d" % each for each in range(messages)]


@pytest.mark.skipif(not wake_file.is_there(), reason="without futexes a file is polled")
def test_another_brokers_messages_are_heard_of_without_a_poll(place: str) -> None:
    with lazaretto.connect(place) as broker, lazaretto.connect(place) as other:
        broker.create_queue("q")
        store = store_of(broker)
        assert isinstance(store, Store)
        store.poll = 3600.0
        got: list[bytes] = []

        def wait() -> None:
            with broker.receiver("q", mode="receive_and_delete") as receiver:
                while len(got) < 10:
                    got.extend(message.body for message in receiver.receive(max_wait=60))

        thread = threading.Thread(target=wait)
        thread.start()
        for number in range(10):
            while not store.notifier.waiting:
                time.sleep(0.001)
            other.sender("q").send(Message(b"%d" % number))
            end = time.monotonic() + 120
            while len(got) == number:
                assert time.monotonic() < end
                time.sleep(0.001)
        thread.join(120)
    assert got == [b"%d" % number for number in range(10)]
