"""Extras on a server's pages besides the store: what tells them from another's, and where traces are."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from lazaretto.errors import InvalidOption
from lazaretto.model.checks import shown, suggestion
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
