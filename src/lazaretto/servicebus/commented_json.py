"""JSON as people write it by hand: with comments, and with commas behind the last of a list. Pure."""

from __future__ import annotations

import re
from typing import Final

_TEXT: Final = r'"(?:\\.|[^"\\])*"'
_COMMENTS: Final = re.compile(rf"({_TEXT})|//[^\n]*|/\*.*?\*/", re.DOTALL)
_COMMAS: Final = re.compile(rf"({_TEXT})|,(?=\s*[}}\]])", re.DOTALL)
_NO_LINE: Final = re.compile(r"[^\n]")


def plain_json(text: str) -> str:
    """Return it as JSON proper. What is taken out leaves blanks, so that errors name the right place."""
    for pattern in (_COMMENTS, _COMMAS):
        text = pattern.sub(lambda match: match[1] or _NO_LINE.sub(" ", match[0]), text)
    return text.removeprefix("\ufeff")
