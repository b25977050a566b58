"""`triage` on Spark: tasks count the dead letters where they are, the driver explains their causes."""

from __future__ import annotations

import contextlib
import importlib
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from lazaretto.broker.broker import store_of
from lazaretto.broker.explain import LETTERS, Asked, Decode, Kind, Letters, keep
from lazaretto.engine.entities.queues import require_queue
from lazaretto.engine.maintenance import look
from lazaretto.engine.outcome.causes import Cause, place_at
from lazaretto.engine.outcome.dead_letter_operations import DeadLetterFilter
from lazaretto.errors import InvalidOption
from lazaretto.model.checks import function, shown, text
from lazaretto.model.entities import EntityPath, dead_letter_path
from lazaretto.model.filters.view import MessageView
from lazaretto.model.installing import install
from lazaretto.model.keys import lower_bound, upper_bound
from lazaretto.model.messages import DeadLetter, Message, StoredMessage
from lazaretto.model.triage.answers import Explanation
from lazaretto.model.triage.parts import HOUR, Part, merge
from lazaretto.model.triage.verify import Tally
from lazaretto.spark.columns import LONG, TEXT, TIME
from lazaretto.spark.executors import cores_of
from lazaretto.spark.letters import (
    Causes,
    CheckLetters,
    CountLetters,
    counted_letters,
    counted_tallies,
    run_on,
)
from lazaretto.spark.pipeline import refuse_remote
from lazaretto.spark.snapshot import ends
from lazaretto.spark.source_options import SparkOptions, parse
from lazaretto.spark.store_access import broker_at
from lazaretto.store.addresses import absolute
from lazaretto.store.sql.store import Store

#: Tasks for each core, so that ranges with many letters even out.
_TASKS = 4
#: Bytes of the messages that a task has in memory at once, about, and their number at most.
_BYTES, _ROWS = 64 << 20, 10_000
_PAGE = 500


def triage(
    spark: SparkSession,
    store: str,
    queue: str,
    *,
    results: str | None = None,
    table_format: str = "parquet",
    good: Iterable[Message | StoredMessage] | None = None,
    decode: Callable[[bytes], Any] | None = None,
    leave_out: Collection[str] = (),
) -> list[Explanation]:
    """Explain a queue's dead letters as `Broker.explain` does, with the work divided among Spark's tasks.

    `store` is a URL; `env:NAME` reads it from an environment variable, which keeps it out of plans. The tasks
    open the store themselves. Only counts and samples of sequence numbers go through Spark. `results` is a
    folder or URI in which it replaces the tables `causes`, `cause_hours`, `differences` and `samples`;
    `table_format` is "parquet" or "delta", which needs `lazaretto[delta]`. `good`, `decode` and `leave_out`
    are those of `Broker.explain`. What was found is kept with the causes, so `Broker.triage` shows it too.
    """
    options = parse({"store": store if store.startswith("env:") else absolute(store), "queue": queue})
    if table_format not in ("parquet", "delta"):
        raise InvalidOption(f"expected table_format to be parquet or delta, got {shown(table_format)}")
    function("decode", decode)
    left_out = [text("leave_out", name, 1000) for name in leave_out]
    examples = None if good is None else list(good)
    refuse_remote(spark.conf.get("spark.master"), options.url())
    path = dead_letter_path(EntityPath.parse(options.queue))
    with broker_at(options.url()) as broker:
        causes = broker.triage(options.queue).causes
        asked = _OnSpark(spark, options, store_of(broker), path, decode, left_out, causes)
        answers = asked.answer(examples)
        keep(store_of(broker), path, answers, causes)
    if results is not None:
        write_tables(results, table_format, answers, asked.parts)
    return answers


class _OnSpark(Asked):
    """Goes through the letters in tasks of Spark."""

    def __init__(
        self,
        spark: SparkSession,
        options: SparkOptions,
        store: Store,
        path: EntityPath,
        decode: Decode | None,
        leave_out: Collection[str],
        causes: Sequence[Cause],
    ) -> None:
        super().__init__(store, path, DeadLetterFilter(), decode, leave_out, causes)
        self._spark = spark
        self._options = options
        self.parts: dict[int, Part] = {}
        self._kinds: dict[int, Kind] = {}
        self._longest = 1
        asked, known = (
            {cause.number for cause in causes},
            look(store, lambda tx: tx.causes.fingerprints(place_at(tx, path))),
        )
        self._numbers = Causes(
            {p.fingerprint: p.cause for p in known if p.cause is not None and p.cause in asked}
        )
        self._queue_id = look(store, lambda tx: require_queue(tx, EntityPath(path.queue)).queue_id)
        self._ranges = self._divided()

    def _divided(self) -> list[tuple[int, int]]:
        first, last = lower_bound(self._queue_id), upper_bound(self._queue_id)
        lowest, highest = ends(self._options.url(), "letters_ends", first, last)
        if lowest is None or highest is None:
            return []
        tasks = _TASKS * cores_of(self._spark)
        size = -(-(highest - lowest + 1) // tasks)
        return [(start, min(start + size, highest)) for start in range(lowest - 1, highest, size)]

    def count(self) -> dict[Kind, Letters]:
        if not self._ranges:
            return {}
        task = CountLetters(self._options, self._queue_id, self._path.subqueue, self._numbers)
        self.parts = merge(counted_letters(run_on(self._spark, task, self._ranges)), LETTERS)
        by_number = {cause.number: cause for cause in self._all}
        firsts = {part.first: part for part in self.parts.values()}
        letters_by_kind: dict[Kind, Letters] = {}
        numbers = sorted(firsts)
        for start in range(0, len(numbers), _PAGE):
            for letter in self._numbered(numbers[start : start + _PAGE]):
                part = firsts[letter.sequence_number]
                letters = Letters(letter, by_number.get(part.cause))
                letters.sample.merge(part.letters, part.sample)
                kind = part.cause or letters.kind
                self._kinds[part.cause] = kind
                letters_by_kind[kind] = letters
        return letters_by_kind

    def _numbered(self, numbers: Sequence[int]) -> list[DeadLetter]:
        which = DeadLetterFilter(sequence_numbers=tuple(numbers))
        letters, _ = self._some(which, _PAGE, messages=False)
        return letters

    def check(self, tallies: Mapping[Kind, Tally], kinds: Mapping[Kind, Letters]) -> None:
        distinct = {id(tally): tally for tally in tallies.values()}
        places = {key: place for place, key in enumerate(distinct)}
        if not distinct:
            return
        task = CheckLetters(
            self._options,
            self._queue_id,
            self._path.subqueue,
            self._numbers,
            [tally.filters for tally in distinct.values()],
            {c: places[id(tallies[kind])] for c, kind in self._kinds.items() if kind in tallies},
            self._decode,
            max(1, min(_ROWS, _BYTES // self._longest)),
        )
        for part in counted_tallies(run_on(self._spark, task, self._ranges)):
            for tally, counted in zip(distinct.values(), part, strict=True):
                tally.merge(counted)

    def seen(self, message: Message | StoredMessage, worker: str | None = None) -> MessageView:
        if isinstance(message, StoredMessage):
            self._longest = max(self._longest, len(message.body))
        return super().seen(message, worker)


_TABLES = {
    "causes": pa.schema([
        ("cause", LONG), ("reason", TEXT), ("error_type", TEXT), ("text", TEXT), ("letters", LONG),
        ("unexplained", LONG), ("numbers", pa.list_(LONG)), ("examples", pa.list_(LONG)), ("good", LONG),
        ("compared_with", TEXT), ("first", TIME), ("last", TIME),
    ]),
    "cause_hours": pa.schema([("cause", LONG), ("hour", TIME), ("letters", LONG)]),
    "differences": pa.schema([
        ("cause", LONG), ("part", LONG), ("filter", TEXT), ("letters", LONG), ("good", LONG),
        ("also", pa.list_(TEXT)),
    ]),
    "samples": pa.schema([("cause", LONG), ("sequence_number", LONG)]),
}  # fmt: skip
#: Sequence numbers of a cause in `samples`.
_SAMPLE = 500


def write_tables(
    where: str, table_format: str, answers: Sequence[Explanation], parts: Mapping[int, Part]
) -> None:
    """Replace the tables in a folder or at a URI. Raises InvalidOption if a library is missing."""
    write = _write_delta if table_format == "delta" else _write_parquet
    for name, rows in _rows(answers, parts).items():
        write(f"{where.rstrip('/')}/{name}", pa.Table.from_pylist(rows, schema=_TABLES[name]))


def _rows(answers: Sequence[Explanation], parts: Mapping[int, Part]) -> dict[str, list[dict[str, Any]]]:
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in _TABLES}
    for place, answer in enumerate(answers, 1):
        mine = [parts[number] for number in answer.causes or (0,) if number in parts]
        (whole,) = merge([_of(part) for part in mine], _SAMPLE).values()
        rows["causes"].append({
            "cause": place, "reason": _text(answer.reason), "error_type": _text(answer.error_type),
            "text": _text(answer.text), "letters": answer.letters, "unexplained": answer.unexplained,
            "numbers": answer.causes, "examples": answer.examples, "good": answer.good,
            "compared_with": answer.compared_with.value, "first": whole.began, "last": whole.latest,
        })  # fmt: skip
        rows["cause_hours"] += [
            {"cause": place, "hour": hour * HOUR, "letters": letters}
            for hour, letters in sorted(whole.hours.items())
        ]
        rows["differences"] += [
            {
                "cause": place, "part": number, "filter": _text(one.filter), "letters": one.letters,
                "good": one.good, "also": [_text(other) for other in one.also],
            }
            for number, one in enumerate(answer.differences, 1)
        ]  # fmt: skip
        rows["samples"] += [{"cause": place, "sequence_number": number} for number in sorted(whole.sample)]
    return rows


def _of(part: Part) -> Part:
    """Return a part as one of any cause, so that several can be merged."""
    return Part(0, part.letters, part.first, part.began, part.latest, part.hours, part.sample)


def _text(value: str | None) -> str | None:
    # What is no Unicode has no place in Arrow's texts.
    return None if value is None else value.encode(errors="backslashreplace").decode()


def _write_parquet(where: str, table: pa.Table) -> None:
    system, folder = pyarrow.fs.FileSystem.from_uri(where) if "://" in where else (None, where)
    system = system or pyarrow.fs.LocalFileSystem()
    system.create_dir(folder, recursive=True)
    # One file, which replaces the one before at once: a reader finds one or the other.
    # Another triage may be writing there, too.
    new, final = f"{folder}/.new-{uuid.uuid4().hex}.parquet", f"{folder}/part-0.parquet"
    try:
        pq.write_table(table, new, filesystem=system)
        system.move(new, final)
    except BaseException:
        with contextlib.suppress(OSError):
            system.delete_file(new)
        raise


def _write_delta(where: str, table: pa.Table) -> None:
    try:
        delta = importlib.import_module("deltalake")
    except ImportError:
        raise InvalidOption(f'table_format="delta" needs deltalake: {install("delta")}') from None
    delta.write_deltalake(where, table, mode="overwrite")
