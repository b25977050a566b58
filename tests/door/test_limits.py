"""What clients may use of a server, and how long it waits for them."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from pathlib import Path
from typing import Any

import pytest

from door.client import Client, connected, opened, run
from lazaretto import InvalidOption, Message
from lazaretto.servicebus import DoorLimits
from lazaretto.servicebus.amqp import ConnectionLimits, Section, encode_section
from lazaretto.servicebus.amqp.events import (
    Closed,
    CreditChanged,
    DeliveriesUpdated,
    LinkDetached,
    MessageReceived,
    Opened,
    SessionBegun,
)
from lazaretto.servicebus.amqp.frames import AMQP_HEADER, HEARTBEAT, frame, transfer_frame
from lazaretto.servicebus.amqp.performatives import Attach, Begin, Rejected
from lazaretto.servicebus.peer import Watch
from lazaretto.servicebus.server import Door


@pytest.mark.parametrize("field", dataclasses.fields(DoorLimits), ids=lambda field: field.name)
def test_each_is_checked(field: Any) -> None:
    hostile: list[Any] = [-1, 1 << 60, "1", None, True]
    for wrong in hostile:
        with pytest.raises(InvalidOption, match=field.name):
            DoorLimits(**{field.name: wrong})
    assert getattr(DoorLimits(**{field.name: 600}), field.name) == 600


class TestWatch:
    """What a client should have done, on a clock by hand."""

    LIMITS = DoorLimits(idle_seconds=10, linking_seconds=20, stalled_seconds=30, flows=5, opening_size=1_000)

    def test_who_says_nothing(self) -> None:
        watch = Watch(self.LIMITS, 100.0)
        assert watch.overdue(110.0, linked=True, read=0, waiting=0) is None
        assert watch.overdue(111.0, linked=True, read=0, waiting=0) == (
            "the connection was inactive for more than the allowed 10000 milliseconds"
        )
        watch.take(8, 1, 111.0, opened=True)
        assert watch.overdue(120.0, linked=True, read=0, waiting=0) is None

    def test_who_has_no_link(self) -> None:
        watch = Watch(self.LIMITS, 0.0)
        watch.take(8, 1, 15.0, opened=True)
        watch.take(8, 1, 30.0, opened=True)
        assert watch.overdue(35.0, linked=False, read=0, waiting=0) is None
        assert "had no link" in str(watch.overdue(36.0, linked=False, read=0, waiting=0))
        assert watch.overdue(36.0, linked=True, read=0, waiting=0) is None

    def test_who_reads_nothing(self) -> None:
        watch = Watch(self.LIMITS, 0.0)
        for now, read, waiting, late in (
            (0.0, 5, 100, False),
            (30.0, 5, 200, False),
            (31.0, 5, 200, True),
            (40.0, 6, 200, False),
            (70.0, 6, 200, False),
            (71.0, 6, 0, False),
            (100.0, 6, 1, False),
            (102.0, 6, 1, True),
        ):
            watch.take(8, 1, now, opened=True)
            assert (
                "read nothing" in str(watch.overdue(now, linked=True, read=read, waiting=waiting))
            ) is late

    def test_who_talks_without_effect(self) -> None:
        watch = Watch(self.LIMITS, 0.0)
        assert watch.take(8, 5, 0.5, opened=True) == 0.0
        assert watch.take(8, 6, 0.75, opened=True) == 0.25
        assert watch.take(8, 11, 1.5, opened=True) == 0.0

    def test_who_sends_much_before_a_login(self) -> None:
        watch = Watch(self.LIMITS, 0.0)
        watch.take(1_000, 0, 0.0, opened=False)
        assert not watch.overfull
        watch.take(1, 0, 0.0, opened=False)
        assert watch.overfull

    def test_who_sends_many_frames_before_a_login(self) -> None:
        watch = Watch(self.LIMITS, 0.0)
        watch.take(8, 100, 0.0, opened=True)
        assert not watch.overfull
        watch.take(8, 101, 0.0, opened=True)
        assert watch.overfull


def limited(path: Path, **limits: Any) -> Any:
    return opened(path, limits=DoorLimits(**limits))


async def _hung_up(door: Door, data: bytes) -> bytes:
    """Send bytes, and return what comes back until the door hangs up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
    writer.write(data)
    back = b""
    async with asyncio.timeout(120):
        try:
            while some := await reader.read(4_096):
                back += some
        except OSError:
            pass
    writer.close()
    return back


async def _closed_at(door: Door, client: Client, later: float) -> str:
    """Let time pass for the door, and return why it closes."""
    for peer in door.peers:
        peer.check_time(time.monotonic() + later)
    error = (await client.until(Closed)).error
    assert error is not None
    return f"{error.condition} {error.description}"


def test_a_client_that_never_opens(tmp_path: Path) -> None:
    async def work() -> None:
        async with limited(tmp_path, opening_seconds=2.0) as (_, door):
            assert (await _hung_up(door, AMQP_HEADER)).startswith(AMQP_HEADER)
            assert await _hung_up(door, b"AMQP") == b""

    run(work)


def test_a_client_that_sends_much_before_it_opens(tmp_path: Path) -> None:
    async def work() -> None:
        async with limited(tmp_path, opening_size=1_000) as (_, door):
            await _hung_up(door, AMQP_HEADER + HEARTBEAT * 1_000)

    run(work)


def test_clients_that_do_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(tmp_path) as (_, door):
            async with connected(door) as client:
                assert client.connection.remote_open is not None
                assert client.connection.remote_open.idle_time_out == 240_000
                assert await _closed_at(door, client, 61) == (
                    "amqp:connection:forced "
                    "the connection had no link for more than the allowed 60000 milliseconds"
                )
            async with connected(door) as client:
                await client.link(sends=True)
                assert "was inactive" in await _closed_at(door, client, 241)

    run(work)


def test_a_client_that_reads_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        async with limited(tmp_path, write_buffer=1_000) as (broker, door):
            await broker.sender("q").send([Message(b"x" * 200_000)] * 60)
            async with connected(door) as client:
                link = await client.link(sends=False, settled=False)
                link.session.grant(link, 60)
                client.write(client.connection.take())
                (peer,) = door.peers
                async with asyncio.timeout(120):
                    while not peer.paused:
                        await asyncio.sleep(0.01)
                # The others stay where they were, unlocked.
                assert (await broker.queue("q")).counts.active >= 0
                peer.check_time(time.monotonic())
                peer.check_time(time.monotonic() + 31)
                async with asyncio.timeout(120):
                    while door.peers:
                        await asyncio.sleep(0.01)

    run(work)


def test_connections_of_one_address(tmp_path: Path) -> None:
    async def work() -> None:
        async with limited(tmp_path, connections_per_address=1) as (_, door):
            async with connected(door):
                assert await _hung_up(door, AMQP_HEADER) == b""
            async with asyncio.timeout(120):
                while door.peers:
                    await asyncio.sleep(0.01)
            async with connected(door):
                pass

    run(work)


def test_sessions_and_links(tmp_path: Path) -> None:
    async def work() -> None:
        async with limited(tmp_path, sessions=2, links=2) as (_, door):
            for beyond in (frame(2, Begin(None, 0, 1, 1)), frame(0, Attach("l", 2, False))):
                async with connected(door) as client:
                    client.connection.begin()
                    await client.until(SessionBegun)
                    client.write(beyond)
                    error = (await client.until(Closed)).error
                    assert error is not None
                    assert error.condition == "amqp:connection:framing-error"

    run(work)


def test_the_size_of_frames(tmp_path: Path) -> None:
    async def work() -> None:
        async with limited(tmp_path, frame_size=512) as (_, door), connected(door) as client:
            assert client.connection.remote_max_frame_size == 512
            link = await client.link(sends=True)
            while not link.credit:
                await client.until(CreditChanged)
            client.write(client.connection.take() + b"\x00\x00\x02\x01\x02\x00\x00\x00")
            await client.until(Closed)

    run(work)


def test_messages_in_part(tmp_path: Path) -> None:
    async def work() -> None:
        limits = DoorLimits(frame_size=1_000, partial_size=5_000)
        async with opened(tmp_path, limits=limits) as (_, door), connected(door) as client:
            for address in ("q", "q/$management"):
                link = await client.link(sends=True, address=address, name=address)
                while not link.credit:
                    await client.until(CreditChanged)
                # Of each message there is one part, which is small enough for its link.
                assert link.handle is not None
                channel = link.session.channel
                for _ in range(3):
                    client.write(
                        transfer_frame(channel, link.handle, 0, b"t", b"x" * 900, settled=False, more=True)
                    )
            error = (await client.until(LinkDetached)).error
            assert error is not None
            assert error.condition == "amqp:resource-limit-exceeded"

    run(work)


@pytest.mark.parametrize("path", ["q", "t"])
def test_no_client_is_told_of_larger_messages_than_can_come(tmp_path: Path, path: str) -> None:
    async def work() -> None:
        async with limited(tmp_path, partial_size=5_000) as (broker, door), connected(door) as client:
            await broker.create_topic("t")
            link = await client.link(sends=True, address=path)
            assert link.remote_max_message_size == 5_000
            while not link.credit:
                await client.until(CreditChanged)
            link.session.transfer(link, encode_section(Section.DATA, b"x" * 6_000), b"large")
            told = await client.until(DeliveriesUpdated)
            assert isinstance(told.state, Rejected)
            assert told.state.error is not None
            assert told.state.error.condition == "amqp:link:message-size-exceeded"
            assert link.attached

    run(work)


def test_what_the_engine_keeps() -> None:
    limits = DoorLimits(frame_size=1_024, sessions=3, links=4, window=5, partial_size=6)
    assert limits.of_connection() == ConnectionLimits(
        max_frame_size=1_024, channel_max=2, handle_max=3, window=5, partial=6
    )


def test_messages_that_a_client_does_not_settle(tmp_path: Path) -> None:
    async def work() -> None:
        async with limited(tmp_path, unsettled=2) as (broker, door), connected(door) as client:
            await broker.sender("q").send([Message(b"%d" % n) for n in range(5)])
            link = await client.link(sends=False)
            link.session.grant(link, 100)
            first, second = [await client.until(MessageReceived) for _ in range(2)]
            await client.link(sends=True, name="to see that nothing more has come")
            assert (await broker.queue("q")).counts.locked == 2
            assert not any(isinstance(event, MessageReceived) for event in client.events)
            link.session.settle(first.delivery_id, second.delivery_id)
            for _ in range(2):
                await client.until(MessageReceived)

    run(work)


def test_who_has_all_that_it_may_have_hears_that_no_more_come(tmp_path: Path) -> None:
    async def work() -> None:
        async with limited(tmp_path, unsettled=2) as (broker, door), connected(door) as client:
            await broker.sender("q").send([Message(b"%d" % n) for n in range(5)])
            link = await client.link(sends=False)
            for _ in range(2):
                link.session.grant(link, 5, drain=True)
                while link.credit:
                    await client.until(CreditChanged)
            received = [event for event in client.events if isinstance(event, MessageReceived)]
            assert len(received) == (await broker.queue("q")).counts.locked == 2

    run(work)


def test_a_flood_of_flows_is_read_slowly(tmp_path: Path) -> None:
    async def work() -> None:
        async with limited(tmp_path, flows=100) as (_, door), connected(door) as client:
            link = await client.link(sends=True)
            (peer,) = door.peers
            transport = peer._transport
            assert isinstance(transport, asyncio.Transport)
            async with asyncio.timeout(120):
                while transport.is_reading():
                    client.write(HEARTBEAT * 500)
                    await asyncio.sleep(0.001)
            # It is served all the same.
            await client.link(sends=True, name="later")
            assert link.attached

    run(work)


def test_a_flood_lets_others_have_their_turn(tmp_path: Path) -> None:
    async def work() -> None:
        async with (
            limited(tmp_path, flows=1 << 30, frames=100) as (_, door),
            connected(door) as flooder,
        ):
            session = flooder.connection.begin()
            await flooder.until(SessionBegun)
            (peer,) = door.peers
            async with connected(door) as other:
                before = peer.flows
                session.send_flow()
                flow = flooder.connection.take()
                peer.data_received(flow * 20_000)
                peer.data_received(flow)
                assert peer.flows - before == 100
                # A session needs no commit, so nothing but turns of the loop stands before its answer.
                other.connection.begin()
                await other.until(SessionBegun)
                assert peer.flows - before < 20_001
                # What was not read at once is read in the end, and so is what the client says later.
                await flooder.link(sends=True)
                assert peer.flows - before >= 20_001

    run(work)


def test_a_client_that_waits_a_short_time_hears_of_the_door_in_time(tmp_path: Path) -> None:
    """A peer sends an empty frame before the other end's idle time-out runs out (AMQP 1.0, 2.4.5)."""

    async def work() -> None:
        async with opened(tmp_path) as (_, door):
            reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
            client = Client(reader, writer, idle=3_000)
            await client.until(Opened)
            for _ in range(3):
                beat = await asyncio.wait_for(reader.read(65_536), 3)
                assert beat == b"\x00\x00\x00\x08\x02\x00\x00\x00"
            writer.close()
            reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
            client = Client(reader, writer, idle=999)
            error = (await client.until(Closed)).error
            assert error is not None
            assert error.condition == "amqp:not-allowed"
            writer.close()

    run(work)
