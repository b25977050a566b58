"""Spans of dead letters that operators send back."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence

from lazaretto.engine.maintenance import look
from lazaretto.engine.outcome.dead_letter_operations import DeadLetterFilter
from lazaretto.engine.outcome.dead_letter_pages import some_letters
from lazaretto.model.entities import EntityPath
from lazaretto.observe.traces import MOST_LINKS, active
from lazaretto.store.sql.store import Store


def resubmitting(
    store: Store, path: EntityPath, numbers: Sequence[int]
) -> contextlib.AbstractContextManager[None]:
    """Return what traces that letters are sent back, if somebody traces; it links to the first of them."""
    tracing = active(store)
    if tracing is None or not numbers:
        return contextlib.nullcontext()
    some = tuple(numbers[:MOST_LINKS])
    read = functools.partial(
        some_letters,
        path=path, which=DeadLetterFilter(sequence_numbers=some), limit=len(some), after=None, messages=True,
        by_time=False, down=False,
    )  # fmt: skip
    letters, _ = look(store, read)
    messages = (letter.message for letter in letters if letter.message is not None)
    return tracing.resubmitting(EntityPath(path.queue), messages, len(numbers))
