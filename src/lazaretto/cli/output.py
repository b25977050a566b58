"""Prints for people and for programs: tables, fields, JSON, progress; safe for any terminal."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from lazaretto.cli.tables import Table, pad, width_of
from lazaretto.cli.tables import cell as cell
from lazaretto.model.shown_text import safe as safe
from lazaretto.model.shown_text import safe_lines as safe_lines

# JSON leaves these as they are within texts, though a terminal may obey them.
_UNSAFE_IN_JSON = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def body_text(body: bytes) -> str:
    """Return a body as text; bytes that are not UTF-8 are escaped."""
    return body.decode("utf-8", "backslashreplace")


def shown_time(moment: datetime | None) -> str:
    """Return a time as tables show it: UTC, to the second."""
    return "" if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def shown_duration(seconds: float | None) -> str:
    """Return seconds as they could be typed: 90 as 1m30s."""
    if seconds is None:
        return "none"
    rest, parts = seconds, ""
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        whole, rest = divmod(rest, size)
        parts += f"{whole:.0f}{unit}" if whole else ""
    return parts + (f"{rest:g}s" if rest or not parts else "")


def shown_bytes(size: float) -> str:
    """Return a number of bytes with a unit."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def plural(number: int, noun: str) -> str:
    """Return "1 message", "2 messages"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def on_terminal() -> bool:
    """Return whether the output goes to a terminal."""
    return sys.stdout.isatty()


def line(text: str = "") -> None:
    """Print a line, with everything escaped that a terminal might obey."""
    print(safe(text), flush=True)


def notice(text: str) -> None:
    """Tell people something that is not the command's result, on standard error."""
    lines_to_stderr(safe(text))


def lines_to_stderr(text: str) -> None:
    """Print text that is safe already on standard error, if that takes anything."""
    # What cannot be told there can be told nowhere.
    with contextlib.suppress(OSError):
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def say(text: str) -> None:
    """Print a line for whoever looks at long work, which goes on if the output takes nothing."""
    try:
        line(text)
    except BrokenPipeError:
        # Whoever looked has gone, and expects this to end.
        raise
    except OSError:
        discard_output()


def discard_output() -> None:
    """Lose what standard output has not taken: the interpreter writes it at the end, and would complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def problem(code: str, text: str) -> None:
    """Print an error as every error is printed: one line on standard error."""
    notice(f"error[{code}]: {text}")


# -- JSON ---------------------------------------------------------------------------------------


def json_text(value: Any, indent: int = 0) -> str:
    """Return a value as JSON in which a terminal finds nothing to obey; on one line without `indent`."""
    import msgspec

    from lazaretto.model.records.plain import plain

    encoded = msgspec.json.encode(plain(value))
    text = (msgspec.json.format(encoded, indent=indent) if indent else encoded).decode()
    return safe_json(text)


def safe_json(text: str) -> str:
    """Return JSON with everything escaped that a terminal might obey."""
    return _UNSAFE_IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _write(text: str) -> None:
    # JSON is UTF-8 whatever the locale says.
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode())
    sys.stdout.buffer.flush()


def json_object(value: Any) -> None:
    """Print one value as JSON."""
    _write(json_text(value, 2) + "\n")


def json_line(value: Any) -> None:
    """Print one value as a line of JSON."""
    _write(json_text(value) + "\n")


class JsonArray:
    """Prints a JSON array as its elements come, one a line. A context manager."""

    def __init__(self) -> None:
        self._separator = "["

    def add(self, values: Iterable[Any]) -> None:
        """Print elements; they are out when this returns."""
        parts = []
        for value in values:
            parts.append(f"{self._separator}\n{json_text(value)}")
            self._separator = ","
        _write("".join(parts))

    def __enter__(self) -> JsonArray:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # What an error or Control-C cut short still reads as JSON; a reader that is gone reads nothing.
        if self._separator == "[":
            _write("[]\n" if kind is None else "")
        elif kind is None or not issubclass(kind, BrokenPipeError):
            _write("\n]\n")


def json_array(values: Iterable[Any]) -> None:
    """Print values as a JSON array, one a line, as they come."""
    with JsonArray() as array:
        values = iter(values)
        while chunk := list(itertools.islice(values, 100)):
            array.add(chunk)


# -- for people ---------------------------------------------------------------------------------


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    empty: str,
    *,
    spare: Sequence[str] = (),
    shortened: str | None = "",
) -> None:
    """Print rows under headings as `Table` does; where there are none, say `empty`."""
    rows = iter(rows)
    first = next(rows, None)
    if first is None:
        notice(empty)
    else:
        Table(columns, spare=spare, shortened=shortened).add(itertools.chain([first], rows))


#: Names and values, as `fields` prints them.
Facts = list[tuple[str, object]]


def fields(pairs: Iterable[tuple[str, object]], indent: str = "") -> None:
    """Print names and values, one a line, the values aligned; None and "" are left out."""
    cells = [(safe(name), cell(value)) for name, value in pairs if value not in (None, "")]
    width = max((width_of(name) for name, _ in cells), default=0)
    for name, value in cells:
        sys.stdout.write(f"{indent}{pad(name, width)}  {value}".rstrip() + "\n")
    sys.stdout.flush()


# -- progress -----------------------------------------------------------------------------------

Progress = Callable[[int, int | None], None]


@contextlib.contextmanager
def progress(doing: str, unit: str = "") -> Iterator[Progress]:
    """Yield a function to call with how much is done, of how much (None: unknown).

    It draws a bar on standard error, if that is a terminal.
    """
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    console = Console(stderr=True, highlight=False)
    with Bar(*columns, TextColumn(unit, markup=False), TimeElapsedColumn(), console=console) as bar:
        task = bar.add_task(safe(doing), total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
