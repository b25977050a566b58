"""Prints for people and for programs: tables, fields, JSON, progress; safe for any terminal."""

from __future__ import annotations

import contextlib
import itertools
import operator
import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from typing import Any

from lazaretto.model.shown_text import safe as safe
from lazaretto.model.shown_text import safe_lines as safe_lines
from lazaretto.model.shown_text import shown_size as shown_size

#: Rows that are measured together to align the columns of a listing.
_ALIGNED = 500
#: The narrowest that a shortened column gets.
_NARROWEST = 20
_GAP = "  "

# JSON leaves these as they are within texts, though a terminal may obey them.
_UNSAFE_IN_JSON = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")

#: Names and values, as `fields` prints them.
Facts = list[tuple[str, object]]
#: Columns of a table: what each has of an object, an attribute or what a function returns.
Columns = Mapping[str, str | Callable[[Any], object]]

# -- progress -----------------------------------------------------------------------------------
Progress = Callable[[int, int | None], None]


def width_of(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    return len(text) if text.isascii() else sum(map(_width, text))


def _width(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def shorten(text: str, width: int) -> str:
    """Return a text that takes at most `width` columns; an ellipsis stands for what is left out."""
    if width_of(text) <= width:
        return text
    mark = "…" if (sys.stdout.encoding or "").lower().startswith("utf") else "..."
    room, kept = width - len(mark), 0
    for character in text:
        room -= _width(character)
        if room < 0:
            break
        kept += 1
    return text[:kept].rstrip() + mark


def pad(text: str, width: int, *, right: bool = False) -> str:
    """Return a text filled up with spaces to `width` columns."""
    space = " " * (width - width_of(text))
    return space + text if right else text + space


def cell(value: object) -> str:
    """Return a value as a table shows it: on one line, with everything escaped that a terminal obeys."""
    return "" if value is None else safe(str(plain_value(value)))


def plain_value(value: object) -> object:
    """Return a value as people read it: times in UTC, to the second, and choices by their names."""
    return (
        value.value
        if isinstance(value, Enum)
        else shown_time(value)
        if isinstance(value, datetime)
        else value
    )


def rows_of(objects: Iterable[Any], columns: Columns) -> Iterator[list[object]]:
    """Yield what columns have of objects."""
    parts = [operator.attrgetter(part) if isinstance(part, str) else part for part in columns.values()]
    return ([part(one) for part in parts] for one in objects)


class Table:
    """Prints rows under headings as they come.

    Nothing is cut where no terminal reads it. On a terminal that is too narrow, empty columns and
    columns of zeros go first. Then the column `shortened` (by default the last one) gets narrower, then
    the columns `spare` go one by one, and a notice names them. What still does not fit is printed as a
    block of fields for each row. `shortened=None` shortens nothing.
    """

    def __init__(
        self, columns: Sequence[str], *, spare: Sequence[str] = (), shortened: str | None = ""
    ) -> None:
        self._columns = columns
        self._spare = [columns.index(name) for name in spare if name in columns]
        self._shortened = None if shortened is None else len(columns) - 1
        if shortened:
            self._shortened = columns.index(shortened) if shortened in columns else None
        self._widths = [width_of(name) for name in columns]
        self._filled = [False] * len(columns)
        self._numbers = [True] * len(columns)
        self._shown: list[int] = []
        self._left_out: list[int] = []

    def add(self, rows: Iterable[Sequence[object]]) -> None:
        """Print rows; they are out when this returns."""
        rows = iter(rows)
        while chunk := list(itertools.islice(rows, _ALIGNED)):
            self._print_chunk(chunk)
        sys.stdout.flush()

    def _print_chunk(self, rows: Sequence[Sequence[object]]) -> None:
        cells = [[cell(value) for value in row] for row in rows]
        for index in range(len(self._columns)):
            self._widths[index] = max(self._widths[index], *(width_of(row[index]) for row in cells))
            self._filled[index] |= any(row[index] not in ("", "0") for row in cells)
            self._numbers[index] &= all(isinstance(row[index], int | None) for row in rows)
        if not sys.stdout.isatty():
            self._print_lines(list(range(len(self._columns))), None, cells)
            return
        columns = shutil.get_terminal_size().columns
        shown, left_out, last = self._fit(columns)
        if shown:
            self._print_lines(shown, last, cells)
        else:
            self._print_blocks(columns, cells)
        if left_out != self._left_out:
            self._left_out = left_out
            names = ", ".join(self._columns[index] for index in sorted(left_out))
            sys.stdout.flush()
            print(f"not shown here: {names} (--columns chooses)", file=sys.stderr, flush=True)

    def _fit(self, columns: int) -> tuple[list[int], list[int], int | None]:
        """Return the columns to show, those left out, and the width of the shortened one.

        No columns at all means that they do not fit.
        """
        shown, spare = list(range(len(self._columns))), list(self._spare)
        if self._room(shown, columns) is not None:
            return shown, [], None
        shown = [index for index in shown if self._filled[index]] or shown[:1]
        left_out: list[int] = []
        while True:
            if self._room(shown, columns) is not None:
                return shown, left_out, None
            room = self._room([index for index in shown if index != self._shortened], columns)
            if self._shortened in shown and room is not None and room >= _NARROWEST + len(_GAP):
                return shown, left_out, room - len(_GAP)
            gone = next((index for index in spare if index in shown), None)
            if gone is None:
                return [], [], None
            spare.remove(gone)
            shown.remove(gone)
            left_out.append(gone)

    def _room(self, shown: Sequence[int], columns: int) -> int | None:
        """Return how many columns of the terminal are left beside these, None if they do not fit."""
        taken = sum(self._widths[index] for index in shown) + len(_GAP) * max(len(shown) - 1, 0)
        return columns - taken if taken <= columns else None

    def _print_lines(self, shown: list[int], last: int | None, cells: Sequence[Sequence[str]]) -> None:
        if self._shown != shown:
            self._shown = shown
            heading = self._line(shown, last, self._columns)
            sys.stdout.write(f"{bold(heading)}\n")
        for row in cells:
            sys.stdout.write(self._line(shown, last, row) + "\n")

    def _line(self, shown: list[int], last: int | None, cells: Sequence[str]) -> str:
        parts = []
        for index in shown:
            text, width = cells[index], self._widths[index]
            if last is not None and index == self._shortened:
                text, width = shorten(text, last), last
            # The last column may be a body: nothing stands behind it that must be aligned.
            end = index == shown[-1] and not self._numbers[index]
            parts.append(text if end else pad(text, width, right=self._numbers[index]))
        return _GAP.join(parts).rstrip()

    def _print_blocks(self, columns: int, cells: Sequence[Sequence[str]]) -> None:
        names = max(map(width_of, self._columns))
        for row in cells:
            for index, text in enumerate(row):
                if self._filled[index]:
                    if index == self._shortened:
                        text = shorten(text, max(columns - names - len(_GAP), _NARROWEST))
                    sys.stdout.write(f"{pad(self._columns[index], names)}{_GAP}{text}".rstrip() + "\n")
            sys.stdout.write("\n")


def bold(text: str) -> str:
    """Return a text in bold, where a terminal reads it that may show anything but plain text."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not sys.stdout.isatty()
    return text if plain else f"\x1b[1m{text}\x1b[0m"


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


def fields(pairs: Iterable[tuple[str, object]], indent: str = "") -> None:
    """Print names and values, one a line, the values aligned; None and "" are left out."""
    cells = [(safe(name), cell(value)) for name, value in pairs if value not in (None, "")]
    width = max((width_of(name) for name, _ in cells), default=0)
    for name, value in cells:
        sys.stdout.write(f"{indent}{pad(name, width)}  {value}".rstrip() + "\n")
    sys.stdout.flush()


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
