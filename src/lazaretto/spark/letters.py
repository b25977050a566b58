"""Tasks of triage: each goes through the dead letters between two keys, and returns only what it counted."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np
import pyarrow as pa

from lazaretto.broker.explain import LETTERS, Decode, view_of
from lazaretto.model.entities import Subqueue
from lazaretto.model.headers import decode_headers
from lazaretto.model.keys import lower_bound, place_of, sequence_of
from lazaretto.model.triage.parts import HOUR, Part
from lazaretto.model.triage.verify import Counted, Tally
from lazaretto.spark.columns import BYTES, LONG, MESSAGE, NUMBER, Column, schema_of, selected
from lazaretto.spark.reading import SQL, select
from lazaretto.spark.source_options import SparkOptions
from lazaretto.spark.task_settings import Carried

#: Letters that are counted at once.
_ROWS = 65_536
_COUNTED = {
    "sequence_number": Column(LONG, NUMBER),
    "fingerprint": Column(LONG, "m.fingerprint"),
    "dead_lettered": Column(LONG, "m.dead_lettered"),
}
_CHECKED = {
    "fingerprint": Column(LONG, "d.fingerprint"),
    "message_id": Column(BYTES, "CAST(m.message_id AS BLOB)", "convert_to(m.message_id, 'UTF8')"),
    "headers": MESSAGE["headers"],
    "body": MESSAGE["body"],
}
_BODIES = {name: _CHECKED[name] for name in ("fingerprint", "body")}
_WORKER = (
    "(SELECT a.worker FROM lazaretto_attempts a WHERE a.key = d.key AND a.worker IS NOT NULL "
    "ORDER BY a.number DESC, a.{} DESC LIMIT 1)"
)
#: Who made the latest attempt: looked up only where a difference names workers.
_TRIED = {
    **_CHECKED,
    "worker": Column(
        BYTES, f"CAST({_WORKER.format('rowid')} AS BLOB)", f"convert_to({_WORKER.format('id')}, 'UTF8')"
    ),
}


class Causes:
    """The cause of each fingerprint; 0 stands for none."""

    def __init__(self, causes: Mapping[int, int]) -> None:
        pairs = sorted(causes.items()) or [(0, 0)]
        self._fingerprints = np.array([fingerprint for fingerprint, _ in pairs], np.int64)
        self._causes = np.array([cause for _, cause in pairs], np.int64)

    def of(self, fingerprints: pa.Array) -> Any:
        """Return the cause of each fingerprint of a column, as an array of numbers."""
        values = fingerprints.fill_null(0).to_numpy(zero_copy_only=False)
        places = np.minimum(np.searchsorted(self._fingerprints, values), len(self._fingerprints) - 1)
        is_known = self._fingerprints[places] == values
        if fingerprints.null_count:
            is_known &= ~fingerprints.is_null().to_numpy(zero_copy_only=False)
        return np.where(is_known, self._causes[places], 0)


@dataclasses.dataclass(frozen=True, slots=True)
class CountLetters:
    """Counts letters by cause."""

    options: SparkOptions
    queue_id: int
    subqueue: Subqueue
    causes: Causes

    def run(self, first: int, last: int) -> bytes:
        """Return what the letters between two keys are, encoded."""
        url = self.options.url()
        sql = SQL["letters_view"].replace("[columns]", selected(url, _COUNTED, _COUNTED))
        schema = schema_of(_COUNTED, _COUNTED)
        parts: dict[int, Part] = {}
        parameters = first, last, place_of(self.subqueue)
        for batch in select(url, sql, parameters, schema, _ROWS):
            _count(batch, self.causes, parts)
        return msgspec.msgpack.encode(list(parts.values()))


def _count(batch: pa.RecordBatch, causes: Causes, parts: dict[int, Part]) -> None:
    numbers, when = batch.column(0).to_numpy(), batch.column(2).to_numpy()
    cause = causes.of(batch.column(1))
    order = np.argsort(cause, kind="stable")
    kinds, starts = np.unique(cause[order], return_index=True)
    hashes, hours = _hashed(numbers), when // HOUR
    for kind, rows in zip(kinds.tolist(), np.split(order, starts[1:]), strict=True):
        of_hour, letters = np.unique(hours[rows], return_counts=True)
        lowest = rows
        if len(rows) > LETTERS:
            lowest = rows[np.argpartition(hashes[rows], LETTERS)[:LETTERS]]
        part = Part(
            cause=kind,
            letters=len(rows),
            first=int(numbers[rows].min()),
            began=int(when[rows].min()),
            latest=int(when[rows].max()),
            hours=dict(zip(of_hour.tolist(), letters.tolist(), strict=True)),
            sample=numbers[lowest].tolist(),
        )
        before = parts.get(kind)
        parts[kind] = part if before is None else before.merged(part, LETTERS)


def _hashed(numbers: Any) -> Any:
    """Return what `triage.samples.hashed` returns, for many numbers at once."""
    x = numbers.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@dataclasses.dataclass(frozen=True, slots=True)
class CheckLetters:
    """Counts for how many letters the differences of their cause hold.

    `filters`: the differences of each explanation; `explanations`: which one a cause belongs to. `rows`: how
    many letters are read at once.
    """

    options: SparkOptions
    queue_id: int
    subqueue: Subqueue
    causes: Causes
    filters: Sequence[tuple[str, ...]]
    explanations: Mapping[int, int]
    decode: Decode | None
    rows: int

    def run(self, first: int, last: int) -> bytes:
        """Return what the tallies of the letters between two keys counted, encoded."""
        url = self.options.url()
        tallies = [Tally(filters) for filters in self.filters]
        if all(tally.reads_bodies_alone for tally in tallies):
            columns = _BODIES
        else:
            columns = _TRIED if any(tally.asks_workers for tally in tallies) else _CHECKED
        sql = SQL["dead_letters_view"].replace("[columns]", selected(url, columns, columns))
        sql = sql.replace("[conditions]", "")
        # A letter's message is in the subqueue, while its own key is the one of the queue itself.
        start = lower_bound(self.queue_id, self.subqueue)
        parameters = start + sequence_of(first), start + sequence_of(last)
        for batch in select(url, sql, parameters, schema_of(columns, columns), self.rows):
            self._check(batch, tallies)
        return msgspec.msgpack.encode([tally.counted() for tally in tallies])

    def _check(self, batch: pa.RecordBatch, tallies: Sequence[Tally]) -> None:
        causes = self.causes.of(batch.column(0))
        for kind in np.unique(causes).tolist():
            place = self.explanations.get(kind)
            if place is None:
                continue
            tally = tallies[place]
            rows = np.flatnonzero(causes == kind)
            if not tally.filters:
                tally.messages += len(rows)
                tally.left += len(rows)
                continue
            chosen = batch.take(pa.array(rows))
            if tally.reads_bodies_alone:
                tally.add_bodies(chosen.column("body").to_pylist(), self.decode)
                continue
            names = "headers", "message_id", "body"
            columns = [chosen.column(name).to_pylist() for name in names]
            tried = chosen.column("worker").to_pylist() if tally.asks_workers else [None] * len(rows)
            for headers, message_id, body, worker in zip(*columns, tried, strict=True):
                named = message_id.decode(errors="surrogateescape")
                by = None if worker is None else worker.decode(errors="surrogateescape")
                tally.add(view_of(decode_headers(headers), named, body or b"", self.decode, by))


class Task(Protocol):
    """A task on a part of the letters: those between two keys, or at some places."""

    def run(self, first: int, last: int) -> bytes:
        """Return what was found, encoded."""
        ...


def run_on(spark: Any, task: Task, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    """Run a task on each range; return what each returned."""
    carried = Carried((task, list(ranges)), "the function that decodes bodies")

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        work, keys = carried.open()
        for batch in batches:
            answers = [work.run(*keys[place]) for place in batch.column(0).to_pylist()]
            yield pa.RecordBatch.from_pydict({"found": pa.array(answers, BYTES)})

    frame = spark.range(0, len(ranges), 1, len(ranges)).mapInArrow(run, "found binary")
    return [bytes(row.found) for row in frame.collect()]


def counted_letters(answers: Iterable[bytes]) -> list[Part]:
    """Return what tasks that count letters returned."""
    return [part for one in answers for part in msgspec.msgpack.decode(one, type=list[Part])]


def counted_tallies(answers: Iterable[bytes]) -> list[list[Counted]]:
    """Return what tasks that check letters returned."""
    return [msgspec.msgpack.decode(one, type=list[Counted]) for one in answers]
