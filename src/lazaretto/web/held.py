"""Messages that a server has given out under locks, so that settling them need not read them again."""

from __future__ import annotations

import uuid
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from lazaretto.model.messages import ReceivedMessage

#: Bytes of bodies and headers, and messages, that are remembered; the oldest are forgotten first.
_MOST_BYTES: Final = 16 * 1024 * 1024
_MOST: Final = 10_000


class _Place(NamedTuple):
    queue: str
    subqueue: str | None
    token: uuid.UUID


class HeldMessages:
    """Remembers some. Whether a lock is still held is for the commit to say that settles the message."""

    def __init__(self) -> None:
        self._kept: OrderedDict[_Place, ReceivedMessage] = OrderedDict()
        self._size = 0
        self._largest: dict[str, int] = {}

    def keep(self, queue: str, subqueue: str | None, messages: Iterable[ReceivedMessage]) -> None:
        """Remember messages that were received from a queue, under their tokens."""
        messages = list(messages)
        if messages:
            if len(self._largest) >= _MOST:
                self._largest.clear()
            self._largest[queue] = max(map(_size_of, messages))
        for message in messages:
            token = message.lock_token
            if token is not None and (place := _Place(queue, subqueue, token)) not in self._kept:
                self._kept[place] = message
                self._size += _size_of(message)
        while self._size > _MOST_BYTES or len(self._kept) > _MOST:
            _, message = self._kept.popitem(last=False)
            self._size -= _size_of(message)

    def largest(self, queue: str) -> int | None:
        """Return the size of the largest message that was received from a queue last; None: not known."""
        return self._largest.get(queue)

    def take(
        self, queue: str, subqueue: str | None, tokens: Sequence[uuid.UUID]
    ) -> list[ReceivedMessage] | None:
        """Return and forget the messages under tokens; None unless all of them are remembered."""
        places = [_Place(queue, subqueue, token) for token in dict.fromkeys(tokens)]
        if len(places) < len(tokens) or not all(place in self._kept for place in places):
            return None
        messages_ = [self._kept.pop(place) for place in places]
        self._size -= sum(map(_size_of, messages_))
        return messages_


def _size_of(message: ReceivedMessage) -> int:
    return len(message.body) + len(message.encoded_headers or b"")
