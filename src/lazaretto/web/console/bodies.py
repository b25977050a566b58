"""Bodies as people read them: JSON is indented as it is spelled, bytes are shown in hex. Pure."""

from __future__ import annotations

import dataclasses
import re
from typing import Final

from lazaretto.edits.json_text import Misfit, read_json

#: Bytes of a body that a page shows.
MOST_SHOWN: Final = 64 * 1024
#: Bytes of a body that is shown in hex.
_MOST_HEX: Final = 4096
#: How a body can be shown: JSON indented, as it is, or in hex.
WAYS: Final = ("pretty", "raw", "hex")
#: How deep lines are indented.
_DEEPEST: Final = 40
_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)


@dataclasses.dataclass(frozen=True, slots=True)
class ShownBody:
    """A body for people. `kind`: json, text or bytes. `left`: how many bytes are not shown."""

    kind: str
    text: str
    size: int
    left: int


def show_body(body: bytes, way: str = "pretty") -> ShownBody:
    """Return a body as people read it: no digit and no letter of it is changed. `way`: one of WAYS."""
    if way == "hex":
        return _in_hex(body)
    if way == "pretty" and len(body) <= MOST_SHOWN:
        try:
            return ShownBody("json", indent(read_json(body)), len(body), 0)
        except Misfit:
            pass
    shown = body[:MOST_SHOWN]
    try:
        text = shown.decode("utf-8")
    except UnicodeDecodeError as error:
        # A character that the cut went through is not shown.
        if len(shown) == len(body) or error.start < len(shown) - 4:
            return _in_hex(body)
        shown = shown[: error.start]
        text = shown.decode("utf-8")
    return ShownBody("text", text, len(body), len(body) - len(shown))


def _in_hex(body: bytes) -> ShownBody:
    return ShownBody("bytes", hex_lines(body[:_MOST_HEX]), len(body), max(0, len(body) - _MOST_HEX))


def indent(text: str) -> str:
    """Return JSON with a line for each value: only the space between its tokens changes."""
    out: list[str] = []
    depth, before = 0, ""
    for found in _TOKEN.finditer(text):
        token = found[0]
        if token in ("}", "]"):
            depth -= 1
            if before not in ("{", "["):
                out.append(_line(depth))
        elif before in ("{", "[", ","):
            out.append(_line(depth))
        if token in ("{", "["):
            depth += 1
        out.append(": " if token in (":",) else token)
        before = token
    return "".join(out)


def _line(depth: int) -> str:
    return "\n" + "  " * min(depth, _DEEPEST)


def hex_lines(body: bytes) -> str:
    """Return bytes as lines of 16: their place, in hex, and as characters."""
    lines = []
    for start in range(0, len(body), 16):
        part = body[start : start + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{start:06x}  {part.hex(' '):<47}  {text}")
    return "\n".join(lines)
