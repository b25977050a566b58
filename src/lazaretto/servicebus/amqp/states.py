"""The states of connections, sessions and links of AMQP 1.0, as tables.

An event is what this end sends or receives. What is not in a table breaks the protocol, and then the
connection is closed, whatever its state.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, TypeVar

from lazaretto.servicebus.amqp.conditions import FRAMING_ERROR, AmqpError


class ConnectionState(enum.Enum):
    """State of a connection, from the first byte to the last. SASL comes before AMQP's own header."""

    START = "start"
    SASL_HEADER_SENT = "sasl_header_sent"
    SASL = "sasl"
    AUTHENTICATED = "authenticated"
    HEADER_SENT = "header_sent"
    HEADERS_EXCHANGED = "headers_exchanged"
    OPEN_SENT_EARLY = "open_sent_early"
    OPEN_SENT = "open_sent"
    OPEN_RECEIVED = "open_received"
    OPENED = "opened"
    CLOSE_SENT = "close_sent"
    CLOSED = "closed"


class ConnectionEvent(enum.Enum):
    """An event of a connection."""

    SEND_SASL_HEADER = "send SASL header"
    RECEIVE_SASL_HEADER = "receive SASL header"
    AUTHENTICATE = "SASL outcome 0"
    SEND_HEADER = "send header"
    RECEIVE_HEADER = "receive header"
    SEND_OPEN = "send open"
    RECEIVE_OPEN = "receive open"
    SEND_CLOSE = "send close"
    RECEIVE_CLOSE = "receive close"


_C, _CE = ConnectionState, ConnectionEvent

CONNECTION: Final[dict[tuple[ConnectionState, ConnectionEvent], ConnectionState]] = {
    (_C.START, _CE.SEND_SASL_HEADER): _C.SASL_HEADER_SENT,
    (_C.START, _CE.RECEIVE_SASL_HEADER): _C.SASL,
    (_C.SASL_HEADER_SENT, _CE.RECEIVE_SASL_HEADER): _C.SASL,
    (_C.SASL, _CE.SEND_SASL_HEADER): _C.SASL,
    (_C.SASL, _CE.AUTHENTICATE): _C.AUTHENTICATED,
    (_C.START, _CE.SEND_HEADER): _C.HEADER_SENT,
    (_C.START, _CE.RECEIVE_HEADER): _C.HEADERS_EXCHANGED,
    (_C.AUTHENTICATED, _CE.SEND_HEADER): _C.HEADER_SENT,
    (_C.AUTHENTICATED, _CE.RECEIVE_HEADER): _C.HEADERS_EXCHANGED,
    (_C.HEADER_SENT, _CE.RECEIVE_HEADER): _C.HEADERS_EXCHANGED,
    (_C.HEADER_SENT, _CE.SEND_OPEN): _C.OPEN_SENT_EARLY,
    (_C.OPEN_SENT_EARLY, _CE.RECEIVE_HEADER): _C.OPEN_SENT,
    (_C.HEADERS_EXCHANGED, _CE.SEND_HEADER): _C.HEADERS_EXCHANGED,
    (_C.HEADERS_EXCHANGED, _CE.SEND_OPEN): _C.OPEN_SENT,
    (_C.HEADERS_EXCHANGED, _CE.RECEIVE_OPEN): _C.OPEN_RECEIVED,
    (_C.OPEN_SENT, _CE.RECEIVE_OPEN): _C.OPENED,
    (_C.OPEN_RECEIVED, _CE.SEND_OPEN): _C.OPENED,
    (_C.OPENED, _CE.SEND_CLOSE): _C.CLOSE_SENT,
    (_C.OPENED, _CE.RECEIVE_CLOSE): _C.CLOSED,
    (_C.OPEN_SENT, _CE.SEND_CLOSE): _C.CLOSE_SENT,
    (_C.OPEN_SENT_EARLY, _CE.SEND_CLOSE): _C.CLOSE_SENT,
    (_C.CLOSE_SENT, _CE.RECEIVE_HEADER): _C.CLOSE_SENT,
    (_C.CLOSE_SENT, _CE.RECEIVE_OPEN): _C.CLOSE_SENT,
    (_C.CLOSE_SENT, _CE.RECEIVE_CLOSE): _C.CLOSED,
}


class SessionState(enum.Enum):
    """State of a session."""

    UNMAPPED = "unmapped"
    BEGIN_SENT = "begin_sent"
    BEGIN_RECEIVED = "begin_received"
    MAPPED = "mapped"
    END_SENT = "end_sent"
    ENDED = "ended"


class SessionEvent(enum.Enum):
    """An event of a session."""

    SEND_BEGIN = "send begin"
    RECEIVE_BEGIN = "receive begin"
    SEND_END = "send end"
    RECEIVE_END = "receive end"


_S, _SE = SessionState, SessionEvent

SESSION: Final[dict[tuple[SessionState, SessionEvent], SessionState]] = {
    (_S.UNMAPPED, _SE.SEND_BEGIN): _S.BEGIN_SENT,
    (_S.UNMAPPED, _SE.RECEIVE_BEGIN): _S.BEGIN_RECEIVED,
    (_S.BEGIN_SENT, _SE.RECEIVE_BEGIN): _S.MAPPED,
    (_S.BEGIN_RECEIVED, _SE.SEND_BEGIN): _S.MAPPED,
    (_S.BEGIN_SENT, _SE.SEND_END): _S.END_SENT,
    (_S.MAPPED, _SE.SEND_END): _S.END_SENT,
    (_S.MAPPED, _SE.RECEIVE_END): _S.ENDED,
    (_S.END_SENT, _SE.RECEIVE_BEGIN): _S.END_SENT,
    (_S.END_SENT, _SE.RECEIVE_END): _S.ENDED,
}


class LinkState(enum.Enum):
    """State of a link."""

    DETACHED = "detached"
    ATTACH_SENT = "attach_sent"
    ATTACH_RECEIVED = "attach_received"
    ATTACHED = "attached"
    DETACH_SENT = "detach_sent"
    ENDED = "ended"


class LinkEvent(enum.Enum):
    """An event of a link."""

    SEND_ATTACH = "send attach"
    RECEIVE_ATTACH = "receive attach"
    SEND_DETACH = "send detach"
    RECEIVE_DETACH = "receive detach"


_L, _LE = LinkState, LinkEvent

LINK: Final[dict[tuple[LinkState, LinkEvent], LinkState]] = {
    (_L.DETACHED, _LE.SEND_ATTACH): _L.ATTACH_SENT,
    (_L.DETACHED, _LE.RECEIVE_ATTACH): _L.ATTACH_RECEIVED,
    (_L.ATTACH_SENT, _LE.RECEIVE_ATTACH): _L.ATTACHED,
    (_L.ATTACH_RECEIVED, _LE.SEND_ATTACH): _L.ATTACHED,
    (_L.ATTACH_RECEIVED, _LE.RECEIVE_DETACH): _L.ENDED,
    (_L.ATTACH_SENT, _LE.SEND_DETACH): _L.DETACH_SENT,
    (_L.ATTACHED, _LE.SEND_DETACH): _L.DETACH_SENT,
    (_L.ATTACHED, _LE.RECEIVE_DETACH): _L.ENDED,
    (_L.DETACH_SENT, _LE.RECEIVE_ATTACH): _L.DETACH_SENT,
    (_L.DETACH_SENT, _LE.RECEIVE_DETACH): _L.ENDED,
}

State = TypeVar("State", bound=enum.Enum)
Event = TypeVar("Event", bound=enum.Enum)


def next_state(
    table: Mapping[tuple[State, Event], State], before: State, event: Event, condition: str = FRAMING_ERROR
) -> State:
    """Return the state after an event. Raises AmqpError if it may not happen now."""
    then = table.get((before, event))
    if then is None:
        what = type(before).__name__.removesuffix("State").lower()
        raise AmqpError(condition, f"expected no {event.value} of a {what} that is {before.value}")
    return then
