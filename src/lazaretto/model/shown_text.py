"""Text of others as people may see it in terminals, browsers and notebooks: nothing in it is obeyed. Pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence

_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}

#: Characters of a cell; the rest is left out.
_LONGEST = 500
_MARKUP = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;"})


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
    text = text.replace("\r\n", "\n")
    # Nearly every text is plain, and a look at each character costs a hundred times as much.
    if text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return "".join(c if c in "\n\t" else _escaped(c) for c in text)


def html_table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table. None is an empty cell; numbers are aligned to the right."""
    head = "".join(f"<th>{_shown(name)}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return (
        f"<table><caption>{_shown(caption)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table>"
    )


def _cell(value: object) -> str:
    if isinstance(value, int):
        return f'<td style="text-align: right">{value:,}</td>'
    return f'<td style="text-align: left">{"" if value is None else _shown(str(value))}</td>'


def _shown(text: str) -> str:
    """Return text that is no markup, and in which nothing is invisible or turns the direction around."""
    cut = text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
    plain = "".join(c if c.isprintable() else "⏎" if c == "\n" else f"\\u{ord(c):04x}" for c in cut)
    return plain.translate(_MARKUP)


def shown_size(size: float) -> str:
    """Return a number of bytes with a unit."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
