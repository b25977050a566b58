"""The door with a client written by hand: what no SDK would do."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import ssl
import uuid
from pathlib import Path

import pytest

from door.client import connected, opened, run
from lazaretto import Message, QueueOptions, ReceivedMessage, aio
from lazaretto.errors import InvalidOption
from lazaretto.servicebus import AccessPolicy, DoorLimits, check_address, open_door
from lazaretto.servicebus.amqp import Sections, encode
from lazaretto.servicebus.amqp.composites import encode_composite
from lazaretto.servicebus.amqp.events import (
    CreditChanged,
    DeliveriesUpdated,
    LinkDetached,
    MessageReceived,
    SenderUpdated,
)
from lazaretto.servicebus.amqp.frames import frame
from lazaretto.servicebus.amqp.performatives import Modified, Rejected, Transfer

BODY = b"\x00\x53\x75\xa0\x05hello"


def test_a_hundred_open_sends_are_stored_in_order(tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(tmp_path) as (broker, door), connected(door) as client:
            link = await client.link(sends=True)
            while link.credit < 100:
                await client.until(CreditChanged)
            for n in range(100):
                link.session.transfer(link, b"\x00\x53\x75" + encode(b"%d" % n), b"%d" % n)
            answered = 0
            while answered < 100:
                answered += len((await client.until(DeliveriesUpdated)).deliveries)
            assert [m.body for m in await broker.peek("q", 100)] == [b"%d" % n for n in range(100)]

    run(work)


def test_no_more_than_the_credit_is_handed_over(tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(tmp_path) as (broker, door), connected(door) as client:
            await broker.sender("q").send([Message(b"x")] * 10)
            link = await client.link(sends=False)
            link.session.grant(link, 3)
            numbers = [(await client.until(MessageReceived)).delivery_id for _ in range(3)]
            assert (await broker.queue("q")).counts.locked == 3
            # A drain answers at once with what there is, and takes the rest of the credit back.
            link.session.settle(numbers[0], numbers[-1])
            link.session.grant(link, 20, drain=True)
            for _ in range(7):
                await client.until(MessageReceived)
            while link.credit:
                await client.until(CreditChanged)

    run(work)


def test_credit_that_is_taken_back_leaves_nothing_locked(tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(tmp_path) as (broker, door), connected(door) as client:
            link = await client.link(sends=False)
            link.session.grant(link, 5)
            link.session.grant(link, 0)
            link.session.grant(link, 5, drain=True)
            while link.credit:
                await client.until(CreditChanged)
            await broker.sender("q").send(Message(b"x"))
            async with broker.receiver("q") as own:
                assert len(await own.receive(1)) == 1

    run(work)


@pytest.mark.parametrize("address", ["q", "q/$management", "$cbs"])
def test_a_drain_is_answered_whatever_the_link_is_for(tmp_path: Path, address: str) -> None:
    async def work() -> None:
        async with opened(tmp_path) as (_, door), connected(door) as client:
            link = await client.link(sends=False, address=address)
            for credit in (100, 0, 1):
                link.session.grant(link, credit, drain=True)
                assert (await client.until(CreditChanged)).link is link
                assert link.credit == 0

    run(work)


@pytest.mark.parametrize("path", ["Ns/Fault--Ping--", "batcheditem__", "_._", "txt/.-_123"])
def test_names_of_frameworks_are_taken(tmp_path: Path, path: str) -> None:
    async def work() -> None:
        async with opened(tmp_path) as (broker, door), connected(door) as client:
            await broker.create_queue(path)
            await broker.sender(path).send(Message(b"x"))
            link = await client.link(sends=False, address=path)
            link.session.grant(link, 1)
            found = await client.until(MessageReceived)
            assert Sections(found.payload).body() == [b"x"]
            link.session.settle(found.delivery_id, found.delivery_id, encode_composite(Rejected()))
            letters = await client.link(sends=False, address=f"{path}/$DeadLetterQueue", name="letters")
            letters.session.grant(letters, 1)
            assert Sections((await client.until(MessageReceived)).payload).body() == [b"x"]

    run(work)


def test_who_settles_and_asks_in_one_breath_gets_the_next_messages(tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(tmp_path) as (broker, door), connected(door) as client:
            await broker.sender("q").send([Message(b"%d" % n) for n in range(20)])
            link = await client.link(sends=False)
            bodies: list[bytes] = []
            link.session.grant(link, 1)
            for _ in range(20):
                found = await client.until(MessageReceived)
                bodies += Sections(found.payload).body()
                link.session.settle(found.delivery_id, found.delivery_id, settled=False)
                link.session.grant(link, 1)
            settled = 0
            while settled < 20:
                told = await client.until(SenderUpdated)
                settled += told.last - told.first + 1
            assert bodies == [b"%d" % n for n in range(20)]
            assert (await broker.queue("q")).counts.total == 0
            # Nothing is left: the link waits, and the next one comes.
            await broker.sender("q").send(Message(b"late"))
            assert Sections((await client.until(MessageReceived)).payload).body() == [b"late"]

    run(work)


def test_who_asks_and_leaves_in_one_breath_leaves_nothing_locked(tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(tmp_path) as (broker, door), connected(door) as client:
            await broker.sender("q").send([Message(b"x")] * 10)
            for n in range(5):
                link = await client.link(sends=False, name=f"l{n}")
                link.session.grant(link, 10)
                link.session.detach(link)
                await client.until(LinkDetached)
            async with broker.receiver("q") as own:
                found: list[ReceivedMessage] = []
                while len(found) < 10:
                    found += await own.receive(10, max_wait=120)
            assert [message.delivery_count for message in found] == [0] * 10

    run(work)


def test_a_link_that_is_attached_in_another_session_takes_the_place_of_the_first(tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(tmp_path) as (broker, door), connected(door) as client:
            first = await client.link(sends=False)
            first.session.grant(first, 5)
            second = await client.link(sends=False)
            told = await client.until(LinkDetached)
            assert told.link is first
            assert told.error is not None
            assert told.error.condition == "amqp:link:stolen"
            second.session.grant(second, 5)
            await broker.sender("q").send(Message(b"x"))
            assert (await client.until(MessageReceived)).link is second

    run(work)


def test_a_link_with_a_session_is_stolen_with_it(tmp_path: Path) -> None:
    """The session is free before the second link asks for it, also while a receive of the first waits."""

    async def work() -> None:
        async with opened(tmp_path) as (broker, door), connected(door) as client:
            await broker.create_queue("s", QueueOptions(requires_session=True))
            wanted = {"com.microsoft:session-filter": "one"}
            link = await client.link(sends=False, address="s", filters=wanted)
            for _ in range(30):
                link.session.grant(link, 5)
                stolen, link = link, await client.link(sends=False, address="s", filters=wanted)
                told = await client.until(LinkDetached)
                assert told.link is stolen
                assert told.error is not None
                assert told.error.condition == "amqp:link:stolen"
            link.session.grant(link, 5)
            await broker.sender("s").send(Message(b"x", session_id="one"))
            assert (await client.until(MessageReceived)).link is link

    run(work)


def test_the_text_of_an_error_fits_in_a_frame_however_many_queues_there_are(tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(tmp_path) as (broker, door), connected(door) as client:
            for n in range(100):
                await broker.create_queue(f"{'long' * 15}/{n}")
            await client.link(sends=False, address="nowhere")
            error = (await client.until(LinkDetached)).error
            assert error is not None
            assert error.condition == "amqp:not-found"
            assert error.description is not None
            assert 900 < len(error.description) < 1_100

    run(work)


def test_two_connections_may_give_their_links_one_name(tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(tmp_path) as (broker, door), connected(door) as one, connected(door) as other:
            links = [await client.link(sends=False) for client in (one, other)]
            for link in links:
                link.session.grant(link, 1)
            await broker.sender("q").send([Message(b"x")] * 2)
            for client, link in zip((one, other), links, strict=True):
                assert (await client.until(MessageReceived)).link is link

    run(work)


def test_what_is_no_message_is_rejected_and_the_link_goes_on(tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(tmp_path) as (broker, door), connected(door) as client:
            link = await client.link(sends=True)
            while not link.credit:
                await client.until(CreditChanged)
            for payload in (
                b"junk",
                b"\x00\x53\x75" + encode("text"),
                b"\x00\x53\x74" + encode({"x" * 300: 1}) + BODY,
            ):
                link.session.transfer(link, payload, b"t")
                state = (await client.until(DeliveriesUpdated)).state
                assert isinstance(state, Rejected)
                assert state.error is not None
                assert "expected" in (state.error.description or "")
            link.session.transfer(link, BODY, b"t")
            assert not isinstance((await client.until(DeliveriesUpdated)).state, Rejected)
            assert (await broker.queue("q")).counts.total == 1

    run(work)


@pytest.mark.parametrize("address", ["q", "q/$management"])
def test_messages_that_a_client_gives_up_use_no_credit_for_ever(tmp_path: Path, address: str) -> None:
    async def work() -> None:
        async with opened(tmp_path) as (_, door), connected(door) as client:
            link = await client.link(sends=True, address=address)
            while not link.credit:
                await client.until(CreditChanged)
            channel, handle = link.session.channel, link.handle
            assert handle is not None
            for number in range(link.credit):
                begin = frame(channel, Transfer(handle, number, b"t", 0, more=True))
                client.write(begin + frame(channel, Transfer(handle, aborted=True)))
            # As many as it might send, and the client counts all of them.
            link.delivery_count += link.credit
            link.credit = 0
            while not link.credit:
                await client.until(CreditChanged)

    run(work)


def test_released_is_no_attempt_and_modified_is_one(tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(tmp_path) as (broker, door), connected(door) as client:
            await broker.sender("q").send(Message(b"x"))
            link = await client.link(sends=False)
            link.session.grant(link, 1)
            first = await client.until(MessageReceived)
            state = encode_composite(Modified(True, message_annotations={"tried": 1}))
            link.session.settle(first.delivery_id, first.delivery_id, state)
            link.session.grant(link, 1)
            again = await client.until(MessageReceived)
            sections = Sections(again.payload)
            assert sections.header().delivery_count == 1
            assert uuid.UUID(bytes_le=again.delivery_tag)

    run(work)


def test_messages_pass_through_a_queue(tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(tmp_path) as (broker, door), connected(door) as client:
            await broker.create_queue("to")
            through = {"com.microsoft:transfer-destination-address": "to"}
            link = await client.link(sends=True, properties=through)
            while not link.credit:
                await client.until(CreditChanged)
            link.session.transfer(link, BODY, b"1")
            await client.until(DeliveriesUpdated)
            assert [m.body for m in await broker.peek("to", 9)] == [b"hello"]
            await broker.delete_queue("to")
            link.session.transfer(link, BODY, b"2")
            await client.until(DeliveriesUpdated)
            assert len(await broker.peek("q/$Transfer/$DeadLetterQueue", 9)) == 1

    run(work)


def test_a_link_that_is_refused_leaves_the_others(tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(tmp_path) as (_, door), connected(door) as client:
            await client.link(sends=True, address="nowhere", name="a")
            error = (await client.until(LinkDetached)).error
            assert error is not None
            assert error.condition == "amqp:not-found"
            await client.link(sends=True, name="b")

    run(work)


def test_without_a_token_nothing_is_allowed(tmp_path: Path) -> None:
    async def work() -> None:
        policies = [AccessPolicy("p", "secret")]
        async with opened(tmp_path, policies=policies) as (_, door), connected(door) as client:
            for sends, name in ((True, "a"), (False, "b")):
                await client.link(sends=sends, name=name)
                error = (await client.until(LinkDetached)).error
                assert error is not None
                assert error.condition == "amqp:unauthorized-access"
                assert "secret" not in (error.description or "")

    run(work)


def test_only_this_machine_is_served(tmp_path: Path) -> None:
    async def work() -> None:
        async with await aio.connect(tmp_path / "store.db") as broker:
            for host in ("0.0.0.0", "192.0.2.1", "example.com", ""):
                with pytest.raises(InvalidOption, match="expected an address of this machine"):
                    async with open_door(broker, host=host, port=0):
                        pass
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            policies = [AccessPolicy("p", "secret")]
            for options in ({"tls": context}, {"policies": policies}):
                with pytest.raises(InvalidOption, match="TLS and a key"):
                    async with open_door(broker, host="0.0.0.0", port=0, **options):
                        pass
            with pytest.raises(OSError, match="cannot listen on no address:0"):
                async with open_door(broker, host="no address", port=0, insecure=True):
                    pass
            check_address("0.0.0.0", context, policies)
            check_address("0.0.0.0", None, (), insecure=True)

    run(work)


def test_connections_are_bounded_and_noise_is_hung_up_on(tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(tmp_path, limits=DoorLimits(connections=3)) as (_, door):
            dice = random.Random(7)
            for _ in range(50):
                reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
                writer.write(dice.choice((b"", b"AMQP\x00\x01\x00\x00")) + dice.randbytes(200) + b"\xff" * 8)
                async with asyncio.timeout(120):
                    with contextlib.suppress(OSError):
                        while await reader.read(4_096):
                            pass
                writer.close()
            async with connected(door), connected(door), connected(door):
                with socket.create_connection(("127.0.0.1", door.port)) as late:
                    late.settimeout(20)
                    assert await asyncio.to_thread(_is_hung_up, late)
            async with connected(door) as client:
                await client.link(sends=True)

    run(work)


def _is_hung_up(late: socket.socket) -> bool:
    try:
        return late.recv(10) == b""
    except ConnectionError:
        return True
