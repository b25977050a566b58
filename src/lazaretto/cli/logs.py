"""How commands that go on for long show what is logged: as lines of text or of JSON."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterator
from typing import Annotated, Literal

from lazaretto.cli import output
from lazaretto.cli.command import Options, option


@dataclasses.dataclass(frozen=True, slots=True)
class Logs:
    """Which log records are printed, and how."""

    format: Annotated[
        Literal["text", "json"], option("How log records are printed on standard error.", "", "--log-format")
    ] = "text"
    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        option("From which level on they are printed.", "", "--log-level"),
    ] = "warning"

    @contextlib.contextmanager
    def shown(self, say: Callable[[str], object] = output.lines_to_stderr) -> Iterator[None]:
        """Show what the package logs meanwhile; `say` prints it."""
        as_json = self.format == "json"

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
        before, level = log.level, getattr(logging, self.level.upper())
        handler.setLevel(level)
        log.addHandler(handler)
        # Other handlers go on to get what they got.
        log.setLevel(min(level, log.getEffectiveLevel()))
        try:
            yield
        finally:
            log.setLevel(before)
            log.removeHandler(handler)


LogOptions = Annotated[Logs, Options.of(Logs)]
