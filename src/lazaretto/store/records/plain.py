"""Operations from which nothing follows on a plain queue: a store may do them in the shortest way it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from lazaretto.model.entities import EntityPath
from lazaretto.model.messages import ReceivedMessage
from lazaretto.store.records.messages import NewMessage


class PlainSend(msgspec.Struct, frozen=True, gc=False):
    """Messages for a queue. The answer are their sequence numbers."""

    path: EntityPath
    messages: Sequence[NewMessage]


class PlainTake(msgspec.Struct, frozen=True, gc=False):
    """The next messages of a queue, at most `limit`, under a lock. The answer are these messages."""

    path: EntityPath
    limit: int


class PlainRemoval(msgspec.Struct, frozen=True, gc=False):
    """Completed messages of a queue, taken for the first time. The answer is an empty list.

    `by_lock`: their keys, by the tokens of their locks.
    """

    path: EntityPath
    messages: Sequence[ReceivedMessage]
    by_lock: Mapping[int, list[int]]


Plain = PlainSend | PlainTake | PlainRemoval
