"""How the command waits for a pipeline's queries."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from lazaretto import ClaimFenced
from lazaretto.cli.spark_queries import queries_of, wait_for

pytestmark = pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::ResourceWarning"
)


def stream(spark: Any) -> Any:
    return spark.readStream.format("rate").load().writeStream.trigger(processingTime="1 second")


def fenced(batch: Any, number: int) -> None:
    raise ClaimFenced("another driver has come")


def test_a_query_that_fails_ends_the_others_too(spark: Any) -> None:
    endless = stream(spark).format("noop").start()
    # So that a wait for the first one alone comes to an end.
    late = threading.Timer(60, endless.stop)
    late.start()
    with pytest.raises(ClaimFenced, match="another driver has come"):
        wait_for(spark, [endless, stream(spark).foreachBatch(fenced).start()])
    assert late.is_alive()
    assert not endless.isActive
    late.cancel()


def test_queries_that_a_function_forgets_to_return_are_waited_for(spark: Any) -> None:
    query = stream(spark).format("noop").start()
    assert query.id in [one.id for one in queries_of(spark, None, "shop:start")]
    assert queries_of(spark, (query,), "shop:start") == [query]
    query.stop()
    assert query.id not in [one.id for one in queries_of(spark, None, "shop:start")]
