"""A client written by hand: the engine on a socket, and a door in the same process."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hmac
import time
import urllib.parse
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from door.served import Served
from lazaretto import aio
from lazaretto.servicebus import Door, open_door
from lazaretto.servicebus.amqp import Connection, Link, Properties, Section, Sections, Session, encode_section
from lazaretto.servicebus.amqp.composites import encode_composite
from lazaretto.servicebus.amqp.encode import NULL
from lazaretto.servicebus.amqp.events import (
    CreditChanged,
    Event,
    LinkAttached,
    MessageReceived,
    Opened,
    SessionBegun,
)
from lazaretto.servicebus.amqp.performatives import Source, Target

E = TypeVar("E", bound=Event)


class Client:
    """The engine as a client, on a socket."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, idle: int | None = None
    ) -> None:
        self.connection = Connection(
            server=False, container_id="client", sasl=("ANONYMOUS", None), idle_time_out=idle
        )
        self.events: list[Event] = []
        #: Where links are attached; None: each has a session of its own.
        self.shared: Session | None = None
        self.reader, self.writer = reader, writer

    def write(self, data: bytes) -> None:
        """Send bytes to the door."""
        self.writer.write(data)

    async def until(self, kind: type[E]) -> E:
        """Return the next event of a kind, taken out."""
        # Beats of the door's heart come in time however long nothing happens.
        async with asyncio.timeout(120):
            while True:
                for event in self.events:
                    if isinstance(event, kind):
                        self.events.remove(event)
                        return event
                self.write(self.connection.take())
                data = await self.reader.read(65_536)
                assert data, "the door hung up"
                self.events += self.connection.receive(data)

    async def link(
        self,
        *,
        sends: bool,
        address: str = "q",
        name: str = "l",
        settled: bool = False,
        properties: dict[str, Any] | None = None,
        filters: dict[str, Any] | None = None,
    ) -> Link:
        """Attach a link in the session that all share, or in one of its own."""
        session = self.shared
        if session is None:
            session = self.connection.begin()
            await self.until(SessionBegun)
        session.attach(
            name,
            sends=sends,
            source=Source(address, filter=filters),
            target=Target(address),
            snd_settle_mode=1 if settled else 2,
            properties=properties,
        )
        return (await self.until(LinkAttached)).link


class Manager:
    """Asks a management node, and returns the status and body of each answer."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def open(self, node: str) -> None:
        self._asks = await self._client.link(sends=True, address=node, name="asks")
        self._node = node
        self._asks.session.attach("replies", sends=False, source=Source(node), target=Target("me"))
        replies: Link = (await self._client.until(LinkAttached)).link
        replies.session.grant(replies, 50)
        while not self._asks.credit:
            await self._client.until(CreditChanged)

    async def ask(self, operation: str, **body: Any) -> tuple[int, Any]:
        """Ask for an operation. `link`: that of the receiver which the request belongs to."""
        link = body.pop("link", None)
        given = {name.replace("_", "-"): value for name, value in body.items()}
        properties = {"operation": f"com.microsoft:{operation}"}
        if link is not None:
            properties["associated-link-name"] = link
        sections = await self.exchange(properties, given)
        return int(sections.mapping(Section.APPLICATION_PROPERTIES)["statusCode"]), sections.body()[0]

    async def put_token(self, audience: str, token: str) -> tuple[int, str]:
        sections = await self.exchange({"operation": "put-token", "name": audience}, token)
        told = sections.mapping(Section.APPLICATION_PROPERTIES)
        return int(told["status-code"]), told["status-description"]

    async def exchange(
        self, properties: dict[str, Any], body: Any, message_id: Any = "id", state: bytes = NULL
    ) -> Sections:
        """Ask, and return the answer as it came. `state`: of the transfer, encoded."""
        parts = (
            encode_composite(Properties(message_id, reply_to="me")),
            encode_section(Section.APPLICATION_PROPERTIES, properties),
            encode_section(Section.VALUE, body),
        )
        self._asks.session.transfer(self._asks, b"".join(parts), b"t", state=state)
        return Sections((await self._client.until(MessageReceived)).payload)


@contextlib.asynccontextmanager
async def connected(door: Door | Served) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
    client = Client(reader, writer)
    try:
        await client.until(Opened)
        yield client
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


@contextlib.asynccontextmanager
async def opened(place: Path | str, **options: Any) -> AsyncIterator[tuple[aio.AsyncBroker, Door]]:
    """Open a door on a store, given by its URL or by its folder."""
    async with await aio.connect(place if isinstance(place, str) else place / "store.db") as broker:
        await broker.create_queue("q")
        async with open_door(broker, port=0, **options) as door:
            yield broker, door


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(work())


def token(name: str, key: str, resource: str) -> str:
    """Return a shared access signature that a key gives for a resource."""
    quoted, until = urllib.parse.quote_plus(resource), int(time.time()) + 100
    raw = hmac.new(key.encode(), f"{quoted}\n{until}".encode(), "sha256").digest()
    signature = urllib.parse.quote(base64.b64encode(raw))
    return f"SharedAccessSignature sr={quoted}&sig={signature}&se={until}&skn={name}"
