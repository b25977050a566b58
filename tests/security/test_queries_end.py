"""No query runs long for whoever only reads, and nobody takes the turns of the others."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import httpx
import pytest

from lazaretto import Message, QueryTooLong, TooManyRequests, connect
from lazaretto.filters import values
from lazaretto.model.deadline import Deadline, within
from lazaretto.model.limits import ServerLimits
from lazaretto.serving.budget import Budget, Share
from lazaretto.serving.people import People
from lazaretto.store.sql.transaction import Transaction

#: A statement that takes far longer than any test may, on both databases.
ENDLESS = """
    WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 2000000000)
    SELECT count(*) FROM t
"""


def endless(tx: Transaction) -> Any:
    context: Any = tx
    return list(context.context._execute(ENDLESS, ()))


@pytest.fixture
def store(url: str) -> Any:
    with connect(url) as broker:
        broker.create_queue("q")
        yield broker._store


class TestStatements:
    def test_one_ends_at_its_deadline(self, store: Any) -> None:
        with within(0.2), pytest.raises(QueryTooLong):
            store.read(endless)
        # The connections are as good as before.
        with within(30.0):
            assert store.read(lambda tx: tx.queues.by_path("q")).path == "q"
        assert store.read(lambda tx: tx.queues.by_path("q")).path == "q"

    def test_one_ends_when_its_asker_is_gone(self, store: Any) -> None:
        begun, ended = threading.Event(), threading.Event()
        deadlines: list[Deadline] = []

        def ask() -> None:
            def query(tx: Transaction) -> Any:
                begun.set()
                return endless(tx)

            with within(600.0) as deadline:
                deadlines.append(deadline)
                with pytest.raises(QueryTooLong):
                    store.read(query)
            ended.set()

        thread = threading.Thread(target=ask)
        thread.start()
        assert begun.wait(30)
        while not ended.wait(0.05):
            deadlines[0].end_now()
        thread.join(30)
        assert ended.is_set()


class TestConditions:
    def test_a_search_in_a_long_text_looks_at_the_clock(self) -> None:
        text, pattern = "a" * 3_000_000, "%" + "a_" * 1_000 + "b%"
        with within(0.0), pytest.raises(QueryTooLong):
            values.like(text, pattern, None)

    def test_slices_find_what_one_search_finds(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(values, "_SLICE", 3)
        monkeypatch.setattr(values, "_STEPS", 8)
        text = "xxabcxxxabd" * 5 + "end"
        for pattern, found in (
            ("%abd%abc%end", True), ("%xxx%", True), ("%a_d%", True), ("%abe%", False), ("x%d", True),
            ("%endx%", False), ("%dend", True), ("%" + "abc%" * 5, True), ("%" + "abc%" * 6, False),
        ):  # fmt: skip
            assert values.like(text, pattern, None) is found, pattern

    def test_letters_are_looked_at_within_the_deadline(self, url: str) -> None:
        with connect(url) as broker:
            broker.create_queue("q")
            broker.sender("q").send([Message(b"x")] * 5)
            with broker.receiver("q") as receiver:
                receiver.dead_letter(receiver.receive(5), reason="bad")
            with within(0.0), pytest.raises(QueryTooLong):
                broker.dead_letter_page("q")

    def test_over_http_it_is_said_in_time(
        self, api: httpx.Client, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with connect(url) as broker:
            broker.create_queue("q")
            broker.sender("q").send(Message(b"x"))
            with broker.receiver("q") as receiver:
                receiver.dead_letter(receiver.receive(1), reason="bad")
        monkeypatch.setattr("lazaretto.web.bounded._LONGEST", 0.0)
        answer = api.get("/dead-letters/export", params={"queue": "q"})
        assert (answer.status_code, answer.json()["code"]) == (503, "query_too_long")
        assert answer.headers["retry-after"] == "1"


class TestPeople:
    def test_few_searches_of_a_person_run_at_once(self) -> None:
        async def work() -> None:
            people = People(ServerLimits(searches=3, searches_per_person=2))
            shares = [Share(Budget(100)) for _ in range(5)]
            for share in shares[:2]:
                await people.search("ana", share)
            third = asyncio.ensure_future(people.search("ana", shares[2]))
            await asyncio.sleep(0)
            # Another's search does not stand behind hers.
            await people.search("bob", shares[3])
            assert not third.done()
            shares[0].end()
            await third
            fourth = asyncio.ensure_future(people.search("bob", shares[4]))
            await asyncio.sleep(0)
            assert not fourth.done()
            fourth.cancel()
            await asyncio.gather(fourth, return_exceptions=True)
            for share in shares:
                share.end()
            await people.search("ana", shares[0])

        asyncio.run(work())

    def test_a_person_has_a_number_of_requests_under_way(self) -> None:
        people = People(ServerLimits(requests_per_person=2))
        first, second, third = (Share(Budget(100)) for _ in range(3))
        people.begin("ana", first)
        people.begin("ana", second)
        with pytest.raises(TooManyRequests):
            people.begin("ana", third)
        people.begin("bob", third)
        first.end()
        people.begin("ana", third)

    def test_a_deadline_ends_what_is_left_in_threads(self) -> None:
        with within(600.0) as deadline:
            assert not deadline.over
        assert deadline.over
        assert deadline.end > time.monotonic()
