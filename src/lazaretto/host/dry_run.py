"""Tries a handler on many dead letters in a sandbox, edited if wanted; nothing is settled or sent."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from lazaretto.broker.broker import Broker, store_of
from lazaretto.broker.editing import Editor, as_edit
from lazaretto.engine.command import check_numbers
from lazaretto.engine.maintenance import look
from lazaretto.engine.outcome.dead_letter_operations import DeadLetterFilter
from lazaretto.host.handler_calls import SandboxSetup, pack
from lazaretto.host.handlers import Handler
from lazaretto.host.outcomes import Ended, ended_of
from lazaretto.isolation import Sandbox, Verdict
from lazaretto.model.checks import whole
from lazaretto.model.edits.edit import Edit
from lazaretto.model.entities import EntityPath, Subqueue
from lazaretto.model.fingerprint import fingerprint_of, shown_fingerprint
from lazaretto.model.messages import DeadLetter, PeekedMessage
from lazaretto.model.policy import Outcome
from lazaretto.model.triage.parts import hashed
from lazaretto.store.records.messages import NewMessage

#: Letters that are read at once with their messages.
_CHUNK = 100
#: Examples of each cause.
_EXAMPLES = 5


@dataclasses.dataclass(frozen=True, slots=True)
class TriedCause:
    """Letters that were dead for one reason: how many were tried, and what became of them.

    `fingerprint`: of the old failure. `again`: they would fail as before. `other`: in another way.
    """

    fingerprint: str | None
    error_type: str | None
    letters: int
    tried: int
    succeeded: int
    again: int
    other: int

    @property
    def is_gone(self) -> bool:
        """Whether none of those tried would fail as before."""
        return self.tried > 0 and self.again == 0


@dataclasses.dataclass(frozen=True, slots=True)
class WouldFail:
    """A way in which letters would fail. `examples`: sequence numbers."""

    fingerprint: str
    error_type: str | None
    error_message: str | None
    count: int
    examples: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class DryRun:
    """A resubmission of letters, tried out. `letters`: how many were meant, of which `tried` were.

    `edited`: tried ones that the edit changes. `refused`: why letters would not be sent, by number. `sends`:
    messages that the handler would send, by queue. `statements`: SQL statements that it would execute.
    """

    queue: str
    letters: int
    tried: int
    succeeded: int
    failed: int
    edited: int
    refused: dict[int, str]
    causes: list[TriedCause]
    failures: list[WouldFail]
    sends: dict[str, int]
    statements: int


def dry_run(
    broker: Broker,
    path: str,
    which: DeadLetterFilter | int | Iterable[int],
    handler: Handler,
    *,
    edit: Edit | str | None = None,
    sample: int | None = 200,
    work: Work | None = None,
) -> DryRun:
    """Run a handler on dead letters in a sandbox, as an edit would leave them; change nothing.

    `sample`: how many at most, as many of each cause as possible; None: all. `work` does it elsewhere. Raises
    EntityNotFound, HandlerError, SandboxSetupError.
    """
    filter_ = which if isinstance(which, DeadLetterFilter) else None
    filter_ = filter_ or DeadLetterFilter(sequence_numbers=tuple(check_numbers(which)))
    _check(sample)
    letters = broker.dead_letters(path, filter_, messages=False)
    return _try(broker, path, letters, handler, edit, sample, work or try_letters)


def try_repair(
    broker: Broker, name: str, handler: Handler, *, sample: int | None = 200, work: Work | None = None
) -> DryRun:
    """Run a handler on what a repair has left to send, as its edit leaves it; change nothing.

    `sample`: how many at most, as many of each cause as possible; None: all. `work` does it elsewhere. Raises
    RepairNotFound, HandlerError, SandboxSetupError.
    """
    _check(sample)
    repair = broker.repair(name)
    status = repair.status()
    path = str(EntityPath(EntityPath.parse(status.queue).queue, Subqueue(status.subqueue)))
    return _try(broker, path, repair.left(), handler, repair.edit(), sample, work or try_letters)


def _check(sample: object) -> None:
    if sample is not None:
        whole("sample", sample, 1, 1 << 40)


def _try(
    broker: Broker,
    path: str,
    letters: Iterable[DeadLetter],
    handler: Handler,
    edit: Edit | str | None,
    sample: int | None,
    work: Work,
) -> DryRun:
    causes: dict[str | None, list[int]] = defaultdict(list)
    types: dict[str | None, str | None] = {}
    for letter in letters:
        causes[letter.fingerprint].append(letter.sequence_number)
        types[letter.fingerprint] = letter.error_type
    made = None if edit is None else as_edit(edit)
    count = work(broker, path, choose(causes, sample), handler, made)
    return DryRun(
        queue=path,
        letters=sum(map(len, causes.values())),
        tried=sum(count.tried.values()),
        succeeded=sum(count.succeeded.values()),
        failed=sum(failure.count for failure in count.failures.values()),
        edited=count.edited,
        refused=count.refused,
        causes=[count.cause(print_, types[print_], len(numbers)) for print_, numbers in causes.items()],
        failures=sorted(count.failures.values(), key=lambda failure: -failure.count),
        sends=dict(count.sends),
        statements=count.statements,
    )


def try_letters(
    broker: Broker, path: str, numbers: Sequence[int], handler: Handler, edit: Edit | None
) -> Tried:
    """Try a handler on dead letters by their numbers, and return what came of it.

    Raises HandlerError, SandboxSetupError, also without letters.
    """
    tried = Tried(look(store_of(broker), lambda tx: tx.access.fingerprint_key()))
    with (
        Editor(edit) if edit is not None else _Unedited() as editor,
        Sandbox(SandboxSetup(handler), handler.options.limits(), on_output=lambda output: None) as sandbox,
    ):
        if isinstance(editor, Editor):
            editor.check()
        for letters in _read(broker, path, numbers):
            tried.add(letters, editor, sandbox)
    return tried


def choose(causes: dict[str | None, list[int]], sample: int | None) -> list[int]:
    """Return a sample of numbers: as many of each cause as possible, those with the lowest hashes."""
    if sample is None or sum(map(len, causes.values())) <= sample:
        return sorted(number for numbers in causes.values() for number in numbers)
    mixed = [sorted(numbers, key=hashed) for numbers in causes.values()]
    rounds = itertools.chain.from_iterable(itertools.zip_longest(*mixed))
    return sorted(itertools.islice((number for number in rounds if number is not None), sample))


class _Unedited:
    """Stands for no edit."""

    def __call__(self, letters: Sequence[DeadLetter]) -> list[NewMessage | str | None]:
        return [None] * len(letters)

    def __enter__(self) -> _Unedited:
        return self

    def __exit__(self, *_: object) -> None: ...


def _read(broker: Broker, path: str, numbers: Sequence[int]) -> Iterator[list[DeadLetter]]:
    for start in range(0, len(numbers), _CHUNK):
        part = tuple(numbers[start : start + _CHUNK])
        letters = broker.dead_letters(path, DeadLetterFilter(sequence_numbers=part))
        yield [letter for letter in letters if letter.message is not None]


class Tried:
    """Counts what would happen. `key`: that of fingerprints as people see them."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self.tried: Counter[str | None] = Counter()
        self.succeeded: Counter[str | None] = Counter()
        self.again: Counter[str | None] = Counter()
        self.failures: dict[str, WouldFail] = {}
        self.refused: dict[int, str] = {}
        self.sends: Counter[str] = Counter()
        self.edited = self.statements = 0

    def add(self, letters: Sequence[DeadLetter], editor: Editor | _Unedited, sandbox: Sandbox) -> None:
        """Try some letters."""
        ready: list[tuple[DeadLetter, PeekedMessage]] = []
        for letter, edited in zip(letters, editor(letters), strict=True):
            assert letter.message is not None
            if isinstance(edited, str):
                self.refused[letter.sequence_number] = edited
                continue
            self.edited += edited is not None
            ready.append((letter, as_edited(letter.message, edited)))
        verdicts = sandbox.run(pack([message for _, message in ready], {}))
        for (letter, _), verdict in zip(ready, verdicts, strict=True):
            self._count(letter, verdict, ended_of(verdict))

    def _count(self, letter: DeadLetter, verdict: Verdict, ended: Ended) -> None:
        self.tried[letter.fingerprint] += 1
        failure, settlement = ended.settlement.failure, ended.settlement
        if settlement.outcome in (Outcome.COMPLETED, Outcome.DEFERRED):
            self.succeeded[letter.fingerprint] += 1
            if ended.effects is not None:
                for target, sent in ended.effects.sends:
                    self.sends[target] += len(sent)
                self.statements += len(ended.effects.statements)
            return
        print_ = fingerprint_of(letter.reason, letter.description, failure)
        same = shown_fingerprint(print_.number, self._key)
        self.again[letter.fingerprint] += same == letter.fingerprint
        error = failure.type if failure else settlement.reason
        text = failure.message if failure else settlement.description
        failures = self.failures.get(same) or WouldFail(same, error, text, 0, ())
        self.failures[same] = dataclasses.replace(
            failures,
            count=failures.count + 1,
            examples=(*failures.examples, letter.sequence_number)[:_EXAMPLES],
        )

    def merge(self, other: Tried) -> None:
        """Add what was counted of later letters."""
        self.tried += other.tried
        self.succeeded += other.succeeded
        self.again += other.again
        self.refused |= other.refused
        self.sends += other.sends
        self.edited += other.edited
        self.statements += other.statements
        for print_, theirs in other.failures.items():
            ours = self.failures.get(print_)
            self.failures[print_] = (
                theirs
                if ours is None
                else dataclasses.replace(
                    ours,
                    count=ours.count + theirs.count,
                    examples=(*ours.examples, *theirs.examples)[:_EXAMPLES],
                )
            )

    def cause(self, print_: str | None, error_type: str | None, letters: int) -> TriedCause:
        """Return what was counted of the letters of a cause."""
        tried, good, again = self.tried[print_], self.succeeded[print_], self.again[print_]
        return TriedCause(print_, error_type, letters, tried, good, again, tried - good - again)


#: Tries a handler on letters of a queue, edited if wanted.
Work = Callable[[Broker, str, Sequence[int], Handler, Edit | None], Tried]


def as_edited(message: PeekedMessage, new: NewMessage | None) -> PeekedMessage:
    """Return a letter's message as an edit would leave it."""
    if new is None:
        return message
    return msgspec.structs.replace(
        message,
        body=new.body,
        message_id=new.message_id or message.message_id,
        encoded_headers=new.headers,
        decoded=None,
    )
