"""Prints for people and for programs: tables, fields, JSON, progress; safe for any terminal."""

from __future__ import annotations

import contextlib
import itertools
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

#: Rows up to which a terminal gets a drawn table; longer listings are written as they come.
_DRAWN = 500
#: Rows that are measured together to align the columns of a listing.
_ALIGNED = 500
#: Characters of a cell in a drawn table; a column as narrow as a time is never broken.
_SHORT = 120
_UNBROKEN = 20

# JSON leaves these as they are within texts, though a terminal may obey them.
_UNSAFE_IN_JSON = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def _escaped(character: str) -> str:
    if character in _NAMED:
        return _NAMED[character]
    if character.isprintable() or unicodedata.category(character) == "Zs":
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x1_0000 else f"\\U{code:08x}"


def safe(text: str) -> str:
    """Return text on one line, with everything escaped that a terminal might obey."""
    return text if text.isprintable() else "".join(map(_escaped, text))


def safe_lines(text: str) -> str:
    """Return text with its line breaks and tabs, everything else escaped that a terminal might obey."""
    return "".join(c if c in "\n\t" else _escaped(c) for c in text.replace("\r\n", "\n"))


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
    left, parts = seconds, ""
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        whole, left = divmod(left, size)
        parts += f"{whole:.0f}{unit}" if whole else ""
    return parts + (f"{left:g}s" if left or not parts else "")


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


def lines(text: str) -> None:
    """Print text of several lines, with everything else escaped that a terminal might obey."""
    print(safe_lines(text), flush=True)


def notice(text: str) -> None:
    """Tell people something that is not the command's result, on standard error."""
    print(safe(text), file=sys.stderr, flush=True)


def problem(code: str, text: str) -> None:
    """Print an error as every error is printed: one line on standard error."""
    notice(f"error[{code}]: {text}")


# -- JSON ---------------------------------------------------------------------------------------


def _json(value: Any, indent: int = 0) -> str:
    import msgspec

    from lazaretto.cli.records import plain

    encoded = msgspec.json.encode(plain(value))
    text = (msgspec.json.format(encoded, indent=indent) if indent else encoded).decode()
    return _UNSAFE_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _write(text: str) -> None:
    # JSON is UTF-8 whatever the locale says.
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode())
    sys.stdout.buffer.flush()


def json_object(value: Any) -> None:
    """Print one value as JSON."""
    _write(_json(value, 2) + "\n")


def json_line(value: Any) -> None:
    """Print one value as a line of JSON."""
    _write(_json(value) + "\n")


class JsonArray:
    """Prints a JSON array as its elements come, one a line. A context manager."""

    def __init__(self) -> None:
        self._separator = "["

    def add(self, values: Iterable[Any]) -> None:
        """Print elements; they are out when this returns."""
        parts = []
        for value in values:
            parts.append(f"{self._separator}\n{_json(value)}")
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


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], empty: str) -> None:
    """Print rows under headings; numbers stand to the right. Nothing is cut where no terminal reads it."""
    rows = iter(rows)
    first = list(itertools.islice(rows, _DRAWN + 1))
    if not first:
        notice(empty)
    elif on_terminal() and len(first) <= _DRAWN:
        _draw(columns, first)
    else:
        Listing(columns).add(itertools.chain(first, rows))


def _cell(value: object) -> str:
    return "" if value is None else safe(str(value))


def _shortened(text: str) -> str:
    return text if len(text) <= _SHORT else f"{text[:_SHORT]}… ({len(text)} characters)"


def _draw(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    cells = [[_shortened(_cell(value)) for value in row] for row in rows]
    drawn = Table(box=SIMPLE_HEAD, pad_edge=False)
    for index, name in enumerate(columns):
        number = all(isinstance(row[index], int) for row in rows)
        narrow = all(len(row[index]) <= _UNBROKEN for row in cells)
        drawn.add_column(Text(name), justify="right" if number else "left", no_wrap=narrow, overflow="fold")
    for texts in cells:
        drawn.add_row(*map(Text, texts))
    Console(highlight=False, markup=False, emoji=False).print(drawn)


class Listing:
    """Prints aligned rows as they come, under one line of headings, without cutting anything."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = columns
        self._widths = [len(name) for name in columns]
        self._started = False

    def add(self, rows: Iterable[Sequence[object]]) -> None:
        """Print rows; they are out when this returns."""
        rows = iter(rows)
        while chunk := list(itertools.islice(rows, _ALIGNED)):
            cells = [[_cell(value) for value in row] for row in chunk]
            # The last column may be a body: nothing stands behind it that must be aligned.
            for index in range(len(self._columns) - 1):
                self._widths[index] = max(self._widths[index], *(len(row[index]) for row in cells))
            if not self._started:
                self._started = True
                self._print(self._columns, [False] * len(self._columns))
            for row, values in zip(cells, chunk, strict=True):
                self._print(row, [isinstance(value, int) for value in values])
        sys.stdout.flush()

    def _print(self, cells: Sequence[str], numbers: Sequence[bool]) -> None:
        *front, last = (
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(cells, self._widths, numbers, strict=True)
        )
        sys.stdout.write("  ".join([*front, last]).rstrip() + "\n")


def fields(pairs: Iterable[tuple[str, object]], indent: str = "") -> None:
    """Print names and values, one a line, the values aligned; None and "" are left out."""
    given = [(safe(name), _cell(value)) for name, value in pairs if value not in (None, "")]
    width = max((len(name) for name, _ in given), default=0)
    for name, value in given:
        sys.stdout.write(f"{indent}{name.ljust(width)}  {value}".rstrip() + "\n")
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
