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

#: The codes of each status; others are faults of the server.
_CODES: Final = {
    400: ("bad_request",),
    401: ("not_authenticated",),
    403: ("not_permitted", "server_read_only", "cross_site", "second_person_needed"),
    404: (
        "entity_not_found", "message_not_found", "conversation_not_found", "repair_not_found",
        "person_not_found", "token_not_found", "route_not_found",
    ),
    405: ("method_not_allowed",),
    408: ("request_timeout",),
    409: (
        "not_allowed", "entity_error", "entity_exists", "queue_disabled", "poison_message",
        "session_held", "settlement_error", "message_lock_lost", "session_lock_lost",
        "session_cannot_be_locked", "message_not_receivable", "conversation_error",
        "conversation_locked", "claim_fenced", "repair_error", "transaction_error",
        "systemic_failure",
    ),
    412: ("changed_meanwhile",),
    413: ("message_too_large", "request_too_large"),
    415: ("unsupported_media_type",),
    421: ("wrong_host",),
    422: (
        "invalid_option", "invalid_message", "invalid_path", "filter_syntax", "filter_error",
        "definition_error", "idempotency_conflict",
    ),
    428: ("precondition_required",),
    429: ("too_many_requests",),
    503: (
        "store_busy", "store_unavailable", "store_read_only", "store_gone",
        "identity_provider_unavailable", "closed", "server_ends", "server_overloaded",
        "query_too_long",
    ),
    507: ("quota_exceeded", "store_full"),
}  # fmt: skip
#: The status of each code.
STATUSES: Final[Mapping[str, int]] = {code: status for status, codes in _CODES.items() for code in codes}

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
