"""The error conditions of AMQP 1.0, and the error that carries one."""

from __future__ import annotations

from typing import Final

from lazaretto.errors import LazarettoError

NOT_FOUND: Final = "amqp:not-found"
UNAUTHORIZED_ACCESS: Final = "amqp:unauthorized-access"
DECODE_ERROR: Final = "amqp:decode-error"
RESOURCE_LIMIT_EXCEEDED: Final = "amqp:resource-limit-exceeded"
NOT_ALLOWED: Final = "amqp:not-allowed"
INVALID_FIELD: Final = "amqp:invalid-field"
NOT_IMPLEMENTED: Final = "amqp:not-implemented"

FRAMING_ERROR: Final = "amqp:connection:framing-error"
CONNECTION_FORCED: Final = "amqp:connection:forced"

WINDOW_VIOLATION: Final = "amqp:session:window-violation"
ERRANT_LINK: Final = "amqp:session:errant-link"
HANDLE_IN_USE: Final = "amqp:session:handle-in-use"
UNATTACHED_HANDLE: Final = "amqp:session:unattached-handle"

TRANSFER_LIMIT_EXCEEDED: Final = "amqp:link:transfer-limit-exceeded"
MESSAGE_SIZE_EXCEEDED: Final = "amqp:link:message-size-exceeded"
STOLEN: Final = "amqp:link:stolen"

TRANSACTION_UNKNOWN_ID: Final = "amqp:transaction:unknown-id"
TRANSACTION_ROLLBACK: Final = "amqp:transaction:rollback"
TRANSACTION_TIMEOUT: Final = "amqp:transaction:timeout"


class AmqpError(LazarettoError):
    """A peer broke the rules of AMQP 1.0.

    `condition`: the error condition that the peer is told.
    """

    code = "amqp_error"

    def __init__(self, condition: str, message: str) -> None:
        super().__init__(message)
        self.condition = condition


class DecodeError(AmqpError):
    """Bytes that are no AMQP value."""

    code = "amqp_decode_error"

    def __init__(self, message: str) -> None:
        super().__init__(DECODE_ERROR, message)


class SessionError(AmqpError):
    """A peer broke the rules of one session, which is ended for it."""

    code = "amqp_session_error"
