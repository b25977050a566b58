"""Keys can be changed while clients are at work, and tokens end by themselves."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from door.client import Manager, connected, opened, run, token
from web.conftest import Served

from lazaretto import Broker
from lazaretto.cli.amqp_door import AmqpDoor
from lazaretto.commands import CreateToken, GrantRole

sqlite = pytest.mark.stores("sqlite")


def test_a_second_key_of_the_server_opens_the_same(tmp_path: Path) -> None:
    for name in ("new", "old"):
        (tmp_path / name).write_text(f"the {name} key of this server")
    door = AmqpDoor(
        amqp=0, amqp_host="127.0.0.1", key_file=tmp_path / "new", second_key_file=tmp_path / "old",
        certificate=None, private_key=None, insecure=False, plain=False, more_ports=None,
    )  # fmt: skip

    async def work() -> None:
        async with opened(tmp_path, policies=door.policies()) as (_, served), connected(served) as client:
            cbs = Manager(client)
            await cbs.open("$cbs")
            for key, status in (("new", 202), ("old", 202), ("other", 401)):
                signed = token("RootManageSharedAccessKey", f"the {key} key of this server", "sb://h/q")
                assert (await cbs.put_token("sb://h/q", signed))[0] == status

    run(work)


def test_tokens_end_after_ninety_days_unless_another_time_is_given(broker: Broker) -> None:
    broker.run(GrantRole(person="ana", role="viewer"))
    later = datetime.now(UTC) + timedelta(days=400)
    for given in ({}, {"expires": later}, {"expires": None}):
        broker.run(CreateToken(person="ana", **given))
    never, late, usual = broker.tokens()
    assert usual.expires == usual.created + timedelta(days=90)
    assert late.expires == later
    assert never.expires is None


@sqlite
@pytest.mark.parametrize(("days", "warned"), [(13, True), (15, False)])
def test_the_log_warns_before_a_token_ends(
    broker: Broker, served: Served, caplog: pytest.LogCaptureFixture, days: int, warned: bool
) -> None:
    broker.run(GrantRole(person="ana", role="viewer"))
    made = broker.run(CreateToken(person="ana", expires=datetime.now(UTC) + timedelta(days=days)))
    client = served.client(None)
    with caplog.at_level(logging.WARNING, "lazaretto.access"):
        for _ in range(3):
            client.get("/queues", headers={"Authorization": f"Bearer {made['secret']}"}).raise_for_status()
    assert [made["id"] in line for line in caplog.messages if "ends at" in line] == [True] * warned
    assert made["secret"] not in caplog.text
