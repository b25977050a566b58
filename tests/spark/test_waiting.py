"""How the command waits for a pipeline's queries."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from patience import wait_until

from lazaretto import ClaimFenced
from lazaretto.cli.spark_commands import MessageCount, in_a_sentence, queries_of, sentence_of, wait_for

from .cluster import ended, submitting

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
    late = threading.Timer(600, endless.stop)
    late.start()
    with pytest.raises(ClaimFenced, match="another driver has come"), in_a_sentence():
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


class Progress:
    """What a query tells: of each micro-batch, and for how long, as Spark does it."""

    def __init__(self) -> None:
        self.kept: deque[dict[str, Any]] = deque(maxlen=100)

    def add(self, number: int, rows: int | None) -> None:
        told = {} if rows is None else {"lazaretto": {"rows": rows}}
        self.kept.append({"batchId": number, "numInputRows": 2, "observedMetrics": told})

    @property
    def lastProgress(self) -> Any:  # noqa: N802 - Spark's name
        return self.kept[-1] if self.kept else None

    @property
    def recentProgress(self) -> list[Any]:  # noqa: N802 - Spark's name
        return list(self.kept)


def test_messages_are_counted_though_spark_forgets_micro_batches() -> None:
    query: Any = Progress()
    count = MessageCount(query)
    assert count.look() == 0
    # A query that goes on where it was begins with a higher number.
    for number in range(700, 950):
        query.add(number, 50)
        if number < 705 or number % 40 == 0:
            assert count.look() == 50 * (number - 699)
    assert count.look() == count.look() == 12_500
    # Of a query that is no pipeline, Spark's own number; of one without messages, none.
    query.add(950, None)
    query.add(951, 0)
    assert count.look() == 12_502


@pytest.fixture
def unheard() -> Iterator[Callable[[int, FrameType | None], None]]:
    """Have a SIGTERM that nobody handles fail the test, and not end it."""

    def fail(number: int, frame: FrameType | None) -> None:
        raise AssertionError("SIGTERM was not heard")

    before = signal.signal(signal.SIGTERM, fail)
    yield fail
    signal.signal(signal.SIGTERM, before)


def test_sigterm_stops_queries(spark: Any, unheard: Callable[[int, FrameType | None], None]) -> None:
    query = stream(spark).format("noop").start()

    def end() -> None:
        wait_until(lambda: signal.getsignal(signal.SIGTERM) is not unheard)
        os.kill(os.getpid(), signal.SIGTERM)

    ended = threading.Thread(target=end)
    ended.start()
    with pytest.raises(KeyboardInterrupt):
        wait_for(spark, [query])
    ended.join()
    assert not query.isActive


def test_sigterm_while_spark_starts_leaves_no_folder(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "spark-submit"
    # It ends when nobody holds its input any more.
    script.write_text("#!/bin/sh\necho begun >&2\nexec cat\n")
    script.chmod(0o755)
    (tmp_path / "shop.py").write_text("def start(spark):\n    pass\n")
    (tmp_path / "temporary").mkdir()
    extra = {"SPARK_HOME": str(tmp_path), "TMPDIR": str(tmp_path / "temporary")}
    program = subprocess.Popen(
        [sys.executable, "-m", "lazaretto", "spark", "run", "shop:start", "--master", "spark://nowhere:1"],
        cwd=tmp_path, env=submitting(extra), text=True, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    with ended(program):
        late = threading.Timer(600, program.kill)
        late.start()
        assert program.stderr is not None
        for line in program.stderr:
            if line == "begun\n":
                assert list((tmp_path / "temporary").glob("lazaretto-*/code.zip"))
                program.send_signal(signal.SIGTERM)
                break
        late.cancel()
        assert program.wait(120) == 130
    assert not list((tmp_path / "temporary").glob("lazaretto-*"))


OF_PYTHON = """\
[STREAM_FAILED] Query [id = 1b854d82, runId = 9def0785] terminated with exception: \
[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent call last):
  File "/jobs/shop.py", line 11, in f
    def f(x): raise ValueError("the udf is odd")
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
ValueError: the udf is odd
 SQLSTATE: 38000 SQLSTATE: XXKST
=== Streaming Query ===
Identifier: odd [id = 1b854d82, runId = 9def0785]
"""
OF_JAVA = """\
An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.
: org.apache.spark.SparkException: Could not parse Master URL: 'local[x]'
\tat org.apache.spark.SparkContext$.createTaskScheduler(SparkContext.scala:3391)
"""
OF_SPARK = """\
[STREAM_FAILED] Query [id = 1b854d82, runId = 9def0785] terminated with exception: No space left on device
=== Streaming Query ===
"""


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        (OF_PYTHON, "ValueError: the udf is odd"),
        (OF_JAVA, "org.apache.spark.SparkException: Could not parse Master URL: 'local[x]'"),
        (OF_SPARK, OF_SPARK.splitlines()[0]),
    ],
)
def test_what_spark_says_is_told_in_a_sentence(told: str, sentence: str) -> None:
    assert sentence_of(told) == sentence
