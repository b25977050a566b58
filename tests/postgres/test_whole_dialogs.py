"""Dialogs that go on commit whole, whatever others do meanwhile."""

from __future__ import annotations

import multiprocessing
import threading

import pytest

import lazaretto
from lazaretto import Broker

from .witness import Witness, waits_under_a_lock


@pytest.fixture
def services(hosts: tuple[Broker, Broker]) -> tuple[Broker, Broker]:
    one, _ = hosts
    one.dialogs.create_service("Front", "front")
    one.dialogs.create_service("Shop", "shop", ["DEFAULT"])
    return hosts


def begin(broker: Broker, body: bytes = b"ask") -> str:
    with broker.dialogs.transaction() as work:
        handle = work.begin_dialog("Front", "Shop")
        work.send(handle, body=body)
    return handle


def pass_on(broker: Broker, queue: str) -> int:
    """Answer the next message of a service with the same one; return how many there were."""
    with broker.dialogs.transaction(queue) as work:
        messages = work.receive()
        for message in messages:
            work.send(message.conversation, body=message.body)
    return len(messages)


def test_a_dialog_that_goes_on_never_waits_under_a_lock(
    services: tuple[Broker, Broker], witness: Witness
) -> None:
    one, other = services
    for number in range(8):
        begin(other, b"%d" % number)
    said = witness.writing(one)
    for turn in range(4):
        # The other host writes too, in the same queues.
        assert pass_on(other, "shop") == 1
        assert pass_on(other, "front") == 1
        with one.dialogs.transaction("shop") as work:
            said.clear()
            (message,) = work.receive()
            assert not turn or not waits_under_a_lock(said)
            work.send(message.conversation, body=message.body)
            said.clear()
        assert not turn or not waits_under_a_lock(said)
    assert one.check() == []


def _talk(url: str) -> None:
    def run(broker: Broker, queue: str) -> None:
        idle = 0
        while idle < 2:
            with broker.dialogs.transaction(queue) as work:
                messages = work.receive(max_wait=0.5)
                # What says that the other end has ended is empty; with it, this one ends too.
                for message in messages if messages and messages[0].body else ():
                    if number := int(message.body):
                        work.send(message.conversation, body=b"%d" % (number - 1))
                    else:
                        work.end(message.conversation)
            idle = 0 if messages else idle + 1

    with lazaretto.connect(url, timeout=60) as broker:
        threads = [threading.Thread(target=run, args=(broker, queue)) for queue in ("front", "shop") * 2]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def test_several_processes_talk_at_once(url: str) -> None:
    with lazaretto.connect(url) as owner:
        owner.dialogs.create_service("Front", "front")
        owner.dialogs.create_service("Shop", "shop", ["DEFAULT"])
        for _ in range(8):
            begin(owner, b"7")
        context = multiprocessing.get_context("spawn")
        processes = [context.Process(target=_talk, args=(url,)) for _ in range(3)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(120)
            assert process.exitcode == 0
        # Each conversation came to its end, so nothing is left of any.
        assert not list(owner.dialogs.conversations())
        assert owner.queue("front").counts.total == owner.queue("shop").counts.total == 0
        assert owner.check() == []
