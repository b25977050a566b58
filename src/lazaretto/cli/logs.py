"""How commands that go on for long show what is logged: as lines of text or of JSON."""

from __future__ import annotations

import contextlib
import enum
import logging
from collections.abc import Callable, Iterator
from typing import Annotated, NamedTuple

import typer

from lazaretto.cli import output
from lazaretto.cli.command import Options


class LogFormat(enum.Enum):
    """How log records are printed."""

    TEXT = "text"
    JSON = "json"


class LogLevel(enum.Enum):
    """From which level on log records are printed."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Logs(NamedTuple):
    """Which log records are printed, and how."""

    format: LogFormat
    level: LogLevel

    @contextlib.contextmanager
    def shown(self, say: Callable[[str], object] = output.lines_to_stderr) -> Iterator[None]:
        """Show what the package logs meanwhile; `say` prints it."""
        as_json = self.format is LogFormat.JSON

        class Shown(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                try:
                    text = self.format(record)
                    say(output.safe_json(text) if as_json else output.safe_lines(text))
                except Exception:
                    # Whoever reads it may be gone.
                    return

        handler, log = Shown(), logging.getLogger("lazaretto")
        if as_json:
            from lazaretto.tools.json_logs import JsonFormatter

            handler.setFormatter(JsonFormatter())
        else:
            handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
        before, level = log.level, getattr(logging, self.level.value.upper())
        handler.setLevel(level)
        log.addHandler(handler)
        # Other handlers go on to get what they got.
        log.setLevel(min(level, log.getEffectiveLevel()))
        try:
            yield
        finally:
            log.setLevel(before)
            log.removeHandler(handler)


LogOptions = Annotated[
    Logs,
    Options(
        {
            "log_format": (
                Annotated[
                    LogFormat,
                    typer.Option("--log-format", help="How log records are printed on standard error."),
                ],
                LogFormat.TEXT,
            ),
            "log_level": (
                Annotated[
                    LogLevel, typer.Option("--log-level", help="From which level on they are printed.")
                ],
                LogLevel.WARNING,
            ),
        },
        lambda context, given: Logs(given["log_format"], given["log_level"]),
    ),
]
