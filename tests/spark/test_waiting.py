"""How the command waits for a pipeline's queries."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from lazaretto import ClaimFenced
from lazaretto.cli.spark_queries import wait_for

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
