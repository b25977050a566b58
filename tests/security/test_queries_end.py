"""No query runs long for whoever only reads, and nobody takes the turns of the others."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from lazaretto import Message, QueryTooLong, TooManyRequests, aio, connect
from lazaretto.model.clock import Deadline, current, within
from lazaretto.model.filters import values
from lazaretto.model.limits import ServerLimits
from lazaretto.serving.budget import Budget, Share
from lazaretto.serving.guard import Guard, People
from lazaretto.store.sql.operation import Operation
from lazaretto.store.sql.transaction import Transaction
from lazaretto.web import Access, Grant, Identity, Role, open_web

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
        assert begun.wait(120)
        while not ended.wait(0.05):
            deadlines[0].end_now()
        thread.join(120)
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


class Current(Operation[Deadline | None]):
    """Tells the deadline that a commit has."""

    def run(self, tx: Transaction) -> Deadline | None:
        return current()


def test_a_commit_has_no_deadline_because_others_are_in_it_too(store: Any) -> None:
    with within(0.0):
        assert store.run(Current()) is None


@asynccontextmanager
async def limited(url: str, **limits: Any) -> AsyncIterator[tuple[Guard, httpx.AsyncClient]]:
    """Serve a store within some limits, and yield what counts, and a client that may do everything."""
    guard = Guard(ServerLimits(**limits))
    owner = Identity("owner", (Grant(Role.ADMIN),))
    async with (
        await aio.connect(url) as broker,
        open_web(broker, Access(anonymous=owner), port=0, guard=guard) as server,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=60) as client,
    ):
        yield guard, client


#: What is asked for over HTTP and of the console: the method, the path, and fields of a form or JSON.
PLAN = {"path": "q", "name": "mend"}
READS = (
    ("GET", "/api/v1/dead-letters?queue=q&where=body+%3D+1", None),
    ("GET", "/search?q=text", None),
    ("GET", "/failures/1?queue=q", None),
    ("GET", "/api/v1/queues/q", None),
    ("GET", "/queue?queue=q", None),
)
PLANS = (
    ("POST", "/api/v1/commands/plan_repair", {**PLAN, "filter": {"where": "body = 1"}}),
    ("POST", "/do/plan_repair", {**PLAN, "filter.where": "body = 1"}),
)


async def status_of(client: httpx.AsyncClient, method: str, path: str, given: dict[str, Any] | None) -> int:
    if given is None or path.startswith("/api"):
        return (await client.request(method, path, json=given)).status_code
    return (await client.request(method, path, data=given)).status_code


class TestEveryWay:
    """One mechanism is in front of the API and the console's pages."""

    @pytest.fixture(autouse=True)
    def letters(self, url: str) -> None:
        with connect(url) as broker:
            broker.create_queue("q")
            broker.sender("q").send([Message(b"1")] * 3)
            with broker.receiver("q") as receiver:
                receiver.dead_letter(receiver.receive(3), reason="bad")

    def test_what_reads_has_a_deadline(self, url: str) -> None:
        async def work() -> None:
            async with limited(url, query_seconds=0.0) as (_, client):
                # A short statement is over before anybody looks at the clock.
                assert [await status_of(client, *one) for one in READS[:3]] == [503] * 3

        asyncio.run(work())

    def test_a_plan_has_one_and_changes_nothing_when_it_is_over(self, url: str) -> None:
        async def work() -> None:
            async with limited(url, change_seconds=0.0) as (_, client):
                assert [await status_of(client, *one) for one in PLANS] == [503, 503]
                assert await status_of(client, "POST", "/api/v1/commands/create_queue", {"path": "a"}) == 200

        asyncio.run(work())
        with connect(url) as broker:
            assert not broker.repairs()

    @pytest.mark.stores("sqlite")
    def test_a_person_has_few_under_way(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("lazaretto.serving.guard.Budget", functools.partial(Budget, patience=0.0))

        async def work() -> None:
            async with limited(url, requests_per_person=2, searches_per_person=1) as (guard, client):
                mine, other = Share(Budget(1)), Share(Budget(1))
                await guard.people.search("owner", mine)
                assert [await status_of(client, *one) for one in (*READS, *PLANS)] == [
                    429, 429, 429, 200, 200, 429, 429,
                ]  # fmt: skip
                mine.end()
                assert {await status_of(client, *one) for one in READS} == {200}
                guard.people.begin("owner", mine)
                guard.people.begin("owner", other)
                assert {await status_of(client, *one) for one in (*READS, *PLANS)} == {429}

        asyncio.run(work())
