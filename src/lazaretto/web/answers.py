"""Answers as JSON, and their entity tags: the same while nobody commits, for a minute at most."""

from __future__ import annotations

import functools
import hashlib
import secrets
import time
import typing
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from lazaretto.model.records.plain import plain
from lazaretto.web.access import Identity

_encode = msgspec.json.Encoder().encode
#: What JSON spells as the broker's values mean it, so that nothing has to be made of it first.
_AS_IT_IS = (int, str, bool, type(None), list[int], list[str])

#: Another process may draw the same otherwise.
_RUN: Final = secrets.token_hex(8)


def json_of(value: Any) -> bytes:
    """Return a value of the broker as JSON."""
    kind: Any = type(value)
    return _encode(value if _is_plain(kind) else plain(value))


@functools.cache
def _is_plain(kind: Any) -> bool:
    if not issubclass(kind, msgspec.Struct):
        return False
    try:
        hints = typing.get_type_hints(kind)
    except NameError:
        # A type that only checkers of types know.
        return False
    return all(hint in _AS_IT_IS for hint in hints.values())


def _minute() -> int:
    """Return what changes when the clock changes what is told: charts have a bar for each minute."""
    return int(time.time() // 60)


def tag_of(mark: str | None, who: Identity, request: Request) -> str | None:
    """Return the tag of an answer that is made next; None if nothing can be told of the store.

    `mark`: that of the store's commits, read before anything else of the store.
    """
    if mark is None:
        return None
    scope = request.scope
    facts = (
        _RUN, mark, _minute(), scope["path"], scope["query_string"], who.name, who.grants, who.csrf,
        who.read_only,
    )  # fmt: skip
    return f'W/"{hashlib.blake2b(msgspec.json.encode(facts), digest_size=16).hexdigest()}"'


def not_modified(tag: str | None, request: Request) -> Response | None:
    """Return the answer to a client that has what the tag stands for; None if it has to be made."""
    if tag is None:
        return None
    plain = tag.removeprefix("W/")
    tags = request.headers.get("if-none-match", "").split(",")
    same = any(one.strip().removeprefix("W/") == plain for one in tags)
    return Response(status_code=304, headers={"ETag": tag}) if same else None
