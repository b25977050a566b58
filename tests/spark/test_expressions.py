"""An error of Spark's own expressions, before any handler: the letter says which, not that a worker died."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lazaretto import Broker, Message
from lazaretto.spark import process

pytestmark = pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::ResourceWarning"
)


def take(message: Any) -> Any:
    return {"n": int(message.body)}


def test_a_cast_that_fails_is_told_of_its_message(
    spark: Any, broker: Broker, url: str, tmp_path: Path
) -> None:
    broker.sender("work").send([Message(b"%d" % n) for n in range(1, 40)] + [Message(b"x"), Message(b"41")])
    stream = spark.readStream.format("lazaretto").option("store", url).option("queue", "work").load()
    number = "CAST(CAST(CAST(CAST(body AS STRING) AS INT) AS STRING) AS BINARY)"
    query = process(
        stream.selectExpr("*", f"{number} AS checked").withColumn("body", stream["body"]).selectExpr(
            *[name if name != "body" else "checked AS body" for name in stream.columns]
        ),
        take, store=url, queue="work", checkpoint=str(tmp_path / "checkpoint"),
        results=str(tmp_path / "results"), schema="n bigint",
    )  # fmt: skip
    # It does not end for the message's sake.
    query.awaitTermination()
    (letter,) = broker.dead_letters("work")
    assert letter.sequence_number == 40
    assert "NumberFormatException" in (letter.error_type or "")
    assert "CAST_INVALID_INPUT" in (letter.error_message or "")
    rows = spark.read.parquet(str(tmp_path / "results")).collect()
    assert sorted(row.n for row in rows) == [*range(1, 40), 41]
