"""Explains the dead letters of a queue: their causes, each with what its letters have that good ones lack."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from lazaretto.engine.maintenance import look
from lazaretto.engine.messages.prepare import prepare
from lazaretto.engine.outcome.causes import Cause as CauseOfLetters
from lazaretto.engine.outcome.causes import ExplainCauses
from lazaretto.engine.outcome.dead_letter_operations import DeadLetterFilter, holder
from lazaretto.engine.outcome.dead_letter_pages import Slice, some_letters
from lazaretto.engine.redaction import redaction_of
from lazaretto.errors import InvalidOption, StoreBusy, StoreFull, StoreReadOnly, TransactionError
from lazaretto.model.causes import CauseDifference
from lazaretto.model.checks import shown
from lazaretto.model.clock import to_micros
from lazaretto.model.entities import EntityPath
from lazaretto.model.filters.body import LazyBody
from lazaretto.model.filters.view import MessageView
from lazaretto.model.headers import Headers, decode_headers
from lazaretto.model.keys import lower_bound, upper_bound
from lazaretto.model.messages import DeadLetter, Message, StoredMessage
from lazaretto.model.reservoir import unfair
from lazaretto.model.triage.answers import ComparedWith, Difference, Explanation
from lazaretto.model.triage.differences import Cause, find_by_worker, find_difference, find_differences, unite
from lazaretto.model.triage.features import Features, Group, features_of
from lazaretto.model.triage.parts import Sample, hashed
from lazaretto.model.triage.verify import Tally
from lazaretto.store.records.messages import SampleRecord
from lazaretto.store.sql.store import Store
from lazaretto.store.sql.transaction import Transaction

#: Letters of one cause, and good messages, that a difference is looked for among.
LETTERS = 500
_GOOD = 2_000
#: Causes that are explained, the largest first. What further ones have is only counted.
_MOST_CAUSES = 50
#: Reasons and error types that are told apart; a further one counts as none.
_MOST_KINDS = 1_000
_EXAMPLES = 3
#: Letters that are read at once, and with their messages, whose bodies are in memory then.
_PAGE = 1_000
_MESSAGES = 200
#: Bytes of the bodies of good messages.
_GOOD_BYTES = 16 << 20
#: So many completed messages are preferred to more that wait, which may yet fail.
_ENOUGH = 200
#: A cause of more letters takes longer than people wait for a list.
_MOST_AT_ONCE = 20_000

#: The number of a cause, or reason and error type of letters that have none.
Kind = int | tuple[str | None, str | None]
Decode = Callable[[bytes], Any]


class Letters:
    """The letters of one cause: how many, a sample of them, and what they say."""

    def __init__(self, letter: DeadLetter, cause: CauseOfLetters | None) -> None:
        self.sample = Sample(LETTERS)
        self.first = letter.sequence_number
        self.kind = letter.reason, letter.error_type
        self.number = None if cause is None else cause.number
        template = None if cause is None else cause.template
        self.text = template or letter.error_message or letter.description or ""


def explain(
    store: Store,
    path: EntityPath,
    which: DeadLetterFilter,
    good: Sequence[Message | StoredMessage] | None,
    decode: Decode | None,
    leave_out: Collection[str],
    causes: Sequence[CauseOfLetters],
) -> list[Explanation]:
    """Return the causes of the dead letters of a subqueue that are meant, most letters first.

    What explains whole causes is kept with them.
    """
    answers = Asked(store, path, which, decode, leave_out, causes).answer(good)
    if which == DeadLetterFilter(cause=which.cause):
        keep(store, path, answers, causes)
    return answers


def explain_some(
    store: Store, path: EntityPath, causes: Sequence[CauseOfLetters], seconds: float
) -> list[int]:
    """Explain the causes that are to be explained, the largest first, for so long; return which are left.

    Each gets half of the time that is left, so that one that takes too long leaves time for the next.
    """
    numbers = [cause for cause in causes if cause.to_explain]
    rest = [cause.number for cause in numbers if cause.letters > _MOST_AT_ONCE]
    end = time.monotonic() + seconds
    asked = Asked(store, path, DeadLetterFilter(), None, (), causes)
    for cause in numbers:
        if cause.letters > _MOST_AT_ONCE:
            continue
        try:
            now = time.monotonic()
            answers = asked.answer_of(cause.number, (now + end) / 2)
        except _OutOfTime:
            rest.append(cause.number)
        else:
            keep(store, path, answers, causes)
    return rest


def keep(
    store: Store, path: EntityPath, answers: Iterable[Explanation], causes: Iterable[CauseOfLetters]
) -> None:
    """Keep with each cause what explains it."""
    letters = {cause.number: cause.letters for cause in causes}
    differences = {}
    for answer in answers:
        # Without anything to compare with, nothing was learnt.
        if answer.compared_with is ComparedWith.NOTHING:
            continue
        first = answer.differences[0] if answer.differences else None
        for number in answer.causes:
            differences[number] = CauseDifference(
                filter=first.filter if first else None,
                letters=first.letters if first else 0,
                counted=answer.letters,
                good=first.good if first else 0,
                compared=answer.good,
                compared_with=answer.compared_with.value,
                also=first.also if first else (),
                causes=answer.causes,
                waiting=letters[number],
            )
    # What cannot be kept now is found anew when somebody asks again.
    with suppress(StoreBusy, StoreFull, StoreReadOnly, TransactionError):
        if differences:
            store.run(ExplainCauses(path, differences))


class _OutOfTime(Exception):
    """The time that may be spent on a cause is over."""


class Asked:
    """One call of `explain`, or several for single causes.

    It goes through all letters twice: to `count` them, and to `check` what the differences hold for. Whoever
    can do that faster overrides both.
    """

    def __init__(
        self,
        store: Store,
        path: EntityPath,
        which: DeadLetterFilter,
        decode: Decode | None,
        leave_out: Collection[str],
        causes: Sequence[CauseOfLetters],
    ) -> None:
        self._all = causes
        self._until: float | None = None
        self._compared: tuple[list[MessageView], ComparedWith, Group] | None = None
        self._causes = {alike.fingerprint: cause for cause in causes for alike in cause.fingerprints}
        self._store = store
        self._path = path
        self._which = which
        self._decode = decode
        self._redaction = look(store, lambda tx: redaction_of(tx, str(path))).dropping()
        # What is left of a body that was kept is shorter than what was sent.
        self._leave_out = (*leave_out, "sys.Size") if self._redaction.changes_size else leave_out

    def answer_of(self, number: int, until: float) -> list[Explanation]:
        """Explain one cause. Raises _OutOfTime at a time of the monotonic clock."""
        self._which, self._until = DeadLetterFilter(cause=number), until
        return self.answer(None)

    def _check_time(self) -> None:
        if self._until is not None and time.monotonic() >= self._until:
            raise _OutOfTime

    def answer(self, messages: Sequence[Message | StoredMessage] | None) -> list[Explanation]:
        views, compared, good = self._compare_with(messages)
        kinds = self.count()
        largest = sorted(kinds, key=lambda kind: (-kinds[kind].sample.count, kinds[kind].first))[
            :_MOST_CAUSES
        ]
        samples = {kind: Group(self._sampled(kinds[kind].sample.numbers())) for kind in largest}
        elsewhere: Group | None = None
        if not good.count and len(samples) == 1 and self._which.cause is not None:
            elsewhere = self._of_other_causes(next(iter(samples)))
        if not good.count and (len(samples) > 1 or (elsewhere is not None and elsewhere.count)):
            compared = ComparedWith.OTHER_CAUSES

        def against(kind: Kind) -> Group:
            return good if good.count else elsewhere or _others(samples, kind)

        causes = []
        for kind, sample in samples.items():
            self._check_time()
            text = kinds[kind].text
            difference = find_difference(sample, against(kind), text)
            letters = kinds[kind].sample.count
            causes.append(Cause(kinds[kind].kind, text, letters, sample, (kind,), difference))
        if good.count:
            causes = unite(causes, good)
        explained = [_Explained(cause, against(cause.members[0]), self._leave_out) for cause in causes]
        self.check({kind: one.letters for one in explained for kind in one.cause.members}, kinds)
        for one in explained:
            if not one.among_same_time:
                for view in views:
                    one.good.add(view)
        answers = [one.answer(kinds, compared) for one in explained]
        return sorted(answers, key=lambda answer: (-answer.letters, answer.examples))

    # -- letters --------------------------------------------------------------------------------

    def _letters(self, *, messages: bool) -> Iterator[DeadLetter]:
        slice_: Slice | None = None
        while slice_ is None or slice_.position is not None:
            self._check_time()
            letters, slice_ = self._some(
                self._which, _MESSAGES if messages else _PAGE, after=slice_, messages=messages
            )
            yield from letters

    def _some(
        self, which: DeadLetterFilter, limit: int, *, after: Slice | None = None, messages: bool = True
    ) -> tuple[list[DeadLetter], Slice]:
        query = functools.partial(
            some_letters,
            path=self._path,
            which=which,
            limit=limit,
            after=after,
            messages=messages,
        )
        return look(self._store, query)

    def count(self) -> dict[Kind, Letters]:
        """Return the letters that are meant, by cause."""
        kinds: dict[Kind, Letters] = {}
        for letter in self._letters(messages=False):
            kind = self._kind_of(letter, kinds)
            letters = kinds.get(kind)
            if letters is None:
                letters = kinds[kind] = Letters(letter, self._causes.get(letter.fingerprint or ""))
            letters.sample.add(letter.sequence_number)
        return kinds

    def check(self, tallies: Mapping[Kind, Tally], kinds: Mapping[Kind, Letters]) -> None:
        """Add each letter to the tally of its cause, if there is one."""
        asks = any(tally.asks_workers for tally in tallies.values())
        letters = self._letters(messages=True)
        while some := list(itertools.islice(letters, _MESSAGES)):
            workers = self._workers(some) if asks else {}
            for letter in some:
                tally = tallies.get(self._kind_of(letter, kinds))
                if tally is not None and letter.message is not None:
                    tally.add(self.seen(letter.message, workers.get(letter.sequence_number)))

    def _kind_of(self, letter: DeadLetter, causes: Collection[Kind]) -> Kind:
        cause = self._causes.get(letter.fingerprint or "")
        kind = (letter.reason, letter.error_type) if cause is None else cause.number
        return kind if len(causes) < _MOST_KINDS or kind in causes else (None, None)

    def _sampled(self, numbers: Sequence[int]) -> list[Features]:
        features: list[Features] = []
        for start in range(0, len(numbers), _MESSAGES):
            which = DeadLetterFilter(sequence_numbers=tuple(numbers[start : start + _MESSAGES]))
            self._check_time()
            letters, _ = self._some(which, _MESSAGES)
            features += self._features_of(letters)
        return features

    def _features_of(self, letters: Sequence[DeadLetter]) -> list[Features]:
        workers = self._workers(letters)
        return [
            features_of(
                self.seen(letter.message, workers.get(letter.sequence_number)), self._leave_out,
                when=to_micros(letter.dead_lettered),
            )
            for letter in letters
            if letter.message
        ]  # fmt: skip

    def _workers(self, letters: Sequence[DeadLetter]) -> dict[int, str]:
        """Return who made the latest attempt at letters, by sequence number."""

        def read(tx: Transaction) -> dict[int, str]:
            first = lower_bound(holder(tx, self._path).queue_id)
            workers = tx.history.workers([first + letter.sequence_number for letter in letters])
            return {key - first: worker for key, worker in workers.items()}

        return look(self._store, read) if letters else {}

    def _of_other_causes(self, kind: Kind) -> Group:
        """Return letters of all causes but one, as many of each as of the others."""
        others = [cause for cause in self._all if cause.number != kind and cause.letters][:_MOST_CAUSES]
        features: list[Features] = []
        for cause in others:
            self._check_time()
            letters, _ = self._some(
                DeadLetterFilter(cause=cause.number), max(1, min(LETTERS, _GOOD // len(others)))
            )
            features += self._features_of(letters)
        return Group(features)

    # -- good messages --------------------------------------------------------------------------

    def _compare_with(
        self, examples: Sequence[Message | StoredMessage] | None
    ) -> tuple[list[MessageView], ComparedWith, Group]:
        if self._compared is None:
            good, compared = self._good(examples)
            rows = [features_of(view, self._leave_out, when=when) for view, when in good]
            self._compared = [view for view, _ in good], compared, Group(rows)
        return self._compared

    def _good(
        self, examples: Sequence[Message | StoredMessage] | None
    ) -> tuple[list[tuple[MessageView, int | None]], ComparedWith]:
        """Return good messages, with the time when they were completed, and what they are."""
        if examples is not None:
            return [(self.seen(message), None) for message in examples], ComparedWith.GIVEN
        kept = self._kept()
        if len(kept) >= _ENOUGH:
            return kept, ComparedWith.COMPLETED
        waiting: list[tuple[MessageView, int | None]] = [
            (self.seen(message), None) for message in self._waiting()
        ]
        if max(len(kept), len(waiting)) == 0:
            return [], ComparedWith.NOTHING
        more = len(waiting) > len(kept)
        return (waiting, ComparedWith.WAITING) if more else (kept, ComparedWith.COMPLETED)

    def _kept(self) -> list[tuple[MessageView, int | None]]:
        def read(tx: Transaction) -> list[SampleRecord]:
            queue = holder(tx, self._path)
            most = queue.options.kept_samples
            if not most:
                return []
            gone = set(unfair(tx.samples.standing(queue.queue_id), most, tx.now))
            return [one for one in tx.samples.of_queue(queue.queue_id) if one.key not in gone]

        # They are as evenly spread by hash as by number.
        samples = sorted(look(self._store, read), key=lambda sample: hashed(sample.key))[:_GOOD]
        return [
            (self._seen(decode_headers(one.headers), one.message_id, one.body, one.worker), one.kept)
            for one in samples
        ]

    def _waiting(self) -> Iterator[StoredMessage]:
        queue = look(self._store, lambda tx: holder(tx, self._path))
        after, last, count, size = lower_bound(queue.queue_id), upper_bound(queue.queue_id), 0, 0
        while count < _GOOD and size < _GOOD_BYTES:
            self._check_time()
            page = look(self._store, functools.partial(_peek, first=after, last=last))
            for message in page:
                # One that was tried before did not go well.
                if not message.delivery_count:
                    count, size = count + 1, size + len(message.body)
                    yield message
            if len(page) < _MESSAGES:
                return
            after = page[-1].key

    # -- messages -------------------------------------------------------------------------------

    def seen(self, message: Message | StoredMessage, worker: str | None = None) -> MessageView:
        """Return a message as conditions see it. `worker`: who tried it last."""
        if isinstance(message, StoredMessage):
            headers, message_id, body = message.headers, message.message_id, message.body
        elif isinstance(message, Message):
            made = prepare(message)
            headers, message_id, body = decode_headers(made.headers), made.message_id or "", made.body
        else:
            raise InvalidOption(f"expected good to be messages, got {shown(message)}")
        return self._seen(headers, message_id, body, worker)

    def _seen(self, headers: Headers, message_id: str, body: bytes, worker: str | None) -> MessageView:
        if self._redaction:
            headers, body = self._redaction.headers(headers), self._redaction.body(body)
        return view_of(headers, message_id, body, self._decode, worker)


def view_of(
    headers: Headers, message_id: str, body: bytes, decode: Decode | None, worker: str | None = None
) -> MessageView:
    """Return a message as conditions see it. `worker`: who tried it last."""
    size = len(body)
    return MessageView(headers, message_id, size=size, body=LazyBody(lambda: body, decode), worker=worker)


def _peek(tx: Transaction, first: int, last: int) -> Sequence[StoredMessage]:
    return tx.peek(first, last, _MESSAGES, delayed=False)


def _others(samples: Mapping[Kind, Group], kind: Kind) -> Group:
    """Return letters of the other causes, where there is nothing better to compare with."""
    return Group([row for other, group in samples.items() if other != kind for row in group.rows][:_GOOD])


class _Explained:
    """A cause with its differences, and for how many of all letters and good messages they hold."""

    def __init__(self, cause: Cause, good: Group, leave_out: Collection[str]) -> None:
        self.cause = cause
        by_worker = find_by_worker(cause.sample, good, cause.text, leave_out)
        #: Whether good messages were completed when the letters failed, and were counted as they were found.
        self.among_same_time = by_worker is not None
        self._good = by_worker.good if by_worker else good
        difference = cause.difference
        if by_worker:
            self._found = [by_worker.found]
        else:
            self._found = (
                find_differences(cause.sample, good, cause.text, difference)[0] if difference else []
            )
        self.letters, self.good = (Tally([difference.filter for difference in self._found]) for _ in range(2))

    def answer(self, kinds: Mapping[Kind, Letters], compared: ComparedWith) -> Explanation:
        parts = [kinds[kind] for kind in self.cause.members]
        reason, error_type = max(parts, key=lambda part: part.sample.count).kind
        # Letters of other causes were samples: what holds for these is what is known.
        counts = self.good.held if self.good.messages else [d.good.bit_count() for d in self._found]
        return Explanation(
            reason=reason,
            error_type=error_type,
            text=self.cause.text,
            letters=self.letters.messages,
            causes=tuple(sorted(part.number for part in parts if part.number is not None)),
            examples=tuple(sorted(part.first for part in parts)[:_EXAMPLES]),
            differences=tuple(
                Difference(difference.filter, letters, good, difference.also)
                for difference, letters, good in zip(self._found, self.letters.held, counts, strict=True)
            ),
            unexplained=self.letters.left,
            good=self._good.count,
            compared_with=compared,
        )
