"""Queues that the server makes for a link, as JMS's temporary ones: each lives as long as its link."""

from __future__ import annotations

import contextlib
import secrets
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import msgspec

from lazaretto.errors import EntityNotFound
from lazaretto.model.entities import QueueOptions
from lazaretto.servicebus.amqp import AmqpError, Link
from lazaretto.servicebus.amqp.conditions import NOT_IMPLEMENTED
from lazaretto.servicebus.amqp.performatives import Source, Target
from lazaretto.servicebus.amqp.values import Described, Symbol, ULong
from lazaretto.servicebus.server import Client
from lazaretto.servicebus.signatures import Right

if TYPE_CHECKING:
    from lazaretto.aio import AsyncBroker

#: What JMS's clients call a topic that the server would have to make.
_TOPICS: Final = frozenset({"topic", "temporary-topic"})
#: What is left of a server that was killed is deleted after that time.
_OPTIONS: Final = QueueOptions(auto_delete_on_idle=timedelta(days=1))
#: `delete-on-close`: the queue is deleted when the link that made it is.
_LIFETIME: Final = {Symbol("lifetime-policy"): Described(ULong(0x2B), [])}


class Temporary:
    """The queues that were made for links of one connection."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._queues: dict[Link, tuple[AsyncBroker, str]] = {}

    async def make(self, link: Link) -> None:
        """Make the queue of a link that asks for a dynamic one, and name it as the link's end.

        Raises AmqpError for a topic, Unauthorized without the right to make entities.
        """
        end = link.source if link.sends else link.target
        if not isinstance(end, Source | Target) or not end.dynamic:
            return
        if not _TOPICS.isdisjoint(end.capabilities or ()):
            raise AmqpError(
                NOT_IMPLEMENTED,
                "expected a queue or the address of a topic, got a topic that is dynamic: this server makes "
                "queues alone that live as long as a link; use a temporary queue",
            )
        name = f"temporary-{secrets.token_hex(16)}"
        self._client.grants.require(name, Right.MANAGE)
        broker = self._client.door.broker
        self._queues[link] = broker, name
        await broker.create_queue(name, _OPTIONS, actor=self._client.grants.actor(name, Right.MANAGE))
        named = msgspec.structs.replace(end, address=name, dynamic_node_properties=_LIFETIME)
        if isinstance(named, Source):
            link.source = named
        else:
            link.target = named

    def end(self, link: Link) -> None:
        """Delete the queue of a link, if it has one."""
        made = self._queues.pop(link, None)
        if made is not None:
            self._client.start(self._delete(*made))

    async def _delete(self, broker: AsyncBroker, name: str) -> None:
        # Somebody may have deleted it before.
        with contextlib.suppress(EntityNotFound):
            await broker.delete_queue(name, actor=self._client.grants.actor(name, Right.MANAGE))
