"""AMQP in web sockets, and what else comes to the door's port."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import trustme
from azure.servicebus import ServiceBusClient, ServiceBusMessage, TransportType
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient

from door.client import opened, run
from door.served import Served
from lazaretto import Broker
from lazaretto.servicebus import DoorLimits

WAIT = 120
AMQP = b"AMQP\x03\x01\x00\x00"
sqlite = pytest.mark.stores("sqlite")


def test_the_sdk_in_a_web_socket(served: Served, broker: Broker) -> None:
    with ServiceBusClient.from_connection_string(
        served.connection_string,
        transport_type=TransportType.AmqpOverWebsocket,
        # Without it the SDK knows no port but 80.
        custom_endpoint_address=f"sb://localhost:{served.port}",
        retry_total=0,
    ) as client:
        with client.get_queue_sender("q") as sender:
            sender.send_messages([ServiceBusMessage("x" * size) for size in (1, 200_000)])
        with client.get_queue_receiver("q") as receiver:
            for size in (1, 200_000):
                (found,) = receiver.receive_messages(1, WAIT)
                assert len(str(found)) == size
                receiver.complete_message(found)
    assert broker.queue("q").counts.total == 0


@sqlite
def test_the_asynchronous_sdk_in_a_web_socket_with_tls(
    serve: Callable[..., Served], broker: Broker, tmp_path: Path
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    made = authority.issue_cert("localhost").private_key_and_cert_chain_pem
    made.write_to_path(tmp_path / "certificate.pem")
    (tmp_path / "key").write_text("the key")
    files = (str(tmp_path / name) for name in ("key", "certificate.pem"))
    served = serve("--key-file", next(files), "--certificate", next(files))

    async def main() -> None:
        async with AsyncServiceBusClient.from_connection_string(
            served.connection_string.replace("SharedAccessKey=KEY", "SharedAccessKey=the key"),
            transport_type=TransportType.AmqpOverWebsocket,
            custom_endpoint_address=f"sb://localhost:{served.port}",
            connection_verify=str(tmp_path / "authority.pem"),
            retry_total=0,
        ) as client:
            async with client.get_queue_sender("q") as sender:
                await sender.send_messages(ServiceBusMessage("in"))
            async with client.get_queue_receiver("q") as receiver:
                (found,) = await receiver.receive_messages(1, WAIT)
                assert str(found) == "in"
                await receiver.complete_message(found)

    asyncio.run(main())
    assert broker.queue("q").counts.total == 0


class Raw:
    """A client that speaks web sockets by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        #: What the server chose of what the client asked for.
        self.subprotocol = ""

    async def upgrade(
        self, path: str = "/$servicebus/websocket", protocol: str = "AMQPWSB10", **more: str
    ) -> int:
        """Ask for a web socket, and return the status of the answer."""
        headers = {
            "Host": "localhost",
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Protocol": protocol,
            **more,
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self.writer.write(f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode())
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), WAIT)
        named = (line.partition(": ") for line in head.decode().split("\r\n"))
        self.subprotocol = next((to for name, _, to in named if name.lower() == "sec-websocket-protocol"), "")
        return int(head.split()[1])

    def send(self, data: bytes, opcode: int = 2, *, masked: bool = True, final: bool = True) -> None:
        """Send a frame."""
        size = len(data)
        first = bytes((opcode | (0x80 if final else 0),))
        mask = 0x80 if masked else 0
        length = bytes((mask | size,)) if size < 126 else bytes((mask | 127,)) + size.to_bytes(8, "big")
        self.writer.write(first + length + (bytes(4) if masked else b"") + data)

    async def rest(self) -> bytes:
        """Return what comes until the server hangs up; none if it does so rudely."""
        try:
            return await asyncio.wait_for(self.reader.read(), WAIT)
        except ConnectionError:
            return b""


@contextlib.asynccontextmanager
async def raw(port: int) -> AsyncIterator[Raw]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Raw(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


@sqlite
class TestAbuse:
    """The door hangs up, and goes on serving others."""

    def test_either_name_of_amqp_is_taken(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with opened(tmp_path) as (_, door):
                for protocol, name in (
                    ("amqp", "amqp"),
                    ("AMQPWSB10", "AMQPWSB10"),
                    ("mqtt, amqp, AMQPWSB10", "amqp"),
                    ("AMQPWSB10,amqp", "AMQPWSB10"),
                    ("mqtt,AMQPWSB10", "AMQPWSB10"),
                ):
                    for path in ("/$servicebus/websocket", "/$servicebus/websocket/"):
                        async with raw(door.port) as client:
                            assert await client.upgrade(path, protocol) == 101
                            assert client.subprotocol == name
                            client.send(AMQP)
                            assert AMQP in await client.reader.read(1_000)

        run(main)

    def test_upgrades_that_are_refused(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with opened(tmp_path) as (_, door):
                for given, status in (
                    ({"path": "/elsewhere"}, 403),
                    ({"protocol": "mqtt"}, 403),
                    ({"protocol": "mqtt, AMQP"}, 403),
                    ({"protocol": ""}, 400),
                    ({"Host": "evil.example"}, 403),
                    ({"Origin": "https://evil.example"}, 403),
                    ({"Sec-WebSocket-Version": "1"}, 400),
                    ({"Sec-WebSocket-Key": "short"}, 400),
                    ({}, 101),
                    ({"Origin": "http://localhost:3000"}, 101),
                ):
                    async with raw(door.port) as client:
                        assert await client.upgrade(**given) == status, given

        run(main)

    def test_frames_that_break_the_rules(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("lazaretto.serving.http.LONGEST_CLOSING", 0.05)

        async def main() -> None:
            async with opened(tmp_path) as (_, door):
                breaking: list[Callable[[Raw], None]] = [
                    lambda client: client.send(AMQP, masked=False),
                    lambda client: client.send(AMQP, opcode=1),
                    lambda client: client.send(AMQP, opcode=7),
                    lambda client: client.send(AMQP, opcode=0),
                    lambda client: client.writer.write(b"\x82\xff" + (1 << 62).to_bytes(8, "big")),
                    lambda client: client.send(bytes(5 << 20)),
                    lambda client: client.send(b"HTTP/1.1"),
                    lambda client: client.send(b"", opcode=8),
                ]
                for send in breaking:
                    async with raw(door.port) as client:
                        assert await client.upgrade() == 101
                        send(client)
                        assert len(await client.rest()) < 200
                async with raw(door.port) as client:
                    await client.upgrade()
                    client.send(AMQP)
                    # The header of SASL comes in a frame of its own.
                    assert (await asyncio.wait_for(client.reader.readexactly(10), WAIT))[2:] == AMQP

        run(main)

    def test_pieces_are_put_together(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with opened(tmp_path) as (_, door), raw(door.port) as client:
                await client.upgrade()
                client.send(AMQP[:3], final=False)
                client.send(b"ping", opcode=9)
                client.send(AMQP[3:5], opcode=0, final=False)
                client.send(AMQP[5:], opcode=0)
                said = await asyncio.wait_for(client.reader.readexactly(16), WAIT)
                assert said == b"\x8a\x04ping\x82" + said[7:8] + AMQP

        run(main)

    def test_heads_without_end(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with opened(tmp_path) as (_, door), raw(door.port) as client:
                client.writer.write(b"GET / HTTP/1.1\r\n")
                with pytest.raises(ConnectionError):
                    while True:
                        client.writer.write(b"X-Header: " + b"x" * 1_000 + b"\r\n")
                        await client.writer.drain()

        run(main)

    def test_who_says_nothing_is_hung_up_on(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with opened(tmp_path, limits=DoorLimits(opening_seconds=0.05)) as (_, door):
                for said in (b"", b"G", b"GET / HTTP/1.1\r\n"):
                    async with raw(door.port) as client:
                        client.writer.write(said)
                        await client.rest()

        run(main)

    def test_all_connections_count(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with (
                opened(tmp_path, limits=DoorLimits(connections=4)) as (_, door),
                raw(door.port) as first,
                raw(door.port) as second,
                raw(door.port) as third,
            ):
                second.writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                await second.reader.readuntil(b"healthy")
                assert await third.upgrade() == 101
                async with raw(door.port):
                    # The oldest makes room.
                    assert await first.rest() == b""

        run(main)

    def test_no_tls_without_a_certificate(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with opened(tmp_path) as (_, door):
                with pytest.raises((ssl.SSLError, ConnectionError)):
                    await asyncio.open_connection("127.0.0.1", door.port, ssl=ssl.create_default_context())

        run(main)

    def test_more_ports(self, tmp_path: Path) -> None:
        async def main() -> None:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            async with opened(tmp_path, more_ports=[port]) as (_, door):
                assert door.port != port
                async with raw(port) as client:
                    assert await client.upgrade() == 101

        run(main)


@sqlite
def test_a_door_ends_with_clients_of_every_kind(tmp_path: Path) -> None:
    async def main() -> None:
        async with contextlib.AsyncExitStack() as stack:
            async with opened(tmp_path) as (_, door):
                idle, asking, upgraded = [await stack.enter_async_context(raw(door.port)) for _ in range(3)]
                asking.writer.write(b"GET /q HTTP/1.1\r\n")
                await upgraded.upgrade()
            left = asyncio.all_tasks() - {asyncio.current_task()}
            assert not [one for one in left if "lazaretto" in repr(one)]
            for client in (idle, asking, upgraded):
                await client.rest()

    run(main)
