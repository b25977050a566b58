"""A zoo of bad messages among good ones: no task of Spark's fails, and each has its own reason."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import zoo
from zoo import BAD_ZOO

from lazaretto import Broker, Message
from lazaretto.spark import process

from .acts import act_zoo

pytestmark = pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::ResourceWarning"
)

TOTAL, EVERY = (200_000, 1_000) if "LAZARETTO_SOAK" in os.environ else (5_000, 180)


def failed_tasks(spark: Any) -> int:
    """Return how many attempts of tasks have failed in this session."""
    executors = spark.sparkContext._jsc.sc().statusStore().executorList(False)
    return sum(executors.apply(n).failedTasks() for n in range(executors.size()))


def test_a_zoo_among_good_messages_fails_no_task(broker: Broker, spark: Any, store: Path) -> None:
    bad = {n: BAD_ZOO[n // EVERY % len(BAD_ZOO)] for n in range(EVERY // 2, TOTAL, EVERY)}
    bodies = [bad[n].encode() if n in bad else b"good" for n in range(TOTAL)]
    numbers = [
        number
        for start in range(0, TOTAL, 5_000)
        for number in broker.sender("work").send([Message(body) for body in bodies[start : start + 5_000]])
    ]
    failed = failed_tasks(spark)
    query = process(
        spark,
        act_zoo,
        store=str(store),
        queue="work",
        checkpoint=str(store.with_name("checkpoint")),
        results=str(store.with_name("results")),
        schema="n bigint",
        deadline=3.0,
        memory=200_000_000,
    )
    query.awaitTermination()
    assert failed_tasks(spark) == failed
    done = sorted(row.n for row in spark.read.parquet(str(store.with_name("results"))).collect())
    assert done == [number for n, number in enumerate(numbers) if n not in bad]
    dead = {letter.sequence_number: letter for letter in broker.dead_letters("work")}
    assert set(dead) == {numbers[n] for n in bad}
    for n, kind in bad.items():
        _, status, error, _stack = zoo.ZOO[kind]
        letter = dead[numbers[n]]
        assert letter.reason == zoo.REASONS[status], kind
        assert (letter.error_type or "").endswith(error or "?"), kind
    counts = broker.queue("work").counts
    assert counts.total == counts.dead_letter == len(bad)
