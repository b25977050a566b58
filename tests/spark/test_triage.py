"""Triage on Spark: the same answers as the broker's, on both stores, and its tables."""

from __future__ import annotations

import json
import random
import socket
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import lazaretto
from lazaretto import Broker, InvalidOption, Message
from lazaretto.spark import triage
from lazaretto.spark.causes import write_tables

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning"),
    pytest.mark.stores("sqlite", "postgres"),
]


def order(r: random.Random, **fields: Any) -> dict[str, Any]:
    made = {"id": r.randrange(10**9), "amount": r.randrange(1_000), "to": r.choice("ABCDEFGHIJ")}
    return {**made, **fields}


def send(broker: Broker, bodies: list[dict[str, Any]]) -> None:
    broker.sender("work").send([Message(json.dumps(body).encode()) for body in bodies])


def kill(broker: Broker, bodies: list[dict[str, Any]], error: Exception) -> None:
    send(broker, bodies)
    with broker.receiver("work") as receiver:
        while messages := receiver.receive(500):
            for message in messages:
                receiver.abandon(message, error=error)


@pytest.fixture
def causes(broker: Broker) -> Broker:
    """Have 700 letters of four causes, one of which differs in nothing, and 400 good messages."""
    r = random.Random(1)
    broker.update_queue("work", breaker=None)
    kill(broker, [order(r, to=r.choice("XY")) for _ in range(550)], KeyError("unknown"))
    kill(broker, [order(r, amount=None) for _ in range(60)], TypeError("amount \udcff \u202e <b>"))
    kill(broker, [order(r) for _ in range(89)], TimeoutError("slow"))
    kill(broker, [order(r, to="Z")], OSError())
    send(broker, [order(r) for _ in range(400)])
    return broker


def test_it_answers_what_the_broker_answers(spark: Any, url: str, causes: Broker, tmp_path: Path) -> None:
    found = triage(spark, url, "work", results=str(tmp_path / "tables"))
    assert [(one.letters, one.filter) for one in found] == [
        (550, "body.to IN ('X', 'Y')"), (89, None), (60, "body.amount IS NULL"), (1, found[3].filter),
    ]  # fmt: skip
    kept = {cause.number: cause.difference for cause in causes.triage("work").causes}
    assert found == causes.explain("work")
    assert {kept[one.causes[0]].filter for one in found if kept[one.causes[0]]} >= {  # type: ignore[union-attr]
        "body.to IN ('X', 'Y')", "body.amount IS NULL",
    }  # fmt: skip
    tables = {
        name: pq.read_table(tmp_path / "tables" / name).to_pylist()
        for name in ("causes", "cause_hours", "differences", "samples")
    }
    assert [row["letters"] for row in tables["causes"]] == [one.letters for one in found]
    for row in tables["causes"]:
        hours = [hour["letters"] for hour in tables["cause_hours"] if hour["cause"] == row["cause"]]
        assert sum(hours) == row["letters"]
    assert [row["filter"] for row in tables["differences"]][:1] == ["body.to IN ('X', 'Y')"]
    samples = [row["sequence_number"] for row in tables["samples"] if row["cause"] == 1]
    assert len(samples) == len(set(samples)) == 500
    assert spark.read.parquet(str(tmp_path / "tables" / "causes")).count() == 4


def test_options_are_the_brokers_and_nothing_tells_the_stores_url(
    spark: Any, url: str, causes: Broker
) -> None:
    plain = [Message(json.dumps(order(random.Random(n))).encode()) for n in range(300)]
    left = ("body.amount",)
    assert triage(spark, url, "work", good=plain, leave_out=left) == causes.explain(
        "work", good=plain, leave_out=left
    )
    found = triage(spark, url, "work", decode=lambda body: {"n": len(body)})
    assert [one.letters for one in found] == [550, 89, 60, 1]
    plans = spark._jsparkSession.sharedState().statusStore().executionsList()
    described = [plans.apply(n).physicalPlanDescription() for n in range(plans.size())]
    assert any("MapInArrow" in one for one in described)
    assert not any(url in one for one in described)


def test_a_host_is_found_as_the_broker_finds_it(
    spark: Any, url: str, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    r = random.Random(5)
    broker.update_queue("work", breaker=None)
    for host in ("ant", "bee", "cat") * 8:
        with monkeypatch.context() as patched:
            patched.setattr(socket, "gethostname", lambda host=host: host)
            other = lazaretto.connect(url)
        send(broker, [order(r) for _ in range(700)])
        with other, other.receiver("work") as receiver:
            messages = receiver.receive(700)
            failing = 70 if host == "bee" else 0
            for message in messages[:failing]:
                receiver.abandon(message, error=OSError("no disk"))
            receiver.complete(messages[failing:])
    (found,) = triage(spark, url, "work")
    assert found.filter == "sys.Host = 'bee'"
    assert (found.letters, found.differences[0].letters, found.unexplained) == (560, 560, 0)
    assert [found] == broker.explain("work")


@pytest.mark.stores("sqlite")
def test_a_queue_without_letters_has_no_causes_and_wrong_options_are_refused(
    spark: Any, url: str, broker: Broker, tmp_path: Path
) -> None:
    assert triage(spark, url, "work", results=str(tmp_path / "tables")) == []
    assert pq.read_table(tmp_path / "tables" / "causes").num_rows == 0
    with pytest.raises(InvalidOption, match="parquet or delta"):
        triage(spark, url, "work", table_format="csv")


@pytest.mark.stores("sqlite")
def test_triages_that_write_into_one_folder_at_once_each_replace_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_table = pq.write_table

    def write(*args: Any, **options: Any) -> None:
        write_table(*args, **options)
        monkeypatch.setattr(pq, "write_table", write_table)
        write_tables(str(tmp_path), "parquet", [], {})

    monkeypatch.setattr(pq, "write_table", write)
    write_tables(str(tmp_path), "parquet", [], {})
    assert {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*.*")} == {
        f"{name}/part-0.parquet" for name in ("causes", "cause_hours", "differences", "samples")
    }


@pytest.mark.stores("sqlite")
def test_a_table_that_cannot_be_replaced_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "causes" / "part-0.parquet").mkdir(parents=True)
    with pytest.raises(OSError, match="part-0"):
        write_tables(str(tmp_path), "parquet", [], {})
    assert [file.name for file in (tmp_path / "causes").iterdir()] == ["part-0.parquet"]
