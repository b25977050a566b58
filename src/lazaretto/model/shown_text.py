"""Text of others as people may see it: whatever a terminal or a browser might obey is escaped. Pure."""

from __future__ import annotations

import unicodedata

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
    text = text.replace("\r\n", "\n")
    # Nearly every text is plain, and a look at each character costs a hundred times as much.
    if text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return "".join(c if c in "\n\t" else _escaped(c) for c in text)
