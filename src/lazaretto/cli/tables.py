"""Tables for people: aligned, and on a terminal no wider than it is, with no number and no name cut."""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Sequence

from lazaretto.model.shown_text import safe

#: Rows that are measured together to align the columns of a listing.
_ALIGNED = 500
#: The narrowest that a shortened column gets.
_NARROWEST = 20
_GAP = "  "


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
    return "" if value is None else safe(str(value))


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
