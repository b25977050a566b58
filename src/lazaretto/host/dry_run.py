"""Tries a handler on many dead letters in a sandbox, edited if wanted; nothing is settled or sent."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from lazaretto.broker.broker import Broker, store_of
from lazaretto.broker.editing import Editor, as_edit
from lazaretto.engine.command import check_numbers
from lazaretto.engine.maintenance import look
from lazaretto.engine.outcome.dead_letter_operations import DeadLetterFilter
from lazaretto.errors import MessageNotFound
from lazaretto.host.handler_calls import SandboxSetup, pack
from lazaretto.host.handlers import Handler
from lazaretto.host.outcomes import Ended, ended_of
from lazaretto.isolation import Sandbox, Verdict
from lazaretto.model.checks import whole
from lazaretto.model.edits.edit import Edit
from lazaretto.model.entities import EntityPath, Subqueue
from lazaretto.model.fingerprint import fingerprint_of, shown_fingerprint
from lazaretto.model.headers import decode_headers
from lazaretto.model.messages import DeadLetter, PeekedMessage, sent_columns
from lazaretto.model.policy import Counters, Final, Outcome, charge, decide
from lazaretto.model.triage.parts import hashed
from lazaretto.store.records.messages import NewMessage

#: Letters that are read at once with their messages.
_CHUNK = 100
#: Examples of each cause.
_EXAMPLES = 5

_FRESH = Counters()
_PLAIN = {
    Outcome.COMPLETED: "It would be completed.",
    Outcome.DEFERRED: "It would be deferred until it is received by its number.",
    Outcome.DEAD_LETTERED: "It would be dead-lettered by its handler's own decision.",
    Outcome.RELEASED: "It would be released.",
}


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


class TrialSend(msgspec.Struct, frozen=True):
    """A message that the handler would have sent."""

    queue: str
    message_id: str | None
    body: bytes
    subject: str | None
    session_id: str | None


class Trial(msgspec.Struct, frozen=True):
    """The result of a trial: what would happen to the message.

    `outcome`: how the attempt would end. `consequence`: what the queue would then do, in words.
    `sends` and `statements` would take effect with it. `output`: what it printed.
    """

    queue: str
    sequence_number: int
    message_id: str
    outcome: str
    consequence: str
    error_type: str | None
    error_message: str | None
    stack: str | None
    sends: list[TrialSend]
    statements: list[tuple[str, Any]]
    output: str


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
        **sent_columns(new),
    )


def try_message(broker: Broker, path: str, sequence_number: int, handler: Handler) -> Trial:
    """Run a handler on a dead letter or a queued message, and return what would happen.

    Raises EntityNotFound, MessageNotFound, HandlerError, SandboxSetupError.
    """
    parsed = EntityPath.parse(path)
    message = _find(broker, parsed, sequence_number)
    output: list[bytes] = []
    with Sandbox(SandboxSetup(handler), handler.options.limits(), on_output=output.append) as sandbox:
        (verdict,) = sandbox.run(pack([message], {}))
    ended = ended_of(verdict)
    failure, effects = ended.settlement.failure, ended.effects
    return Trial(
        queue=parsed.queue,
        sequence_number=message.sequence_number,
        message_id=message.message_id,
        outcome=ended.settlement.outcome.value,
        consequence=_consequence(broker, parsed, message, ended.settlement.outcome),
        error_type=failure.type if failure else None,
        error_message=failure.message if failure else None,
        stack=failure.stack if failure else None,
        sends=[
            TrialSend(target, new.message_id, new.body, headers.subject, new.session_id)
            for target, sent in (effects.sends if effects else [])
            for new in sent
            for headers in [decode_headers(new.headers)]
        ],
        statements=effects.statements if effects else [],
        output=b"".join(output).decode("utf-8", "replace"),
    )


def _find(broker: Broker, path: EntityPath, number: int) -> PeekedMessage:
    for subqueue in (Subqueue.DEAD_LETTER, Subqueue.MAIN):
        if path.subqueue in (Subqueue.MAIN, subqueue):
            messages = broker.peek(str(EntityPath(path.queue, subqueue)), 1, number)
            if messages and messages[0].sequence_number == number:
                return messages[0]
    raise MessageNotFound(f"no dead letter and no message {number} in {path.queue!r}")


def _consequence(broker: Broker, path: EntityPath, message: PeekedMessage, outcome: Outcome) -> str:
    """Say what the queue's policy would do if the message were resubmitted unchanged."""
    if outcome in _PLAIN:
        return _PLAIN[outcome]
    policy = broker.queue(path.queue).options.policy
    counters = charge(_FRESH, outcome)
    verdict = decide(policy, counters, outcome)
    if isinstance(verdict, Final):
        return f"It would be final at once: {verdict.disposition.value}, {verdict.reason}."
    tries = policy.total_attempts
    if outcome is Outcome.LOST and policy.max_worker_deaths is not None:
        tries = min(tries, policy.max_worker_deaths)
    return f"It would be tried again, {tries} times in all, and then: {policy.on_poison.value}."
