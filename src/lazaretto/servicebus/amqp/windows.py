"""The windows of a session: how many transfer frames each end may still send."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from lazaretto.servicebus.amqp.conditions import WINDOW_VIOLATION, SessionError
from lazaretto.servicebus.amqp.performatives import Begin, Flow

_MODULUS = 1 << 32
_MASK = _MODULUS - 1
_HALF = 1 << 31

#: The outgoing window that this end tells: it never limits itself.
_WIDEST: Final = 0x7FFFFFFF


def add(number: int, count: int) -> int:
    """Return the number `count` places on."""
    return number + count & _MASK


def forward(first: int, second: int) -> int:
    """Return how far the second lies behind the first, if it never lies before it."""
    return second - first & _MASK


def distance(first: int, second: int) -> int:
    """Return how far the second lies behind the first: negative if it lies before it."""
    difference = (second - first) % _MODULUS
    return difference if difference < _HALF else difference - _MODULUS


def ranges(ids: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and last of each run of numbers that follow each other. No number may come twice."""
    if ids and max(ids) - min(ids) == len(ids) - 1:
        yield min(ids), max(ids)
        return
    first = last = None
    for id_ in ids:
        if last is None or first is None:
            first = id_
        elif id_ != add(last, 1):
            yield first, last
            first = id_
        last = id_
    if first is not None and last is not None:
        yield first, last


class Windows:
    """Counts of transfer frames in both directions. `size`: frames that this end takes at once.

    `first`: the number of the first frame that this end sends. Only numbers of frames are serial numbers:
    a window is a plain count, which may be as large as 32 bits allow.
    """

    def __init__(self, size: int, first: int = 0) -> None:
        self._size = size
        self._incoming = size
        self._next_incoming = 0
        self._first = first
        self._next_outgoing = first
        self._outgoing = 0

    def begin(self, remote_channel: int | None, handle_max: int) -> Begin:
        """Return the begin that tells the windows."""
        return Begin(remote_channel, self._next_outgoing, self._size, _WIDEST, handle_max)

    def take_begin(self, begin: Begin) -> None:
        """Keep what the peer said of its windows when it began."""
        self._next_incoming = begin.next_outgoing_id
        self._outgoing = begin.incoming_window

    def flow(self) -> Flow:
        """Return a flow that opens the incoming window again."""
        self._incoming = self._size
        return Flow(self._next_incoming, self._size, self._next_outgoing, _WIDEST)

    def take_flow(self, flow: Flow) -> None:
        """Keep how many frames the peer takes now."""
        expects = self._first if flow.next_incoming_id is None else flow.next_incoming_id
        self._outgoing = max(0, flow.incoming_window - distance(expects, self._next_outgoing))

    def take(self) -> bool:
        """Count a frame that is sent, if one may be sent; return whether."""
        if self._outgoing <= 0:
            return False
        self._outgoing -= 1
        self._next_outgoing = add(self._next_outgoing, 1)
        return True

    def count_received(self) -> None:
        """Count a frame that came. Raises SessionError if the window was used up."""
        self._next_incoming = add(self._next_incoming, 1)
        self._incoming -= 1
        if self._incoming < 0:
            raise SessionError(WINDOW_VIOLATION, "expected no more frames than the window allows, got more")

    @property
    def runs_out(self) -> bool:
        """Whether half of the incoming window is used up."""
        return self._incoming < self._size // 2
