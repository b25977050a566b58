"""Handlers' own logs, shown with their queue and the number of their message."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from contextvars import ContextVar

from lazaretto.model.messages import ReceivedMessage
from lazaretto.model.shown_text import safe_lines
from lazaretto.tools.json_logs import JsonFormatter

#: Tells the sandboxes of a process how to show it: a level, and whether as JSON.
VARIABLE = "LAZARETTO_HANDLER_LOGS"

_at: ContextVar[tuple[str, int] | None] = ContextVar("lazaretto_message", default=None)


class _Places(logging.Filter):
    """Adds to each record whose message is handled; leaves the package's own records to others."""

    def filter(self, record: logging.LogRecord) -> bool:
        at = _at.get()
        record.queue, record.sequence_number = at or (None, None)
        record.place = "" if at is None else f"{at[0]} message {at[1]}: "
        return not record.name.startswith("lazaretto.")


class _Lines(logging.Formatter):
    """One line a record: the lines of a stack behind it stand apart."""

    def format(self, record: logging.LogRecord) -> str:
        return safe_lines(super().format(record)).replace("\n", "\n    ")


class _Json(JsonFormatter):
    def format(self, record: logging.LogRecord) -> str:
        vars(record).pop("place", None)
        return super().format(record)


@contextlib.contextmanager
def shown(level: str, *, as_json: bool) -> Iterator[None]:
    """Show what handlers log meanwhile, from a level on: those in sandboxes, and those in this process."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = f"{level.upper()} {'json' if as_json else 'text'}"
    handler = show_if_asked()
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before
        if handler is not None:
            logging.getLogger().removeHandler(handler)


def show_if_asked() -> logging.Handler | None:
    """Show it in this process, if that is asked for and the handlers' code has set no way of its own."""
    level, _, form = os.environ.get(VARIABLE, "").partition(" ")
    root = logging.getLogger()
    if not level or root.handlers:
        return None
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_Places())
    text = "%(asctime)s %(levelname)s %(place)s%(name)s: %(message)s"
    handler.setFormatter(_Json() if form == "json" else _Lines(text, "%H:%M:%S"))
    root.addHandler(handler)
    root.setLevel(level)
    return handler


def is_shown() -> bool:
    """Return whether somebody wants to know which message is handled."""
    return VARIABLE in os.environ


def note(queue: str, message: ReceivedMessage) -> None:
    """Note whose handler runs from here on."""
    _at.set((queue, message.sequence_number))
