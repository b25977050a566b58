"""Extras on a server's pages besides the store: its own name and links, and handlers to try letters on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from lazaretto.errors import InvalidOption
from lazaretto.model.checks import shown, suggestion
from lazaretto.model.edits.edit import Edit
from lazaretto.observe.traces.context import context_of

#: Each has its own class in the style sheet, with a contrast for light and dark.
COLOURS: Final = ("blue", "green", "grey", "orange", "purple", "red")
_LONGEST: Final = 30
_TRACE_ID: Final = "{trace_id}"


class StoreLink(NamedTuple):
    """A store of this server. `base`: what its paths begin with, without the / at the end."""

    name: str
    base: str


@dataclasses.dataclass(frozen=True, slots=True)
class TriedLetter:
    """The outcome of a letter if it were sent back now.

    `error_type`, `error_message`: of the failure; None: it would succeed. `refused`: why it would not be
    sent. `sends`: messages that the handler would send, by queue. `statements`: SQL statements that it would
    execute.
    """

    error_type: str | None = None
    error_message: str | None = None
    refused: str | None = None
    sends: dict[str, int] = dataclasses.field(default_factory=dict)
    statements: int = 0


class TriedHandlers(Protocol):
    """Tries letters of one store on handlers, in a sandbox; nothing is settled or sent."""

    def names(self, queue: str) -> Sequence[str]:
        """Return the names of handlers for the letters of a queue."""
        ...

    async def try_letter(self, queue: str, number: int, name: str, edit: Edit | None) -> TriedLetter:
        """Try a dead letter on a handler, as an edit would leave it.

        Raises InvalidOption for another handler, MessageNotFound, HandlerError, SandboxSetupError.
        """
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class PageOptions:
    """Raises InvalidOption.

    `name`: shown on every page, such as "prod", up to 30 characters; "": none. `colour`: one of COLOURS.
    `trace_url`: where traces are shown, such as "https://traces.example.com/trace/{trace_id}"; "": nowhere.
    """

    name: str = ""
    colour: str = "grey"
    trace_url: str = ""

    def __post_init__(self) -> None:
        if len(self.name) > _LONGEST or not self.name.isprintable():
            raise InvalidOption(f"expected a name of at most {_LONGEST} characters, got {shown(self.name)}")
        if self.colour not in COLOURS:
            raise InvalidOption(f"unknown colour {shown(self.colour)}{suggestion(self.colour, COLOURS)}")
        web = self.trace_url.startswith(("https://", "http://")) and _TRACE_ID in self.trace_url
        if self.trace_url and not web:
            raise InvalidOption(
                "expected where traces are shown to be such as "
                f"https://traces.example.com/trace/{_TRACE_ID}, got {shown(self.trace_url)}"
            )

    def trace_of(self, properties: Mapping[str, Any]) -> str | None:
        """Return the address of the trace that a message is of; None if there is none."""
        context = context_of(properties) if self.trace_url else None
        return None if context is None else self.trace_url.replace(_TRACE_ID, f"{context.trace_id:032x}")
