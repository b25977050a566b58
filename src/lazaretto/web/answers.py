"""Answers as JSON, with their entity tags, and errors as HTTP has them.

A tag is the same while nobody commits, for a minute at most. An error is a status by code, with its details
as problem+json (RFC 9457).
"""

from __future__ import annotations

import functools
import hashlib
import secrets
import time
import typing
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from lazaretto.errors import (
    CommitUnknown,
    LazarettoError,
    MessageLockLost,
    MessageNotReceivable,
    PoisonMessageError,
    SessionHeld,
)
from lazaretto.model.records.plain import plain
from lazaretto.web.access import Identity
from lazaretto.web.refusals import told_code

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


MEDIA_TYPE: Final = "application/problem+json"

#: The status of each code; others are faults of the server.
STATUSES: Final[Mapping[str, int]] = {
    "bad_request": 400,
    "not_authenticated": 401,
    "not_permitted": 403,
    "server_read_only": 403,
    "cross_site": 403,
    "second_person_needed": 403,
    "entity_not_found": 404,
    "message_not_found": 404,
    "conversation_not_found": 404,
    "repair_not_found": 404,
    "person_not_found": 404,
    "token_not_found": 404,
    "route_not_found": 404,
    "method_not_allowed": 405,
    "request_timeout": 408,
    "not_allowed": 409,
    "entity_error": 409,
    "entity_exists": 409,
    "queue_disabled": 409,
    "poison_message": 409,
    "session_held": 409,
    "settlement_error": 409,
    "message_lock_lost": 409,
    "session_lock_lost": 409,
    "session_cannot_be_locked": 409,
    "message_not_receivable": 409,
    "conversation_error": 409,
    "conversation_locked": 409,
    "claim_fenced": 409,
    "repair_error": 409,
    "transaction_error": 409,
    "systemic_failure": 409,
    "changed_meanwhile": 412,
    "message_too_large": 413,
    "request_too_large": 413,
    "unsupported_media_type": 415,
    "wrong_host": 421,
    "precondition_required": 428,
    "invalid_option": 422,
    "invalid_message": 422,
    "invalid_path": 422,
    "filter_syntax": 422,
    "filter_error": 422,
    "definition_error": 422,
    "idempotency_conflict": 422,
    "quota_exceeded": 507,
    "store_full": 507,
    "store_busy": 503,
    "store_unavailable": 503,
    "store_read_only": 503,
    "store_gone": 503,
    "identity_provider_unavailable": 503,
    "closed": 503,
    "server_ends": 503,
    "server_overloaded": 503,
    "query_too_long": 503,
    "too_many_requests": 429,
}

#: After how many seconds to ask again, where the same request may succeed later.
_RETRY_AFTER: Final = 1

#: What some errors say besides.
_DETAILS: Final[Mapping[type[LazarettoError], tuple[str, ...]]] = {
    PoisonMessageError: ("entity", "sequence_number", "delivery_count", "cycle", "reason", "error"),
    SessionHeld: ("entity", "session_id", "sequence_number", "mode", "reason", "error"),
    MessageLockLost: ("sequence_numbers",),
    MessageNotReceivable: ("sequence_number",),
    CommitUnknown: (),
}


def problem_of(error: LazarettoError, base: str) -> Response:
    """Return the answer that tells of an error. `base`: what comes before every path of the server."""
    code = told_code(error)
    status = STATUSES.get(code, 500)
    body: dict[str, Any] = {
        "type": f"{base}/problems/{code}",
        "title": (type(error).__doc__ or code).partition("\n")[0].rstrip("."),
        "status": status,
        "detail": str(error),
        "code": code,
        "retriable": error.retriable,
    }
    for kind, names in _DETAILS.items():
        if isinstance(error, kind):
            body |= {name: plain(getattr(error, name)) for name in names}
    headers = {"Retry-After": str(_RETRY_AFTER)} if error.retriable else {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return Response(json_of(body), status, headers, MEDIA_TYPE)
