"""Spans of dead letters that operators send back, of repairs, and of each commit that sends letters back."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Sequence

from lazaretto.engine.maintenance import look
from lazaretto.engine.outcome.dead_letter_operations import DeadLetterFilter
from lazaretto.engine.outcome.dead_letter_pages import some_letters
from lazaretto.engine.repairs.advance import Step
from lazaretto.engine.repairs.course import next_headers
from lazaretto.engine.repairs.runner import Around
from lazaretto.model.entities import EntityPath
from lazaretto.model.failure import name_of
from lazaretto.model.repairs import Phase
from lazaretto.observe.traces import MOST_LINKS, active
from lazaretto.store.records.repairs import RepairRecord
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


def directed(store: Store, verb: str, run: Callable[[], RepairRecord]) -> RepairRecord:
    """Return the repair that an operator planned or directed, with a span if somebody traces.

    It links to the letters that the repair deals with next.
    """
    tracing = active(store)
    if tracing is None:
        return run()
    began = time.time_ns()
    try:
        record = run()
    except Exception as error:
        tracing.repaired(verb, None, began=began, error=name_of(error))
        raise
    headers = store.read(functools.partial(next_headers, record=record, most=MOST_LINKS))
    tracing.repaired(verb, record, record.letters, headers, began=began)
    return record


def around_steps(store: Store) -> Around:
    """Return what makes a span of each step of a repair that dealt with letters, if somebody traces."""

    def around(record: RepairRecord, limit: int, advance: Callable[[], Step]) -> Step:
        tracing = active(store)
        if tracing is None:
            return advance()
        undoes = record.phase == Phase.UNDOING.value
        most = 0 if undoes else min(limit, MOST_LINKS)
        # Once they are sent, somebody may have completed them.
        headers = store.read(functools.partial(next_headers, record=record, most=most))
        began = time.time_ns()
        step = advance()
        if step.letters:
            verb = "take_back" if undoes else "resubmit"
            tracing.repaired(verb, record, step.letters, headers[: step.letters], began=began)
        return step

    return around
