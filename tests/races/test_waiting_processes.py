"""Processes that wait for the same: one that is killed, frozen or busy keeps no message from the others."""

from __future__ import annotations

import contextlib
import queue
import signal
import sqlite3
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from patience import PATIENCE

import lazaretto
from lazaretto import Message

_CHILD = Path(__file__).with_name("wait_child.py")
_MESSAGES = 15
#: In seconds. If only the poll handed a message over, each would take about twice as long.
_SOON = 5.0
_Told = queue.Queue[tuple[int, str]]


@contextmanager
def _waiting(place: str, busy: float, processes: int) -> Iterator[tuple[list[subprocess.Popen[str]], _Told]]:
    """Start processes that wait; give them and what they tell, each with the process's number."""
    told: _Told = queue.Queue()
    children: list[subprocess.Popen[str]] = []
    threads: list[threading.Thread] = []

    def read(child: subprocess.Popen[str]) -> None:
        assert child.stdout is not None
        with child.stdout:
            for line in child.stdout:
                told.put((child.pid, line.strip()))

    try:
        for _ in range(processes):
            words = [sys.executable, str(_CHILD), place, str(busy)]
            child = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
            children.append(child)
            threads.append(threading.Thread(target=read, args=(child,), daemon=True))
            threads[-1].start()
        for _ in range(processes):
            assert told.get(timeout=PATIENCE)[1] == "waits"
        yield children, told
    finally:
        for child in children:
            child.kill()
            child.wait()
        for thread in threads:
            thread.join(PATIENCE)


def _hand_over(broker: lazaretto.Broker, told: _Told, taker: int) -> None:
    """Send messages, each when one process waits; they are handed to it, most of them without a poll."""
    took = []
    with broker.sender("q") as sender:
        for number in range(_MESSAGES):
            start = time.monotonic()
            sender.send(Message(b"%d" % number))
            assert told.get(timeout=PATIENCE) == (taker, str(number))
            took.append(time.monotonic() - start)
            # Not before: it would find the next one without being woken.
            assert told.get(timeout=PATIENCE) == (taker, "waits")
    assert statistics.median(took) < _SOON, took
    assert broker.queue("q").counts.total == 0


@contextmanager
def _nobody_writing(place: str) -> Iterator[None]:
    """Keep the lock of a file: whoever is frozen while it has that would hold all others up."""
    if not place.startswith("sqlite:///"):
        yield
        return
    with contextlib.closing(sqlite3.connect(place.removeprefix("sqlite:///"), PATIENCE)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.rollback()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_processes_that_are_gone_keep_no_message_from_one_that_waits(place: str, how: signal.Signals) -> None:
    with lazaretto.connect(place) as broker:
        broker.create_queue("q")
        with _waiting(place, 0.0, 4) as (children, told):
            with _nobody_writing(place):
                for child in children[:3]:
                    child.send_signal(how)
            _hand_over(broker, told, children[3].pid)


def test_processes_that_are_busy_keep_no_message_from_one_that_waits(place: str) -> None:
    with lazaretto.connect(place) as broker:
        broker.create_queue("q")
        with _waiting(place, 600.0, 2) as (busy, heard):
            for body in (b"a", b"b"):
                broker.sender("q").send(Message(body))
            taken = {heard.get(timeout=PATIENCE) for _ in busy}
            assert {pid for pid, _ in taken} == {child.pid for child in busy}
            with _waiting(place, 0.0, 1) as (children, told):
                _hand_over(broker, told, children[0].pid)
