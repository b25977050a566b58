"""Errors as HTTP tells them: a status by code, and the details as problem+json (RFC 9457)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

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
from lazaretto.web.answers import json_of
from lazaretto.web.refusals import told_code

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
