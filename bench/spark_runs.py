"""What runs on Spark to be compared: the pipeline, and what people write by hand instead.

The handler parses a body of 1 KiB of JSON. All that is written by hand has it in a loop with try and except.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from bench.spark_places import SIZE, Place
from lazaretto.spark import process, settle

#: Messages of a claim, and of what is fetched at once by hand.
CLAIM = 100_000
#: Debian's drivers for JDBC, and what the one for SQLite is to be told: where its own library is.
JARS = [Path("/usr/share/java") / name for name in ("sqlite-jdbc.jar", "postgresql.jar")]
JAVA = "-Dorg.sqlite.lib.path=/usr/lib/x86_64-linux-gnu/jni -Dorg.sqlite.lib.name=libsqlitejdbc.so"
_DRIVERS = {"?": "org.sqlite.JDBC", "%s": "org.postgresql.Driver"}
RESULT = "id bigint, kind string"
#: What a loop reads of a message, and what settles a batch: no more than JDBC reads of its table.
NEEDED = "claim bigint, epoch bigint, body binary"

Run = Callable[[Any, Place], None]


def parse(message: Any) -> None:
    """Be the handler."""
    import json

    json.loads(message.body)


def parse_to_row(message: Any) -> dict[str, Any]:
    """Be the handler that has a result."""
    import json

    value = json.loads(message.body)
    return {"id": value["id"], "kind": value["kind"]}


def _loop(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run the handler on each row of a task."""
    import json

    for batch in batches:
        good = 0
        for body in batch.column("body").to_pylist():
            try:
                json.loads(body)
                good += 1
            except Exception:
                continue
        yield pa.RecordBatch.from_pydict({"good": pa.array([good], pa.int64())})


def _stream(spark: Any, place: Place, claim: int = CLAIM, columns: str | None = None) -> Any:
    """Return the stream of messages; `columns`: only these."""
    reader = spark.readStream.format("lazaretto").option("store", place.url).option("queue", "work")
    if columns is not None:
        reader = reader.schema(columns)
    return reader.option("maxRows", str(claim)).option("maxBytes", str(2 * SIZE * claim)).load()


def _run(writer: Any, place: Place) -> None:
    query = writer.option("checkpointLocation", str(place.home / "checkpoint"))
    query.trigger(availableNow=True).start().awaitTermination()


def plain(claim: int = CLAIM, columns: str | None = None) -> Run:
    """Return a run of a loop around the handler in each task, on the same stream; it settles nothing.

    `columns`: the only ones that are read.
    """

    def run(spark: Any, place: Place) -> None:
        frame = _stream(spark, place, claim, columns).mapInArrow(_loop, "good bigint")
        _run(frame.writeStream.format("noop"), place)

    return run


def settled(claim: int = CLAIM) -> Run:
    """Return a run of that loop in foreachBatch, on a stream of the columns it needs; then it settles."""

    def handle(place: Place, frame: Any) -> None:
        frame.mapInArrow(_loop, "good bigint").write.format("noop").mode("overwrite").save()
        settle(frame, store=place.url, queue="work")

    def run(spark: Any, place: Place) -> None:
        writer = _stream(spark, place, claim, NEEDED).writeStream
        _run(writer.foreachBatch(lambda frame, _number: handle(place, frame)), place)

    return run


def by_hand(spark: Any, place: Place) -> None:
    """Run the handler in the driver on each row of a micro-batch, and delete the rows that are done."""

    def handle(frame: Any, _number: int) -> None:
        done = []
        for row in frame.select("sequence_number", "body").toLocalIterator():
            try:
                json.loads(row.body)
                done.append((row.sequence_number,))
            except Exception:
                continue
        with place.connect() as connection:
            connection.cursor().executemany(f"DELETE FROM work WHERE id = {place.mark}", done)

    _run(_stream(spark, place).writeStream.foreachBatch(handle), place)


def jdbc(spark: Any, place: Place) -> None:
    """Read the table in two parts by JDBC, run a loop around the handler, and delete what was read."""
    with place.connect() as connection:
        ((last,),) = connection.execute("SELECT max(id) FROM work").fetchall()
    reader = spark.read.format("jdbc").option("url", place.jdbc).option("driver", _DRIVERS[place.mark])
    parted = {"partitionColumn": "id", "lowerBound": "1", "upperBound": str(last), "numPartitions": "2"}
    frame = reader.option("dbtable", "work").options(**parted).option("fetchsize", "10000").load()
    frame.mapInArrow(_loop, "good bigint").write.format("noop").mode("overwrite").save()
    with place.connect() as connection:
        connection.execute(f"DELETE FROM work WHERE id <= {place.mark}", (last,))


def ours(isolation: str, *, direct: bool = True, results: bool = False, claim: int = CLAIM) -> Run:
    """Return a run of the pipeline.

    `direct`: the tasks read by themselves; `results`: as Parquet; `claim`: messages of one.
    """

    def run(spark: Any, place: Place) -> None:
        more: dict[str, Any] = {"max_rows": claim, "max_bytes": 2 * SIZE * claim} if direct else {}
        if results:
            more.update(results=str(place.home / "results"), schema=RESULT)
        process(
            spark if direct else _stream(spark, place, claim), parse_to_row if results else parse,
            store=place.url, queue="work", checkpoint=str(place.home / "checkpoint"), isolation=isolation,
            breaker=None, **more,
        ).awaitTermination()  # fmt: skip

    return run
