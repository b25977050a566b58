"""Tells the causes of a queue's dead letters, and lets operators merge, split and note them."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Collection, Iterable
from datetime import datetime, timedelta
from typing import Any, TypeVar

from lazaretto.broker.dead_letters import checked_filter
from lazaretto.engine.command import tuple_of
from lazaretto.engine.maintenance import look
from lazaretto.engine.outcome.causes import (
    Cause,
    GroupCauses,
    Triage,
    group_dead_letters,
    read_causes,
)
from lazaretto.engine.outcome.dead_letter_operations import (
    DeadLetterFilter,
    DeadLetterGroup,
)
from lazaretto.errors import InvalidOption, MessageNotFound
from lazaretto.model.causes import LAST_CAUSE
from lazaretto.model.checks import flag, function, moment, seconds, shown, text, whole
from lazaretto.model.entities import EntityPath, dead_letter_path
from lazaretto.model.messages import Message, StoredMessage
from lazaretto.model.triage.answers import Explanation
from lazaretto.store.sql.store import Store
from lazaretto.store.sql.transaction import Transaction

T = TypeVar("T")


def _explaining() -> Any:
    # Only who asks pays for the parser of filters.
    return importlib.import_module("lazaretto.broker.explain")


class CauseDesk:
    """Tells causes of dead letters. Paths are of a queue, or of its dead-letter subqueue."""

    _store: Store

    def triage(
        self,
        path: str,
        *,
        since: datetime | None = None,
        over: bool = False,
        explain_for: float | timedelta = 0,
    ) -> Triage:
        """Return the causes of a queue's dead letters, the largest first.

        A cause is new if its first letter came after `since`: the time of a release, or of the last look; by
        default 24 hours ago. `over`: also causes of which no letter waits any more. `explain_for`: how many
        seconds it may look for differences, as `explain` does, where a cause has none yet, or has half or
        twice as many letters since; `left` has the numbers of the causes that it did not get to.
        """
        parsed, mark = dead_letter_path(EntityPath.parse(path)), moment("since", since)
        flag("over", over)
        spend = seconds("explain_for", explain_for)

        def read() -> Triage:
            return self._grouped(parsed, lambda tx: read_causes(tx, parsed, mark, over=over))

        page = read()
        if not spend or not any(cause.to_explain for cause in page.causes):
            return page
        rest = _explaining().explain_some(self._store, parsed, page.causes, spend)
        return dataclasses.replace(read(), left=tuple(rest))

    def cause(self, path: str, number: int, *, since: datetime | None = None) -> Cause:
        """Return one cause by its number. Raises MessageNotFound."""
        checked = whole("number", number, 1, LAST_CAUSE)
        for cause in self.triage(path, since=since, over=True).causes:
            if cause.number == checked:
                return cause
        raise MessageNotFound(f"no cause {checked} in {path!r}")

    def explain(
        self,
        path: str,
        which: DeadLetterFilter | None = None,
        *,
        good: Iterable[Message | StoredMessage] | None = None,
        decode: Callable[[bytes], Any] | None = None,
        leave_out: Collection[str] = (),
    ) -> list[Explanation]:
        """Return the causes of a queue's dead letters, most letters first, each with its differences.

        A difference is the smallest condition that holds for a cause's letters and not for good messages.
        It is found among samples, then counted over all letters. `good` defaults to completed messages that
        the queue has kept, else those that wait in it, else the letters of other causes. Bodies are read as
        JSON; `decode` returns what others hold, as dicts, lists, texts and numbers. `leave_out` names fields
        that no difference may use, such as `body.id`. What was found for all letters of a cause is kept with
        it: `cause.difference`.
        """
        parsed = dead_letter_path(EntityPath.parse(path))
        filter_ = checked_filter(which)
        function("decode", decode)
        left_out = [text("leave_out", name, 1000) for name in tuple_of("leave_out", leave_out)]
        compared = None if good is None else tuple_of("good", good)
        if compared and not all(isinstance(message, Message | StoredMessage) for message in compared):
            raise InvalidOption(f"expected good to be messages, got {shown(good)}")
        explanations: list[Explanation] = _explaining().explain(
            self._store, parsed, filter_, compared,
            decode, left_out, self.triage(path).causes,
        )  # fmt: skip
        return explanations

    def dead_letter_groups(self, path: str) -> list[DeadLetterGroup]:
        """Count a queue's pending dead letters by reason and error type."""
        parsed = dead_letter_path(EntityPath.parse(path))
        return self._grouped(parsed, lambda tx: group_dead_letters(tx, parsed))

    def _grouped(self, path: EntityPath, read: Callable[[Transaction], T | None]) -> T:
        """Return what is read of causes, once each dead letter has one."""
        while (answer := look(self._store, read)) is None:
            while self._store.run(GroupCauses(path)):
                pass
        return answer
