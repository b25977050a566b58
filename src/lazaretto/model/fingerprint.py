"""Which failures are the same failure: a short name for an error by its kind and its place."""

from __future__ import annotations

import hashlib
import re

_FRAME = re.compile(r'^\s*File "([^"]+)", line \d+(?:, in (.+)| in (.+))$', re.MULTILINE)


def fingerprint(error_type: str, stack: str | None) -> str:
    """Return 16 hex digits that are the same for errors of one type raised by one function.

    Line numbers and messages do not count: they change with an edit, or with each message.
    """
    frames = _FRAME.findall(stack or "")
    # Python prints the innermost frame last, its fault handler first.
    innermost = (frames[0] if stack and "most recent call first" in stack else frames[-1]) if frames else ()
    place = "\0".join(innermost)
    return hashlib.blake2b(f"{error_type}\0{place}".encode(errors="replace"), digest_size=8).hexdigest()
