"""The broker as somebody sees it: redacted fields are gone before a route or a page has anything of them.

What a route asks of the broker must be listed here: either it tells nothing of messages, or it is redacted.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Iterable
from typing import Any, Final, cast

from lazaretto.aio import AsyncBroker
from lazaretto.aio.readings import Readings
from lazaretto.aio.visits import Visits
from lazaretto.commands import (
    ApplyRepair,
    CanaryRepair,
    Command,
    PlanRepair,
    ResumeRepair,
)
from lazaretto.engine.outcome.causes import Cause, Triage
from lazaretto.engine.outcome.dead_letter_operations import DeadLetterFilter
from lazaretto.engine.outcome.dead_letter_pages import DeadLetterPage, DeadLetterPreview
from lazaretto.errors import LazarettoError
from lazaretto.model.edits.edit import Edit, EditKind
from lazaretto.model.edits.named_fields import edit_names
from lazaretto.model.edits.redact import MASK, Redaction
from lazaretto.model.entities import EntityPath, Subqueue
from lazaretto.model.grants import Permission
from lazaretto.model.message_history import MessageHistory
from lazaretto.model.messages import DeadLetter, PeekedMessage
from lazaretto.model.repairs import EditedLetter, RepairedLetter, RepairPreview, RepairStatus
from lazaretto.web.access import Identity
from lazaretto.web.readings import ViewedReadings, ViewRules
from lazaretto.web.redacted import (
    chosen,
    lines_of,
    refuse_edit,
    refuse_filter,
    seen_causes,
    shown,
    shown_detail,
    shown_history,
    shown_letter,
    without_search,
)
from lazaretto.web.refusals import NotPermitted

#: What tells nothing of what messages hold, or hands them to programs that receive.
PLAIN: Final = frozenset({
    "browser_sessions", "claims", "facts", "four_eyes", "four_eyes_wish", "last_event", "people", "purged",
    "rates", "receiver", "redaction", "sender", "sessions", "tokens", "topic", "topics", "workers",
})  # fmt: skip
#: What tells how things stand, with the texts of errors.
STANDING: Final = frozenset({
    "audit", "breaker", "events", "held_sessions", "queue", "queues", "repairs", "session", "status",
    "subscription", "subscriptions",
})  # fmt: skip
#: What tells of messages as they are.
TELLING: Final = frozenset({
    "cause", "dead_letter", "dead_letter_page", "message_history", "peek", "triage",
})  # fmt: skip


def seen_by(broker: AsyncBroker, who: Identity) -> AsyncBroker:
    """Return a broker as somebody sees it."""
    whole = who.may(Permission.READ_SECRETS, None)
    return cast("AsyncBroker", (WitnessedBroker if whole else ViewedBroker)(broker, who))


async def check_filter(broker: AsyncBroker, path: str, which: DeadLetterFilter) -> None:
    """Raise NotPermitted if a filter names what somebody may not read."""
    if isinstance(broker, ViewedBroker):
        await broker.rules.check_filter(path, which)


async def check_edit(broker: AsyncBroker, path: str, edit: str) -> None:
    """Raise NotPermitted if an edit names what somebody may not read."""
    if isinstance(broker, ViewedBroker):
        refuse_edit(edit, await broker.rules.at(path))


def readings_of(broker: AsyncBroker) -> Readings:
    """Return what reads messages in parts, as somebody sees them."""
    if isinstance(broker, ViewedBroker | WitnessedBroker):
        return broker.readings
    return Readings(broker)


async def hides(broker: AsyncBroker, path: str) -> bool:
    """Return whether fields of an entity's messages are hidden from somebody."""
    return isinstance(broker, ViewedBroker) and bool(await broker.rules.at(path))


class WitnessedBroker:
    """A broker for somebody who reads everything: what it reads of redacted fields is in the audit log."""

    def __init__(self, broker: AsyncBroker, who: Identity) -> None:
        self._broker, self.rules = broker, ViewRules(broker, who)
        self.readings = ViewedReadings(broker, self.rules)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._broker, name)
        if name not in TELLING:
            return value

        async def tell(path: str, *arguments: Any, **named: Any) -> Any:
            await self.rules.note_read(path)
            return await value(path, *arguments, **named)

        return tell


class ViewedBroker:
    """A broker as somebody sees it."""

    def __init__(self, broker: AsyncBroker, who: Identity) -> None:
        self._broker, self._who = broker, who
        self._visits = Visits(broker)
        self.rules = ViewRules(broker, who)
        self.dialogs = ViewedDialogs(broker, self.rules)
        self.readings = ViewedReadings(broker, self.rules)

    def __getattr__(self, name: str) -> Any:
        if name in PLAIN:
            return getattr(self._broker, name)
        if name not in STANDING:
            raise AttributeError(f"lazaretto.web.viewed does not say what {name} may tell of messages")

        async def tell(*arguments: Any, **named: Any) -> Any:
            value = await getattr(self._broker, name)(*arguments, **named)
            path = arguments[0] if arguments and isinstance(arguments[0], str) else ""
            return await self.rules.shown(value, path)

        return tell

    async def run(self, command: Command, **how: Any) -> Any:
        """Run a command. Raises NotPermitted if it could tell its actor, or lose, what that may not read."""
        path = getattr(command, "path", None)
        redaction = Redaction() if path is None else await self.rules.at(path)
        if path is not None and redaction:
            if isinstance(command, PlanRepair):
                refuse_filter(command.filter, redaction)
                if command.edit is not None:
                    refuse_edit(command.edit, redaction)
            await self._refuse_leak(path, redaction, await self._visits.destination(command))
        if isinstance(command, CanaryRepair | ApplyRepair | ResumeRepair):
            # Where it sends to may forward elsewhere since it was planned.
            standing = await (await self._broker.repair(command.name)).status()
            redaction = await self.rules.at(standing.queue)
            await self._refuse_leak(standing.queue, redaction, standing.to or standing.queue)
        answer = await self._broker.run(command, **how)
        return shown_detail(answer, redaction) if redaction and isinstance(answer, dict) else answer

    async def _refuse_leak(self, path: str, redaction: Redaction, to: str | None) -> None:
        """Raise NotPermitted if a message of an entity would come to where more of it may be read."""
        if not redaction or to is None:
            return
        for place in await self._visits.places_behind(to):
            # Whoever receives reads everything.
            receives = self._who.may(Permission.RECEIVE, place) and not self._who.may(
                Permission.RECEIVE, path
            )
            if receives or not redaction.is_within(self.rules.of(place)):
                behind = "" if place == to else ", which forwards to another"
                raise NotPermitted(
                    f"expected a place with all rules for redacted fields that {path} has, got {to}{behind}: "
                    "they could be read there; ask somebody who may read them"
                )

    # -- messages -------------------------------------------------------------------------------

    async def peek(self, path: str, *arguments: Any, **named: Any) -> list[PeekedMessage]:
        redaction = await self.rules.read(path)
        messages = await self._broker.peek(path, *arguments, **named)
        if not redaction:
            return messages
        return await asyncio.to_thread(lambda: [redaction.message(one) for one in messages])

    async def message_history(self, path: str, sequence_number: int) -> MessageHistory:
        await self.rules.note_read(path)
        history = self._permitted(await self._broker.message_history(path, sequence_number))
        ruled = await self.rules.load()
        return await asyncio.to_thread(shown_history, history, self.rules.of) if ruled else history

    def _permitted(self, history: MessageHistory) -> MessageHistory:
        """Return a history without the places whose messages may not be read."""
        may = self._who.may
        seen = tuple(one for one in history.generations if may(Permission.READ_BODIES, one.queue))
        complete = history.complete and len(seen) == len(history.generations)
        return dataclasses.replace(history, generations=seen, complete=complete)

    async def dead_letter(self, path: str, sequence_number: int) -> DeadLetter:
        redaction = await self.rules.read(path)
        letter = await self._broker.dead_letter(path, sequence_number)
        return await asyncio.to_thread(shown_letter, letter, redaction) if redaction else letter

    async def dead_letter_page(
        self,
        path: str,
        which: DeadLetterFilter | None = None,
        *,
        budget: float = 0.25,
        **how: Any,
    ) -> DeadLetterPage:
        redaction = await self.rules.read(path)
        if not redaction:
            return await self._broker.dead_letter_page(path, which, budget=budget, **how)
        filter_ = which or DeadLetterFilter()
        await self.rules.check_filter(path, filter_)
        rest, end = without_search(filter_), time.monotonic() + budget
        first: DeadLetterPage | None = None
        while True:
            page = await self._broker.dead_letter_page(path, rest, budget=budget, **how)
            first = first or page
            letters = await self._seen(path, page, filter_, redaction)
            # What is searched is what may be seen, so the page can be short: then another one follows.
            if letters or page.next is None or time.monotonic() >= end:
                return dataclasses.replace(page, letters=tuple(letters), previous=first.previous)
            how["cursor"] = page.next

    async def _seen(
        self, path: str, page: DeadLetterPage, which: DeadLetterFilter, redaction: Redaction
    ) -> list[DeadLetterPreview]:
        previews = {one.sequence_number: one for one in page.letters}
        workers = await self.rules.attempters(path, previews, which)
        matches: dict[int, list[DeadLetterPreview]] = {}
        filter_ = DeadLetterFilter(sequence_numbers=tuple(previews))
        # One by one: they can be large.
        async for letter in self._broker.dead_letters(path, filter_):
            number = letter.sequence_number
            matches[number] = await asyncio.to_thread(
                chosen, [previews[number]], {number: letter}, which, redaction, workers
            )
        gone = [one for number, one in previews.items() if number not in matches]
        for one in chosen(gone, {}, which, redaction, workers):
            matches[one.sequence_number] = [one]
        return [seen for number in previews for seen in matches.get(number, ())]

    async def _letters(self, path: str, numbers: Iterable[int]) -> dict[int, DeadLetter]:
        """Return dead letters with their messages, as they are, by their numbers."""
        which = DeadLetterFilter(sequence_numbers=tuple(numbers))
        return {one.sequence_number: one async for one in self._broker.dead_letters(path, which)}

    # -- causes ---------------------------------------------------------------------------------

    async def triage(self, path: str, **how: Any) -> Triage:
        await self.rules.note_read(path)
        page = await self._broker.triage(path, **how)
        return dataclasses.replace(page, causes=tuple(await self._causes(path, page.causes)))

    async def cause(self, path: str, number: int, **how: Any) -> Cause:
        await self.rules.note_read(path)
        (shown_cause_,) = await self._causes(path, [await self._broker.cause(path, number, **how)])
        return shown_cause_

    async def _causes(self, path: str, causes: Iterable[Cause]) -> list[Cause]:
        redaction, causes_ = await self.rules.at(path), list(causes)
        bodies = self._who.may(Permission.READ_BODIES, path)
        if not redaction.takes_values or redaction.hides_errors:
            return await asyncio.to_thread(seen_causes, causes_, {}, redaction, bodies)
        seen: list[Cause] = []
        for one in causes_:
            # One by one: their examples can be large.
            letters = {} if one.example is None else await self._letters(path, [one.example])
            seen += await asyncio.to_thread(seen_causes, [one], letters, redaction, bodies)
        return seen

    async def explain(self, path: str, which: DeadLetterFilter | None = None) -> None:
        """Look for what the letters of causes share; `cause` tells it."""
        await self._broker.explain(path, which)

    # -- repairs --------------------------------------------------------------------------------

    async def repair(self, name: str) -> ViewedRepair:
        return ViewedRepair(await self._broker.repair(name), self, self.rules)


class ViewedRepair:
    """A repair as somebody sees it."""

    def __init__(self, repair: Any, broker: ViewedBroker, rules: ViewRules) -> None:
        self._repair, self._broker, self._rules = repair, broker, rules

    async def status(self) -> RepairStatus:
        status_: RepairStatus = await self._repair.status()
        return await self._rules.shown(status_)

    async def preview(self, *, letters: int | None = 1000) -> RepairPreview:
        """Return what would become of its letters. Differences are those of the letters that may be seen."""
        preview_: RepairPreview = await self._repair.preview(letters=letters)
        edit, path, redaction = await self._edit()
        if not redaction:
            return preview_
        examples = []
        for one in preview_.examples if edit is not None else ():
            lines = await self._lines(path, one.sequence_number, edit, redaction)
            examples.append(EditedLetter(one.sequence_number, lines))
        skipped = preview_.skipped
        if self._tells(edit, redaction):
            skipped = {MASK: sum(preview_.skipped.values())} if preview_.skipped else {}
        stops = redaction.text(preview_.stops, None)
        return dataclasses.replace(preview_, examples=tuple(examples), skipped=skipped, stops=stops)

    async def letters(self, *, skipped: bool = False, failed: bool = False) -> AsyncIterator[RepairedLetter]:
        edit, _, redaction = await self._edit()
        hides = bool(redaction) and self._tells(edit, redaction)
        async for one in self._repair.letters(skipped=skipped, failed=failed):
            yield dataclasses.replace(one, why=MASK) if hides and one.why is not None else one

    async def _edit(self) -> tuple[Edit | None, str, Redaction]:
        status: RepairStatus = await self._repair.status()
        redaction = await self._rules.at(status.queue)
        edit: Edit | None = await self._repair.edit() if redaction else None
        return edit, str(EntityPath(status.queue, Subqueue(status.subqueue))), redaction

    @staticmethod
    def _tells(edit: Edit | None, redaction: Redaction) -> bool:
        """Return whether the reasons of an edit's refusals can tell what may not be read."""
        return edit is not None and edit_names(redaction, edit.text)

    async def _lines(
        self, path: str, number: int, edit: Edit | None, redaction: Redaction
    ) -> tuple[str, ...]:
        if edit is None or edit.kind is EditKind.FUNCTION:
            return ()
        try:
            letter = await self._broker.dead_letter(path, number)
            return await asyncio.to_thread(lines_of, letter, edit, redaction)
        except LazarettoError:
            # It was resolved a moment ago.
            return ()


class ViewedDialogs:
    """Dialogs as somebody sees them."""

    def __init__(self, broker: AsyncBroker, rules: ViewRules) -> None:
        self._dialogs, self._rules = broker.dialogs, rules
        self.definitions = self._dialogs.definitions

    async def conversations(self, **which: Any) -> AsyncIterator[Any]:
        ruled = await self._rules.load()
        async for one in self._dialogs.conversations(**which):
            yield shown(one, self._rules.of) if ruled else one

    async def conversation(self, handle: str) -> Any:
        return await self._rules.shown(await self._dialogs.conversation(handle))

    async def dialog(self, dialog: str) -> Any:
        return await self._rules.shown(await self._dialogs.dialog(dialog))

    async def timeline(self, dialog: str) -> Any:
        """Return what happened in a dialog, without texts if either end has rules that hide some."""
        entries = await self._dialogs.timeline(dialog)
        if not await self._rules.load():
            return entries
        for end in await self._dialogs.dialog(dialog):
            redaction = self._rules.of(end.queue)
            entries = [dataclasses.replace(one, text=redaction.text(one.text, None)) for one in entries]
        return entries
