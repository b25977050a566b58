"""Bodies as people read them: JSON is indented as it is spelled, bytes are shown in hex. Pure."""

from __future__ import annotations

import base64
import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Final

from lazaretto.errors import InvalidOption
from lazaretto.model.edits.json_text import Misfit, read_json
from lazaretto.model.shown_text import safe_lines

#: Bytes of a body that a page shows.
MOST_SHOWN: Final = 64 * 1024
#: Bytes of a body that is shown in hex.
_MOST_HEX: Final = 4096
#: Bytes of a body that can be edited in hex.
_MOST_EDITED: Final = 16 * 1024
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
    for match in _TOKEN.finditer(text):
        token = match[0]
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


@dataclasses.dataclass(frozen=True, slots=True)
class Editable:
    """A body as a form has it: as text, or in hex if a text would not come back as it is.

    `kind`: text or hex; "" if it is too long for a form.
    """

    kind: str
    text: str


def editable(body: bytes) -> Editable:
    """Return a body as a form has it."""
    try:
        text = body.decode("utf-8").replace("\r\n", "\n") if len(body) <= MOST_SHOWN else None
    except UnicodeDecodeError:
        text = None
    # Forms have one kind of line break, which is made that of the body again.
    breaks = b"\r" not in body or body.count(b"\r\n") == body.count(b"\r") == body.count(b"\n")
    if text is not None and breaks and safe_lines(text) == text:
        return Editable("text", text)
    if len(body) > _MOST_EDITED:
        return Editable("", "")
    return Editable("hex", "\n".join(body[at : at + 16].hex(" ") for at in range(0, len(body), 16)))


def body_of(before: bytes, form: Mapping[str, str]) -> bytes:
    """Return the body that a form has, from a file, in hex or as text. Raises InvalidOption."""
    try:
        if form.get("base64"):
            return base64.b64decode(form["base64"], validate=True)
        if "hex" in form:
            return bytes.fromhex("".join(form["hex"].split()))
    except ValueError as error:
        raise InvalidOption(f"expected the body in hex, such as 7b 22 61: {error}") from None
    text = form.get("text", "").replace("\r\n", "\n")
    return text.replace("\n", "\r\n" if b"\r\n" in before else "\n").encode()


def json_fault(body: bytes) -> str | None:
    """Return what keeps a body from being JSON, and where; None if it is JSON."""
    try:
        json.loads(body)
    except UnicodeDecodeError:
        return "it is no text"
    except json.JSONDecodeError as error:
        return f"line {error.lineno}, column {error.colno}: {error.msg}"
    except (ValueError, RecursionError) as error:
        return str(error)
    return None


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
