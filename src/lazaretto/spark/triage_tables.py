"""The tables that a triage on Spark leaves behind: causes, their letters by hour, differences, samples."""

from __future__ import annotations

import contextlib
import importlib
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from lazaretto.errors import InvalidOption
from lazaretto.model.installing import install
from lazaretto.model.triage.answers import Explanation
from lazaretto.model.triage.parts import HOUR, Part, merge
from lazaretto.spark.columns import LONG, TEXT, TIME

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
