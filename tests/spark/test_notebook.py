"""The notebook of the examples runs, and its cells show what they are there to show."""

from __future__ import annotations

import ast
import json
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lazaretto import Broker, BrokerClosed, InvalidOption, Message
from lazaretto.spark import lineage

pytestmark = pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::ResourceWarning"
)
NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook" / "orders.ipynb"


def shown(source: str, names: dict[str, Any]) -> str | None:
    """Run a cell as a notebook does; return what its last line shows."""
    tree = ast.parse(source)
    end = tree.body[-1]
    last = end if isinstance(end, ast.Expr) else None
    if last is not None:
        tree.body.pop()
    exec(compile(tree, "cell", "exec"), names)
    if last is None:
        return None
    value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    return value._repr_html_() if hasattr(value, "_repr_html_") else None


def test_the_notebook_runs(
    spark: Any, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] for cell in cells)
    names: dict[str, Any] = {"__name__": "__main__"}
    *sources, clean_up = ["".join(cell["source"]) for cell in cells]
    first, _, booked, _, causes, mended, last = [shown(source, names) for source in sources]
    printed = capfd.readouterr().out
    assert "Expected `int`, got `str` - at `$.price`" in printed
    assert "the body is not JSON" in printed
    right = '<td style="text-align: right">%d</td>'
    assert first is not None and "orders, active" in first and right % 40 in first
    assert booked is not None and right % 7 in booked
    assert "|dead_lettered|InvalidMessage " in printed and "|completed " in printed
    assert causes is not None and "no tax rate for lamp ✱" in causes and "InvalidMessage" in causes
    assert mended is not None and ": done, 5 letters" in mended and right % 5 in mended
    assert last is not None and right % 2 in last
    # The session is that of all tests.
    stopped: list[str] = []
    names["spark"] = SimpleNamespace(stop=lambda: stopped.append("spark"))
    shown(clean_up, names)
    assert stopped == ["spark"]
    with pytest.raises(BrokerClosed):
        names["broker"].queue("orders")
    assert list(tmp_path.iterdir()) == []


def test_results_and_dead_letters_join(spark: Any, broker: Broker, url: str) -> None:
    broker.sender("work").send([Message(b"%d" % n) for n in range(3)])
    with broker.receiver("work") as receiver:
        one, two, three = receiver.receive(3)
        receiver.dead_letter(one, reason="Because")
        receiver.complete(two)
        receiver.complete(three)
    done = spark.createDataFrame([(2, 1, 7), (3, 1, 8)], "sequence_number bigint, claim int, n bigint")
    rows = lineage(spark, store=url, queue="work", results=done).orderBy("sequence_number")
    found = rows.select("sequence_number", "outcome", "claim", "result.n", "reason").collect()
    assert [tuple(row) for row in found] == [
        (1, "dead_lettered", None, None, "Because"), (2, "completed", 1, 7, None),
        (3, "completed", 1, 8, None),
    ]  # fmt: skip
    with pytest.raises(InvalidOption, match="no column 'claim'"):
        lineage(spark, store=url, queue="work", results=done.drop("claim"))


def written(folder: Path, **columns: list[int]) -> None:
    """Write results where a pipeline does."""
    folder.mkdir(parents=True)
    pq.write_table(pa.table(columns), folder / "part-0.parquet")


def test_results_of_several_queues_join_with_the_dead_letters_of_one(
    spark: Any, broker: Broker, url: str, tmp_path: Path
) -> None:
    broker.create_queue("007")
    broker.sender("007").send(Message(b""))
    with broker.receiver("007") as receiver:
        (one,) = receiver.receive()
        receiver.dead_letter(one, reason="Because")
    alike = [("08", 1, 8), ("007", 2, 7)]
    for folder, names in (("numbers", alike), ("texts", [*alike, ("Work", 1, 5), ("out", 1, 6)])):
        for queue, number, n in names:
            written(
                tmp_path / folder / f"queue={queue}" / "claim=0000000001", sequence_number=[number], n=[n]
            )

    def found(queue: str, results: Any) -> list[tuple[Any, ...]]:
        rows = lineage(spark, store=url, queue=queue, results=results).orderBy("sequence_number")
        return [tuple(row) for row in rows.select("sequence_number", "result.n", "reason").collect()]

    # The first names are all numbers to Spark.
    assert found("007", str(tmp_path / "numbers")) == [(1, None, "Because"), (2, 7, None)]
    assert found("work", spark.read.parquet(str(tmp_path / "texts"))) == [(1, 5, None)]


def test_a_column_queue_of_the_users_own_is_a_result(
    spark: Any, url: str, broker: Broker, tmp_path: Path
) -> None:
    written(tmp_path / "own" / "claim=0000000001", sequence_number=[1], queue=[3])
    rows = lineage(spark, store=url, queue="work", results=str(tmp_path / "own"))
    assert [row.result.queue for row in rows.collect()] == [3]
