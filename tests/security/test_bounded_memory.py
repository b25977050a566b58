"""Nothing of a server is bounded in number alone: what requests hold is bounded in bytes, and each waits."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from web.conftest import Served

from lazaretto import DeadLetterFilter, Message, ServerOverloaded, connect
from lazaretto.engine.messages.peek import TooLittleRoom, fitting, in_parts, peek_part
from lazaretto.engine.repairs import preview, runner
from lazaretto.engine.repairs.preview import edit_letters, letters_at
from lazaretto.model.entities import EntityPath, QueueOptions
from lazaretto.serving.budget import Budget, Share
from lazaretto.store.sql.transaction import Transaction

SIZE = 400_000


@pytest.fixture
def letters(url: str) -> list[int]:
    """Fill a queue with messages of which few have room in a part, and return their numbers."""
    with connect(url) as broker:
        broker.create_queue("q", QueueOptions(max_message_size=10_000_000))
        sent = [broker.sender("q").send(Message(bytes([97 + n]) * SIZE)) for n in range(8)]
        sent += broker.sender("q").send([Message(b"small")] * 30)
        return [int(number) for number in sent]


class TestAnswers:
    def test_a_peek_is_read_in_parts_and_is_whole(self, api: httpx.Client, letters: list[int]) -> None:
        answer = api.get("/messages", params={"queue": "q", "limit": 1000})
        assert answer.headers["transfer-encoding"] == "chunked"
        assert [one["sequence_number"] for one in answer.json()] == letters
        assert [one["body"][:1] for one in answer.json()[:8]] == list("abcdefgh")
        some = api.get("/messages", params={"queue": "q", "limit": 5, "start": letters[1]})
        assert [one["sequence_number"] for one in some.json()] == letters[1:6]
        assert api.get("/messages", params={"queue": "q", "start": letters[-1]}).json()[0]["body"] == "small"

    def test_an_export_is_read_in_parts_and_is_whole(
        self, url: str, api: httpx.Client, letters: list[int]
    ) -> None:
        with connect(url) as broker, broker.receiver("q") as receiver:
            receiver.dead_letter(receiver.receive(100), reason="bad")
        lines = api.get("/dead-letters/export", params={"queue": "q"}).text.splitlines()
        assert [json.loads(one)["sequence_number"] for one in lines] == letters
        chosen = api.get("/dead-letters/export", params={"queue": "q", "where": "body LIKE 'c%'"})
        assert [json.loads(one)["sequence_number"] for one in chosen.text.splitlines()] in ([letters[2]], [])

    def test_a_receive_takes_as_many_as_there_is_room_for(
        self, api: httpx.Client, letters: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("lazaretto.web.api.messages._RECEIVED", 2 * SIZE)
        taken: list[int] = []
        while found := api.post("/messages/receive", params={"queue": "q", "limit": 1000}).json():
            assert sum(len(one["body"]) for one in found) <= 2 * SIZE
            taken += [one["sequence_number"] for one in found]
        assert taken == letters


class TestRequests:
    def test_a_body_over_the_limit_is_refused_before_it_comes(self, served: Served) -> None:
        lines = (
            "POST /api/v1/messages?queue=q HTTP/1.1", "Host: localhost",
            "Authorization: Bearer token-of-admin",
            f"Content-Length: {33 << 20}", "", "",
        )  # fmt: skip
        with socket.create_connection(("127.0.0.1", served.port), timeout=120) as client:
            client.sendall("\r\n".join(lines).encode())
            assert client.recv(1_000).startswith(b"HTTP/1.1 413 ")

    def test_many_small_messages_are_counted_before_they_are_made(self, api: httpx.Client, url: str) -> None:
        with connect(url) as broker:
            broker.create_queue("q")
        for body in (b"[" + b",".join([b'{"body":1}'] * 10_001) + b"]", b"[" + b"{}," * 20_000 + b"{}]"):
            answer = api.post("/messages", params={"queue": "q"}, content=body)
            assert (answer.status_code, answer.json()["code"]) == (413, "request_too_large")
        body = b"[" + b",".join([b'{"body":[1,2]}'] * 10_000) + b"]"
        assert (
            len(api.post("/messages", params={"queue": "q"}, content=body).json()["sequence_numbers"])
            == 10_000
        )

    def test_a_command_is_small(self, api: httpx.Client) -> None:
        answer = api.post("/commands/create_queue", content=b'{"path": "' + b"x" * (1 << 20) + b'"}')
        assert answer.status_code == 413


class TestBudget:
    """On a clock by hand: nobody sleeps."""

    def run(self, work: Callable[[], Any]) -> None:
        async def whole() -> None:
            async with asyncio.timeout(120):
                await work()

        asyncio.run(whole())

    def test_who_finds_no_room_waits_for_others_in_turn(self) -> None:
        async def work() -> None:
            budget = Budget(100)
            first, second, third = (Share(budget) for _ in range(3))
            await first.hold(80)
            waiting = [asyncio.ensure_future(one.hold(size)) for one, size in ((second, 60), (third, 30))]
            await asyncio.sleep(0)
            assert not any(one.done() for one in waiting)
            first.let_go(40)
            await waiting[0]
            assert budget.held == 100
            second.let_go()
            await waiting[1]
            first.let_go()
            third.let_go()
            assert budget.held == 0

        self.run(work)

    def test_who_waits_too_long_is_told_to_come_again(self) -> None:
        async def work() -> None:
            budget = Budget(100, patience=0.0)
            first, second, third = (Share(budget) for _ in range(3))
            await first.hold(80)
            with pytest.raises(ServerOverloaded):
                await second.hold(30)
            assert ServerOverloaded.retriable
            await third.hold(20)
            assert budget.held == 100

        self.run(work)

    def test_who_is_alone_may_hold_more(self) -> None:
        async def work() -> None:
            budget = Budget(100, patience=0.0)
            large, small = Share(budget), Share(budget)
            await large.hold(10)
            await large.hold(500)
            with pytest.raises(ServerOverloaded):
                await small.hold(1)
            large.let_go()
            await small.hold(1)
            with pytest.raises(ServerOverloaded):
                await large.hold(500)

        self.run(work)

    def test_who_goes_away_while_it_waits_holds_nothing(self) -> None:
        async def work() -> None:
            budget = Budget(100)
            first, second = Share(budget), Share(budget)
            await first.hold(80)
            waiting = asyncio.ensure_future(second.hold(60))
            await asyncio.sleep(0)
            first.let_go()
            # It has its room, and is cancelled before it learns of that.
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            assert budget.held == second.held == 0

        self.run(work)


def test_parts() -> None:
    sizes = [(1, 40), (2, 60), (3, 1), (4, 500)]
    assert fitting(sizes, 100) == [1, 2]
    assert fitting(sizes[3:], 100) == TooLittleRoom(500)
    assert fitting([], 100) == []
    assert [list(one) for one in in_parts([1, 2, 3, 4], dict(sizes), 100)] == [[1, 2], [3], [4]]


def test_what_is_read_has_room(url: str, letters: list[int]) -> None:
    with connect(url) as broker:
        store: Any = broker._store

        def part(tx: Transaction) -> Any:
            return peek_part(tx, EntityPath.parse("q"), 1000, 0, None, 3 * SIZE), peek_part(
                tx, EntityPath.parse("q"), 1000, 0, None, 10
            )

        (messages, last), too_little = store.read(part)
        assert [one.sequence_number for one in messages] == letters[:3]
        assert not last
        assert too_little == TooLittleRoom(SIZE)


def test_the_wrong_and_the_large_leave_nothing_held(served: Served, letters: list[int]) -> None:
    api = served.client("admin")
    for number in (letters[0], 999_999):
        api.get(f"/messages/{number}", params={"queue": "q"})
    assert api.get(f"/messages/{letters[0]}", params={"queue": "q"}).json()["message"]["body"][:2] == "aa"


def test_a_repair_holds_few_messages_at_a_time(
    url: str, letters: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its preview and its edit read, and keep until they are sent, as many as there is room for."""
    room, most = 2 * SIZE, 0

    def edited(editor: Any, queue: Any, keys: Any, found: Any) -> Any:
        nonlocal most
        most = max(most, sum(len(one.message.body) for one in found.values()))
        return edit_letters(editor, queue, keys, found)

    monkeypatch.setattr(letters_at, "__kwdefaults__", {"messages": True, "room": room})
    monkeypatch.setattr(runner, "ROOM_OF_LETTERS", room)
    monkeypatch.setattr(runner, "edit_letters", edited)
    monkeypatch.setattr(preview, "edit_letters", edited)
    with connect(url) as broker:
        with broker.receiver("q") as receiver:
            receiver.dead_letter(receiver.receive(100), reason="bad")
        repair = broker.plan_repair(
            "q", DeadLetterFilter(), everything=True, edit="SET mended = 1", in_flight=None
        )
        seen = repair.preview()
        assert (seen.looked_at, seen.changed, seen.bytes >= 8 * SIZE) == (38, 38, True)
        assert sorted(one.sequence_number for one in repair.left(messages=True)) == letters
        repair.apply()
        assert repair.run().counts.left == 0
        assert broker.queue("q").counts.active == 38
    assert SIZE < most <= room
