"""What clients ask about sessions without a session's id, and for sessions that several share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from door.client import Manager, connected, opened, run
from lazaretto import Message, QueueOptions
from lazaretto.servicebus.amqp.events import LinkAttached, LinkDetached
from lazaretto.servicebus.amqp.performatives import Source, Target
from lazaretto.servicebus.amqp.values import Described, Int

SESSION = "com.microsoft:session-filter"
SHARED = "com.microsoft:non-exclusive-session-filter"


def test_a_request_names_the_link_instead_of_an_empty_id(tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(tmp_path) as (broker, door), connected(door) as client:
            await broker.create_queue("s", QueueOptions(requires_session=True))
            await broker.sender("s").send([Message(b"1", session_id=""), Message(b"2", session_id="b")])
            await client.link(sends=False, address="s", name="empty", filters={SESSION: ""})
            await client.link(sends=False, address="s", name="other", filters={SESSION: "b"})
            manager = Manager(client)
            await manager.open("s/$management")
            count: dict[str, Any] = {"from_sequence_number": 0, "message_count": Int(9)}
            for link, number in (("empty", 1), ("other", 1), (None, 2)):
                status, body = await manager.ask("peek-message", link=link, **count)
                assert (status, len(body["messages"])) == (200, number), link
            assert (await manager.ask("set-session-state", link="empty", session_state=b"e"))[0] == 200
            status, body = await manager.ask("get-session-state", link="empty")
            assert (status, body["session-state"]) == (200, b"e")
            status, body = await manager.ask("get-session-state", link="other")
            assert (status, body["session-state"]) == (200, None)
            assert (await manager.ask("renew-session-lock", link="empty"))[0] == 200
            assert (await manager.ask("renew-session-lock", link="nobody's"))[0] == 410

    run(work)


@pytest.mark.parametrize(
    "filters",
    [{SHARED: Described(83_483_426_830, ["a", None])}, {"named otherwise": Described(83_483_426_830, [])}],
)
def test_a_session_that_several_share_is_refused_by_name(tmp_path: Path, filters: dict[str, Any]) -> None:
    async def work() -> None:
        async with opened(tmp_path) as (broker, door), connected(door) as client:
            await broker.create_queue("s", QueueOptions(requires_session=True))
            session = client.connection.begin()
            session.attach("shared", sends=False, source=Source("s", filter=filters), target=Target("s"))
            await client.until(LinkAttached)
            error = (await client.until(LinkDetached)).error
            assert error is not None
            assert error.condition == "amqp:not-implemented"
            assert SHARED in str(error.description)

    run(work)
