"""One look at a page: who looks, at what, and what was done just before."""

from __future__ import annotations

import dataclasses
import secrets
from typing import Any

import msgspec
from starlette.requests import Request

from lazaretto.aio import AsyncBroker
from lazaretto.aio.visits import Visits
from lazaretto.commands import Command
from lazaretto.commands.opposites import opposites
from lazaretto.engine.log import EVENT_KINDS, AuditEntry
from lazaretto.errors import InvalidOption
from lazaretto.model.grants import Permission
from lazaretto.serving.budget import Share
from lazaretto.serving.http import share_of
from lazaretto.web.access import Identity
from lazaretto.web.bounded import hold_messages
from lazaretto.web.readings import later_than


@dataclasses.dataclass(frozen=True, slots=True)
class Page:
    """A page to show. `here`: the entry of the menu. `moved`: where to go instead."""

    template: str
    here: str
    title: str
    values: dict[str, Any]
    moved: str | None = None


def moved_to(address: str) -> Page:
    """Return a page that is elsewhere."""
    return Page("", "", "", {}, address)


@dataclasses.dataclass(frozen=True, slots=True)
class Done:
    """The person's last action, and what takes it back."""

    entry: AuditEntry
    opposite: Command | None


@dataclasses.dataclass(slots=True)
class Visit:
    """A request for a page. `form`: the fields of an action. `base`: what comes before every link.

    `visits`: reads what no broker's method has. `tag`: the entity tag of the page; None: it has none.
    """

    broker: AsyncBroker
    visits: Visits
    who: Identity
    request: Request
    form: dict[str, list[str]]
    base: str
    tag: str | None = None

    @property
    def kinds(self) -> str:
        """The kinds of events that a page waits for."""
        return " ".join(EVENT_KINDS)

    @property
    def address(self) -> str:
        """The address of this page, without what was done just before."""
        url = self.request.url.remove_query_params("did")
        return f"{url.path}{'?' if url.query else ''}{url.query}"

    @property
    def key(self) -> str:
        """A new idempotency key, for a form."""
        return secrets.token_urlsafe(12)

    @property
    def share(self) -> Share:
        """The request's share of the server's memory."""
        return share_of(self.request.scope)

    async def hold(self, queue: str, number: int) -> None:
        """Hold what it takes to show a message. Raises ServerOverloaded."""
        await hold_messages(self.share, self.broker, queue, [number])

    def text(self, name: str) -> str | None:
        """Return a parameter of the page; None if it is missing or empty."""
        return self.request.query_params.get(name) or None

    def queue(self) -> str:
        """Return the queue that the page is about. Raises InvalidOption."""
        path = self.text("queue")
        if path is None:
            raise InvalidOption("expected the parameter queue with the path of a queue")
        return path

    def number(self, name: str = "number") -> int:
        """Return a number in the path. Raises InvalidOption."""
        number_ = int(self.request.path_params[name])
        if number_ >= 1 << 42:
            raise InvalidOption("expected a smaller number")
        return number_

    def may(self, permission: str, path: str | None) -> bool:
        """Return whether the person may do so on an entity; None: on all of them."""
        return self.who.may(Permission(permission), path)

    def require(self, permission: Permission, path: str | None) -> None:
        """Raise NotPermitted unless the person may do so on an entity."""
        self.who.require(permission, path)

    def may_run(self, command: Command) -> bool:
        """Return whether the person may run a command."""
        return all(self.who.may(permission, path) for permission, path in command.needs())

    def fields(self, command: Command) -> list[tuple[str, str]]:
        """Return the fields of a form that runs a command."""
        values: dict[str, Any] = msgspec.to_builtins(command)
        return [(f"{name}:json", msgspec.json.encode(value).decode()) for name, value in values.items()]

    async def done(self) -> Done | None:
        """Return what the person did just before, if the page was asked for by an action."""
        did = self.text("did")
        if did is None or not did.isdigit() or len(did) > 18:
            return None
        entries = await self.broker.audit(before=int(did) + 1, limit=1)
        if not entries or entries[0].actor != self.who.name or entries[0].position != int(did):
            return None
        (opposite,) = opposites(entries, await later_than(self.broker, entries))
        return Done(entries[0], opposite)
