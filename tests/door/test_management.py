"""What a client asks an entity's management node, beside rules."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from door.client import Manager, connected, opened, run
from lazaretto import Message, QueueOptions
from lazaretto.servicebus.amqp import Properties, Sections
from lazaretto.servicebus.amqp.values import Array, Int, Timestamp

#: The last moment of .NET, as its clients encode it.
NEVER = Timestamp(253_402_300_800_000)


def test_sessions_are_listed_in_pages(tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(tmp_path) as (broker, door), connected(door) as client:
            await broker.create_queue("s", QueueOptions(requires_session=True))
            manager = Manager(client)
            await manager.open("s/$management")

            async def ask(skip: int, top: int, since: Timestamp = NEVER) -> tuple[int, list[str]]:
                page = {"last_updated_time": since, "skip": Int(skip), "top": Int(top)}
                status, body = await manager.ask("get-message-sessions", **page)
                return status, [] if body is None else body["sessions-ids"].items

            assert await ask(0, 5) == (204, [])
            await broker.sender("s").send([Message(b"x", session_id=name) for name in "abc"])
            assert await ask(0, 2) == (200, ["a", "b"])
            assert await ask(2, 2) == (200, ["c"])
            past = Timestamp((datetime.now(UTC) - timedelta(minutes=1)).timestamp() * 1000)
            assert await ask(0, 5, past) == (204, [])
            async with broker.receiver("s", session="b") as receiver:
                await receiver.set_session_state(b"set")
            assert await ask(0, 5, past) == (200, ["b"])
            assert (await manager.ask("get-message-sessions", skip=Int(0), top=Int(1)))[0] == 400
            # Sessions that are done with while a client goes through the list hide no others.
            await broker.sender("s").send([Message(b"x", session_id=name) for name in "defg"])
            assert await ask(0, 3) == (200, ["a", "b", "c"])
            async with broker.receiver("s", session="a") as receiver:
                await receiver.complete(await receiver.receive())
            assert await ask(3, 3) == (200, ["d", "e", "f"])
            assert await ask(6, 3) == (200, ["g"])
            assert await ask(7, 3) == (204, [])
            # A client that begins in the middle counts from the first one that is there now.
            assert await ask(5, 3) == (200, ["g"])

    run(work)


def test_messages_are_deleted_in_batches(tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(tmp_path) as (broker, door), connected(door) as client:
            await broker.sender("q").send([Message(b"%d" % n) for n in range(5)])
            manager = Manager(client)
            await manager.open("q/$management")
            later = Timestamp((datetime.now(UTC) + timedelta(minutes=1)).timestamp() * 1000)
            told = {"message_count": Int(3), "enqueued_time_utc": later}
            assert await manager.ask("batch-delete-messages", **told) == (200, {"message-count": 3})
            assert [message.body for message in await broker.peek("q", 9)] == [b"3", b"4"]
            early = {**told, "enqueued_time_utc": Timestamp(0)}
            assert (await manager.ask("batch-delete-messages", **early))[0] == 204
            assert (await manager.ask("batch-delete-messages", **told, session_id="a"))[0] == 400
            assert (await manager.ask("batch-delete-messages", **{**told, "message_count": Int(0)}))[0] == 400

    run(work)


def test_a_disabled_queue_is_told_as_at_service_bus(tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(tmp_path) as (broker, door), connected(door) as client:
            await broker.set_status("q", "receive_disabled")
            manager = Manager(client)
            await manager.open("q/$management")
            wanted = {"sequence_numbers": Array(0x81, [1]), "receiver_settle_mode": Int(1)}
            assert (await manager.ask("receive-by-sequence-number", **wanted))[0] == 400

    run(work)


@pytest.mark.parametrize("asked", [1, 7, 16, 17, 60, 250, 1_000])
def test_a_peek_returns_what_is_asked_for_if_it_is_small(tmp_path: Path, asked: int) -> None:
    async def work() -> None:
        async with opened(tmp_path) as (broker, door), connected(door) as client:
            await broker.sender("q").send([Message(b"%d" % n) for n in range(300)])
            manager = Manager(client)
            await manager.open("q/$management")
            told = {"message_count": Int(asked), "from_sequence_number": 11}
            _, body = await manager.ask("peek-message", **told)
            bodies = [Sections(one["message"]).body() for one in body["messages"]]
            assert bodies == [[b"%d" % n] for n in range(10, 10 + min(asked, 250))]

    run(work)


@pytest.mark.parametrize(("size", "fits"), [(100_000, 10), (2_000_000, 1)])
def test_a_peek_returns_fewer_if_they_are_large(tmp_path: Path, size: int, fits: int) -> None:
    async def work() -> None:
        async with opened(tmp_path) as (broker, door), connected(door) as client:
            await broker.create_queue("large", QueueOptions(max_message_size=4_000_000))
            await broker.sender("large").send([Message(bytes([n]) * size) for n in range(12)])
            manager = Manager(client)
            await manager.open("large/$management")
            seen: list[int] = []
            while len(seen) < 12:
                told = {"message_count": Int(250), "from_sequence_number": len(seen) + 1}
                status, body = await manager.ask("peek-message", **told)
                assert status == 200
                assert len(body["messages"]) == min(fits, 12 - len(seen))
                seen += [Sections(one["message"]).body()[0][0] for one in body["messages"]]
            assert seen == list(range(12))

    run(work)


def test_a_peek_without_bodies(tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(tmp_path) as (broker, door), connected(door) as client:
            await broker.sender("q").send(Message(b"x", subject="seen"))
            manager = Manager(client)
            await manager.open("q/$management")
            told = {"from_sequence_number": 1, "message_count": Int(1)}
            for bare, expected in ((True, []), (False, [b"x"])):
                _, body = await manager.ask("peek-message", **told, omit_message_body=bare)
                sections = Sections(body["messages"][0]["message"])
                assert sections.body() == expected
                assert sections.properties() == Properties(
                    message_id=sections.properties().message_id, subject="seen"
                )

    run(work)
