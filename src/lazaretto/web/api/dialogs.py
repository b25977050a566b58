"""Dialogs: conversations and why they wait, what happened in one, and the definitions they stand on."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from lazaretto.dialogs.declaration import as_declaration
from lazaretto.dialogs.description import ConversationDescription, TimelineEntry
from lazaretto.model.permissions import Permission
from lazaretto.web.routes import Call, Query, route


class ConversationsQuery(Query, frozen=True):
    """`held`: only conversations that a poison message holds. `after`: `next` of the page before."""

    queue: str | None = None
    state: str | None = None
    group: str | None = None
    held: bool = False
    after: str = ""
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class ConversationPage(Struct):
    """Conversations in the order of their handles. `next`: what `after` is on the next page, or null."""

    items: list[ConversationDescription]
    next: str | None


class Definitions(Struct):
    """Message types, contracts, services and priorities, as a file of definitions has them."""

    definitions: dict[str, Any]


@route("GET", "/conversations", Permission.SEE)
async def list_conversations(call: Call, query: ConversationsQuery) -> ConversationPage:
    """List conversations, and why they wait."""
    every = call.broker.dialogs.conversations(
        queue=query.queue, state=query.state, group=query.group, held=query.held, after=query.after,
        limit=query.limit,
    )  # fmt: skip
    page = [one async for one in every]
    return ConversationPage(page, page[-1].conversation if len(page) == query.limit else None)


@route("GET", "/dialogs/{dialog}", Permission.SEE)
async def show_dialog(call: Call, dialog: str) -> list[ConversationDescription]:
    """Show the ends of a dialog, by its id, its beginning, or a handle."""
    return await call.broker.dialogs.dialog(dialog)


@route("GET", "/dialogs/{dialog}/timeline", Permission.SEE)
async def show_timeline(call: Call, dialog: str) -> list[TimelineEntry]:
    """Show what happened in a dialog, in order, then what waits in it."""
    return await call.broker.dialogs.timeline(dialog)


@route("GET", "/definitions", Permission.SEE)
async def show_definitions(call: Call) -> Definitions:
    """Show all definitions of dialogs."""
    return Definitions(as_declaration(await call.broker.dialogs.definitions()))
