"""Manages a broker's dead letters: lists, resubmits, moves, republishes and purges them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from lazaretto.broker.editing import Editor
from lazaretto.commands.desk import Maker
from lazaretto.engine.command import check_numbers
from lazaretto.engine.log import acting
from lazaretto.engine.maintenance import look
from lazaretto.engine.messages.prepare import prepare
from lazaretto.engine.outcome.dead_letter_operations import (
    DeadLetterFilter,
    match_dead_letters,
    show_dead_letter,
)
from lazaretto.engine.outcome.dead_letter_pages import ORDERS, Slice, some_letters
from lazaretto.engine.outcome.rerouting import (
    MoveReport,
    RepublishReport,
    check_target,
    count_republished,
    find_topic,
    move_dead_letters,
    republish,
)
from lazaretto.engine.outcome.send_back import (
    EditedLetters,
    EditFunction,
    ResubmitReport,
    goes_to_units,
    portions,
    resubmit,
)
from lazaretto.engine.outcome.set_aside import Restore, RestoreReport, purge, purged_keys
from lazaretto.errors import InvalidOption
from lazaretto.model.checks import flag, function, member, shown, whole
from lazaretto.model.edits.edit import Edit
from lazaretto.model.entities import EntityPath, dead_letter_path
from lazaretto.model.keys import LAST_SEQUENCE, sequence_of
from lazaretto.model.messages import DeadLetter
from lazaretto.observe.traces.letters import resubmitting
from lazaretto.store.records.messages import NewMessage

T = TypeVar("T")

#: Dead letters of one commit when many are sent back or purged.
_CHUNK = 500
#: Dead letters that are read at once: with their messages, whose bodies are in memory then, and without.
_MESSAGES, _LETTERS = 200, 1_000

Which = DeadLetterFilter | int | Iterable[int]
#: Makes of each letter what is sent instead, None, or why it is refused.
EditLetters = Callable[[Sequence[DeadLetter]], Sequence[NewMessage | str | None]]


def checked_filter(which: object) -> DeadLetterFilter:
    """Return a filter, an empty one for None. Raises InvalidOption."""
    if which is not None and not isinstance(which, DeadLetterFilter):
        raise InvalidOption(f"expected which to be a DeadLetterFilter or None, got {shown(which)}")
    return which or DeadLetterFilter()


def _edited_by(edit: EditFunction, letters: Sequence[DeadLetter]) -> list[NewMessage | str | None]:
    """Return what a function makes of letters; what it raises is told when they are sent."""
    made: list[NewMessage | str | None] = []
    for letter in letters:
        try:
            edited = edit(letter)
            made.append(None if edited is None else prepare(edited))
        except Exception as error:
            made.append(str(error))
    return made


def _slices(numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yield the numbers of one commit at a time, of letters that go nowhere."""
    return (numbers[start : start + _CHUNK] for start in range(0, len(numbers), _CHUNK))


class DeadLetterDesk(Maker):
    """Manages the dead letters of queues and subscriptions."""

    def dead_letters(
        self,
        path: str,
        which: DeadLetterFilter | None = None,
        *,
        limit: int | None = None,
        messages: bool = True,
        order: str = "number",
        on_progress: Callable[[float], object] | None = None,
    ) -> Iterator[DeadLetter]:
        """Yield a queue's pending dead letters, without their attempts.

        `messages=False` also omits the messages, whose bodies can be large; `message` is then None. `order`:
        "number" or "time" (of dead-lettering), ascending, or "-number", "-time", descending. `on_progress` is
        called after each quarter of a second of a search, with the part of the queue that was searched, up
        to 1.
        """
        parsed, filter_ = dead_letter_path(EntityPath.parse(path)), checked_filter(which)
        if limit is not None:
            whole("limit", limit, 0, 1 << 62)
        flag("messages", messages)
        function("on_progress", on_progress)
        return self._dead_letters(
            parsed, filter_, limit, messages, member("order", order, ORDERS), on_progress
        )

    def _dead_letters(
        self,
        parsed: EntityPath,
        filter_: DeadLetterFilter,
        rest: int | None,
        messages: bool,
        order: str,
        on_progress: Callable[[float], object] | None,
    ) -> Iterator[DeadLetter]:
        slice_: Slice | None = None
        page = _MESSAGES if messages else _LETTERS
        while rest is None or rest > 0:
            letters, slice_ = look(
                self._store,
                functools.partial(
                    some_letters,
                    path=parsed,
                    which=filter_,
                    limit=page if rest is None else min(page, rest),
                    after=slice_,
                    messages=messages,
                    by_time=order.endswith("time"),
                    down=order.startswith("-"),
                ),
            )
            yield from letters
            if on_progress is not None:
                on_progress(slice_.progress)
            if slice_.position is None:
                return
            rest = None if rest is None else rest - len(letters)

    def dead_letter(self, path: str, sequence_number: int) -> DeadLetter:
        """Return one dead letter with its whole history, even after its resolution."""
        parsed = dead_letter_path(EntityPath.parse(path))
        number = whole("sequence_number", sequence_number, 1, LAST_SEQUENCE)
        return look(self._store, lambda tx: show_dead_letter(tx, parsed, number))

    def resubmit(
        self,
        path: str,
        which: Which,
        *,
        edit: Edit | str | EditFunction | None = None,
        actor: str | None = None,
        on_chunk: Callable[[int, int], object] | None = None,
    ) -> ResubmitReport:
        """Send dead letters back to their queue: by number, or all that match a filter.

        Each commit moves 500 dead letters and writes the audit log; the letters of a session that is one unit
        (on_poison_session=whole) go together, however many they are. `edit` is an Edit, or the text of one
        such as "SET body.region = 'eu'"; letters that it refuses are skipped. Or it is a function that is
        called with each dead letter and returns the Message to send instead, or None to send it unchanged.
        The set is fixed before the first commit. `on_chunk` is called with the number done and the total.
        """
        editor = called = None
        if isinstance(edit, Edit | str):
            editor = Editor(edit)
        else:
            function("edit", edit)
            called = edit
        function("on_chunk", on_chunk)
        who = acting(actor)
        parsed, numbers, detail = self._which(path, which)
        report = ResubmitReport({}, [])
        with resubmitting(self._store, parsed, numbers), editor or contextlib.nullcontext():
            if editor is not None:
                detail = {**detail, "edit": editor.edit.describe(), "edit_digest": editor.edit.digest}
            target = EntityPath(parsed.queue)
            edits = (lambda letters: _edited_by(called, letters)) if called is not None else editor
            for chunk in self._chunks(parsed, target, numbers, on_chunk, edits):
                made = called if editor is None else self._edited(editor, parsed, chunk)
                part = self._run(
                    functools.partial(
                        resubmit, path=parsed, numbers=chunk, actor=who, edit=made, detail=detail
                    )
                )
                report.resubmitted.update(part.resubmitted)
                report.skipped.extend(part.skipped)
        return report

    def _chunks(
        self,
        path: EntityPath,
        target: EntityPath,
        numbers: Sequence[int],
        on_chunk: Callable[[int, int], object] | None = None,
        edit: EditLetters | None = None,
    ) -> Iterator[Sequence[int]]:
        """Yield the numbers of one commit at a time, and report the progress after each."""
        chunks = [numbers] if numbers else []
        if len(numbers) > _CHUNK:
            edited = None if edit is None else self._sessions(edit, path, target, numbers)
            chunks = look(self._store, lambda tx: portions(tx, path, target, numbers, _CHUNK, edited))
        count = 0
        for chunk in chunks:
            yield chunk
            count += len(chunk)
            if on_chunk is not None:
                on_chunk(count, len(numbers))

    def _sessions(
        self, edit: EditLetters, path: EntityPath, target: EntityPath, numbers: Sequence[int]
    ) -> dict[int, str | None]:
        """Return the sessions that an edit puts letters in, by number, if sessions are units at a target."""
        if not look(self._store, lambda tx: goes_to_units(tx, target)):
            return {}
        sessions: dict[int, str | None] = {}
        for start in range(0, len(numbers), _MESSAGES):
            made = self._edited(edit, path, numbers[start : start + _MESSAGES])
            sessions |= {
                number: new.session_id for number, new in made.items() if isinstance(new, NewMessage)
            }
        return sessions

    def _edited(self, editor: EditLetters, parsed: EntityPath, numbers: Sequence[int]) -> EditedLetters:
        """Return what an edit makes of dead letters, by number."""
        made: dict[int, NewMessage | str | None] = {}
        for start in range(0, len(numbers), _MESSAGES):
            part = tuple(numbers[start : start + _MESSAGES])
            letters = list(
                self._dead_letters(
                    parsed, DeadLetterFilter(sequence_numbers=part), len(part), True, "number", None
                )
            )
            edited = editor(letters)
            made.update(zip((letter.sequence_number for letter in letters), edited, strict=True))
        return made

    def move_dead_letters(
        self,
        path: str,
        which: Which,
        to: str,
        *,
        actor: str | None = None,
        on_chunk: Callable[[int, int], object] | None = None,
    ) -> MoveReport:
        """Move dead letters to another queue as new messages: by number, or all that match a filter.

        Each commit moves 500, or a session that is one unit there. A message keeps its id, properties, body
        and history; its `dead_letter_source` and `dead_letter_reason` name its origin and the reason.
        Messages that the queue cannot accept stay. Raises EntityNotFound, QueueDisabled, NotAllowed.
        """
        function("on_chunk", on_chunk)
        target, who, report = EntityPath.parse(to), acting(actor), MoveReport({}, [])
        parsed, numbers, detail = self._which(path, which)
        self._store.read(lambda tx: check_target(tx, parsed, target))
        for chunk in self._chunks(parsed, target, numbers, on_chunk):
            part = self._run(
                functools.partial(
                    move_dead_letters, path=parsed, numbers=chunk, to=target, actor=who, detail=detail
                )
            )
            report.moved.update(part.moved)
            report.skipped.extend(part.skipped)
        return report

    def count_republished(self, path: str, which: Which, *, topic: str | None = None) -> RepublishReport:
        """Count the copies that `republish` would publish, and the dead letters it would skip."""
        parsed, numbers, _ = self._which(path, which)
        to = None if topic is None else EntityPath.parse(topic)
        report = self._store.read(lambda tx: RepublishReport(find_topic(tx, parsed, to).path, {}, {}, []))
        for chunk in _slices(numbers):
            report.add(
                self._store.read(functools.partial(count_republished, path=parsed, numbers=chunk, to=to))
            )
        return report

    def republish(
        self,
        path: str,
        which: Which,
        *,
        topic: str | None = None,
        actor: str | None = None,
        on_chunk: Callable[[int, int], object] | None = None,
    ) -> RepublishReport:
        """Publish dead letters to a topic again: every subscription whose rules match gets a copy of each.

        `topic` defaults to the topic of their subscription. Each commit publishes 500. Dead letters that no
        subscription matches stay. Call `count_republished` first; to send them back to their own
        subscription only, use `resubmit`. Raises EntityNotFound, QueueDisabled, NotAllowed.
        """
        function("on_chunk", on_chunk)
        to, who = None if topic is None else EntityPath.parse(topic), acting(actor)
        parsed, numbers, detail = self._which(path, which)
        report = self._store.read(lambda tx: RepublishReport(find_topic(tx, parsed, to).path, {}, {}, []))
        for chunk in self._chunks(parsed, EntityPath.parse(report.topic), numbers, on_chunk):
            report.add(
                self._run(
                    functools.partial(republish, path=parsed, numbers=chunk, to=to, actor=who, detail=detail)
                )
            )
        return report

    def purge(
        self, path: str, which: Which, *, everything: bool = False, actor: str | None = None
    ) -> list[int]:
        """Set dead letters aside, and delete them after 7 days; return their sequence numbers.

        Until then `restore` brings them back as they were. An empty filter is refused unless `everything` is
        True.
        """
        flag("everything", everything)
        if isinstance(which, DeadLetterFilter) and which.is_empty and not everything:
            raise InvalidOption(
                "an empty filter matches every dead letter; pass everything=True to delete them all"
            )
        who = acting(actor)
        parsed, numbers, detail = self._which(path, which)
        purged: list[int] = []
        for chunk in _slices(numbers):
            purged += self._run(
                functools.partial(purge, path=parsed, numbers=chunk, actor=who, detail=detail)
            )
        return purged

    def purged(self, path: str) -> list[int]:
        """Return the sequence numbers of purged dead letters that can be restored."""
        parsed = dead_letter_path(EntityPath.parse(path))
        return look(self._store, lambda tx: [sequence_of(key) for key in purged_keys(tx, parsed)])

    def restore(
        self, path: str, which: int | Iterable[int] | None = None, *, actor: str | None = None
    ) -> RestoreReport:
        """Make dead letters of purged ones again, as they were, within 7 days; None: of all of them.

        Their body, history, cause and place are what they were. A session that went on without them is not
        held again.
        """
        who = acting(actor)
        numbers = self.purged(path) if which is None else check_numbers(which)
        report = RestoreReport([], [])
        for chunk in _slices(numbers):
            part = self._store.run(Restore(path=path, sequence_numbers=tuple(chunk)).by(who))
            report.restored.extend(part.restored)
            report.skipped.extend(part.skipped)
        return report

    def _which(self, path: str, which: Which) -> tuple[EntityPath, Sequence[int], dict[str, Any]]:
        parsed = dead_letter_path(EntityPath.parse(path))
        if isinstance(which, DeadLetterFilter):
            numbers = look(self._store, lambda tx: match_dead_letters(tx, parsed, which))
            return parsed, numbers, {"filter": which.as_detail()}
        return parsed, check_numbers(which), {}
