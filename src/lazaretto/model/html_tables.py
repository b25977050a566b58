"""Tables in HTML, as notebooks show values. What users made is text there, whatever it says."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

#: Characters of a cell; the rest is left out.
_LONGEST = 500
_MARKUP = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;"})


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
