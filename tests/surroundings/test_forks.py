"""Children that are forked while a broker is open: nothing of it is theirs, and they take nothing from it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import lazaretto
import lazaretto.aio
from lazaretto import Broker, BrokerTransaction, Message, QueueOptions

pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")

REFUSED = "StoreError: this broker was opened before a fork; open a new one in each process"


def fork_and_leave(function: Callable[[], object], *, at_once: bool = False) -> None:
    """Call a function in a child, which says what it raised and goes on as a program that ends does.

    Whoever calls this is left by SystemExit in the child. Nothing but `told` may catch it. `at_once`: it ends
    without.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            function()
            said = "nothing"
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writing, said.encode())
        if at_once:
            os._exit(7)
        raise SystemExit(7)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        heard = pipe.read()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    _heard.append((heard, code))


_heard: list[tuple[str, int]] = []


def told(parent: Callable[[], object]) -> tuple[str, int]:
    """Run what forks a child; return what the child raised, and how it ended: 7 if by its own wish."""
    me = os.getpid()
    try:
        parent()
    except BaseException as error:
        if os.getpid() != me:
            os._exit(7 if isinstance(error, SystemExit) else 99)
        raise
    finally:
        if os.getpid() != me:
            os._exit(98)
    return _heard.pop()


IN_TRANSACTION: dict[str, Callable[[BrokerTransaction], object]] = {
    "execute": lambda tx: tx.execute("INSERT INTO own VALUES (99)"),
    "commit": lambda tx: tx.commit(),
    "rollback": lambda tx: tx.rollback(),
    "leave": lambda tx: tx.__exit__(None, None, None),
    "savepoint": lambda tx: tx.savepoint(),
    "receive": lambda tx: tx.receive("work"),
    "send": lambda tx: tx.send("work", Message(b"from the child")),
    "complete": lambda tx: tx.complete(list(tx._work.received)),
}


@pytest.mark.parametrize("verb", IN_TRANSACTION)
def test_a_child_of_a_transaction(place: str, verb: str) -> None:
    with lazaretto.connect(place) as broker:
        broker.create_queue("work")
        broker.sender("work").send([Message(b"one"), Message(b"two")])
        with broker.transaction() as tx:
            tx.execute("CREATE TABLE own (n BIGINT)")

        def work() -> None:
            with broker.transaction() as tx:
                tx.receive("work")
                tx.execute("INSERT INTO own VALUES (1)")
                fork_and_leave(lambda: IN_TRANSACTION[verb](tx))
                tx.execute("INSERT INTO own VALUES (2)")
                tx.send("work", Message(b"three"))

        assert told(work) == (REFUSED, 7)
        with broker.transaction() as tx:
            assert tx.execute("SELECT n FROM own ORDER BY n").fetchall() == [(1,), (2,)]
        assert [message.body for message in broker.peek("work", 9)] == [b"two", b"three"]
        assert broker.check() == []


def test_a_child_within_a_savepoint(place: str) -> None:
    with lazaretto.connect(place) as broker:
        with broker.transaction() as tx:
            tx.execute("CREATE TABLE own (n BIGINT)")

        def work() -> None:
            with broker.transaction() as tx:
                tx.execute("INSERT INTO own VALUES (1)")
                point = tx.savepoint()
                tx.execute("INSERT INTO own VALUES (2)")
                fork_and_leave(point.rollback)

        assert told(work) == (REFUSED, 7)
        with broker.transaction() as tx:
            assert tx.execute("SELECT count(*) FROM own").fetchone() == (2,)


IN_BROKER: dict[str, Callable[[Broker], object]] = {
    "send": lambda broker: broker.sender("work").send(Message(b"x")),
    "receive": lambda broker: broker.receiver("work").receive(max_wait=60),
    "peek": lambda broker: broker.peek("work"),
    "create": lambda broker: broker.create_queue("other"),
    "read": lambda broker: broker.queue("work"),
    "events": lambda broker: list(broker.events()),
    "facts": lambda broker: broker.facts(),
    "check": lambda broker: broker.check(),
    "SQL": lambda broker: broker.transaction().execute("SELECT 1"),
    "dialogs": lambda broker: broker.dialogs.transaction().execute("SELECT 1"),
    "commit": lambda broker: broker.transaction().commit(),
}


@pytest.mark.parametrize("verb", IN_BROKER)
def test_a_child_of_a_broker(place: str, verb: str) -> None:
    def work() -> None:
        with lazaretto.connect(place) as broker:
            broker.create_queue("work", QueueOptions(requires_session=True))
            broker.sender("work").send(Message(b"x", session_id="s"))
            with broker.receiver("work", session="s") as receiver:
                messages = receiver.receive()
                fork_and_leave(lambda: IN_BROKER[verb](broker))
                # The child has left the same blocks, and closed nothing of them.
                receiver.complete(messages)
            assert broker.queue("work").counts.total == 0

    assert told(work) == (REFUSED, 7)


ASYNC: dict[str, Callable[[Any, Any], Coroutine[Any, Any, object]]] = {
    "send": lambda broker, tx: broker.sender("work").send(Message(b"x")),
    "receive": lambda broker, tx: broker.receiver("work").receive(max_wait=60),
    "read": lambda broker, tx: broker.queue("work"),
    "execute": lambda broker, tx: tx.execute("SELECT 1"),
    "commit": lambda broker, tx: tx.commit(),
    "leave": lambda broker, tx: tx.__aexit__(None, None, None),
}


def drive(call: Coroutine[Any, Any, object]) -> None:
    """Run a coroutine where no loop runs, as in a child."""
    with contextlib.suppress(StopIteration):
        call.send(None)


@pytest.mark.parametrize("verb", ASYNC)
def test_a_child_of_an_asynchronous_broker(place: str, verb: str) -> None:
    async def work() -> None:
        async with await lazaretto.aio.connect(place) as broker:
            await broker.create_queue("work")
            async with broker.transaction() as tx:
                await tx.execute("CREATE TABLE own (n BIGINT)")
                # asyncio itself gives a child the parent's loop, which it would close.
                error = SystemExit(7)
                for leave in (tx, broker):
                    ends = leave.__aexit__(SystemExit, error, None)
                    fork_and_leave(functools.partial(drive, ends), at_once=True)
                    ends.close()
                    assert _heard.pop() == ("nothing", 7)
                call = ASYNC[verb](broker, tx)
                fork_and_leave(lambda: drive(call), at_once=True)
                call.close()
                await tx.execute("INSERT INTO own VALUES (1)")
            async with broker.transaction() as tx:
                assert (await tx.execute("SELECT n FROM own")).fetchall() == [(1,)]

    assert told(lambda: asyncio.run(work())) == (REFUSED, 7)


PROGRAM = """
import os, sys
import lazaretto
from lazaretto import Message

broker = lazaretto.connect(sys.argv[1])
broker.create_queue("work")
with broker.transaction() as tx:
    tx.execute("CREATE TABLE own (n BIGINT)")
with broker.transaction() as tx:
    tx.execute("INSERT INTO own VALUES (1)")
    if (pid := os.fork()) == 0:
        sys.exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    tx.execute("INSERT INTO own VALUES (2)")
    tx.send("work", Message(b"x"))
with broker.transaction() as tx:
    print(tx.execute("SELECT count(*) FROM own").fetchone())
print(broker.queue("work").counts.total, broker.check())
"""


def test_a_child_that_ends_its_interpreter(place: str) -> None:
    """Python closes in the end what nobody has closed, such as the child's copy of an open transaction."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, place], capture_output=True, text=True, timeout=120
    )
    assert (done.stderr, done.stdout) == ("", "(2,)\n1 []\n")


def test_a_child_opens_its_own(place: str) -> None:
    """On a server; SQLite takes the parent's locks for the child's."""

    def work() -> None:
        with lazaretto.connect(place) as broker:
            broker.create_queue("work")

            def send() -> None:
                with lazaretto.connect(place) as own:
                    own.sender("work").send(Message(b"from the child"))

            fork_and_leave(send)
            got = [message.body for message in broker.receiver("work").receive()]
            assert got == ([] if place.startswith("sqlite") else [b"from the child"])

    said, code = told(work)
    assert code == 7
    assert "this process was forked" in said if place.startswith("sqlite") else said == "nothing"
