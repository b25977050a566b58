"""A pipeline as a process of its own, which tests kill and start again."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from lazaretto.spark import process, spark_session


def act(message: Any, context: Any) -> Any:
    """Return a result, and emit a message if it is of a session; or fail in the way the body says, or wait
    for the gate it names.
    """
    import os
    import signal
    from pathlib import Path

    from lazaretto import Message

    if message.body == b"raise":
        raise ValueError("no")
    if message.body == b"exit":
        os._exit(3)
    if message.body[:1] == b"/":
        import fcntl

        gate = Path(message.body.decode())
        with gate.open() as file:
            gate.with_name("begun").write_text("x")
            fcntl.flock(file, fcntl.LOCK_SH)
        context.send("out", Message(message.body))
        return None
    if message.body == b"jvm":
        os.kill(int(Path(os.environ["LAZARETTO_FAULTS"], "jvm.pid").read_text()), signal.SIGKILL)
    if message.session_id is not None:
        context.send("out", Message(message.body, subject=message.session_id))
    return {"n": int(message.body), "session": message.session_id}


def place(kind: str, store: str) -> Any:
    """Return where results go: a folder, a table of a kind, or the table `results` at a server's URL."""
    import functools
    import sqlite3

    from lazaretto.spark import DatabaseResults, DeltaResults, IcebergResults

    match kind:
        case "delta":
            return DeltaResults(f"{store}-results")
        case "iceberg":
            return IcebergResults("shop.orders", "tests", **catalog_of(store))
        case "database":
            return DatabaseResults(functools.partial(sqlite3.connect, f"{store}-results.db", 60), "results")
        case address if address.startswith("postgresql:"):
            import psycopg

            return DatabaseResults(functools.partial(psycopg.connect, address), "results", "pyformat")
        case _:
            return f"{store}-results"


def catalog_of(store: str) -> dict[str, str]:
    """Return the properties of a catalog beside a store."""
    return {
        "type": "sql", "uri": f"sqlite:///{store}-catalog.db", "warehouse": f"file://{store}-warehouse",
    }  # fmt: skip


def on_cluster(master: str) -> dict[str, str]:
    """Return settings for executors that run this Python, and are killed at the same points."""
    return {
        "spark.master": master, "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m", "spark.executor.cores": "1",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.python.authenticate.socketTimeout": "300s", "spark.lazaretto.executorWait": "300",
        **{f"spark.executorEnv.{name}": os.environ[name] for name in ("PYTHONPATH", "LAZARETTO_FAULTS")},
    }  # fmt: skip


def main() -> None:
    """Work a queue off: store, rows of a claim, isolation, shards, whether Spark loads the messages.

    Whatever else there is stands beside LAZARETTO_BASE. LAZARETTO_MASTER: a cluster's.
    """
    store, rows, isolation, shards, loads = sys.argv[1:]
    base = os.environ["LAZARETTO_BASE"]
    master = os.environ.get("LAZARETTO_MASTER")
    spark = spark_session({"spark.driver.memory": "600m", **(on_cluster(master) if master else {})})
    spark.sparkContext.setLogLevel("OFF")
    folder = Path(os.environ["LAZARETTO_FAULTS"])
    jvm: Any = spark._jvm
    (folder / "jvm.pid").write_text(str(jvm.java.lang.ProcessHandle.current().pid()))
    (folder / "driver.pid").write_text(str(os.getpid()))
    reader = spark.readStream.format("lazaretto").option("store", store).option("queue", "work")
    size: dict[str, Any] = {"max_rows": rows, "shards": shards, "lease": os.environ["LAZARETTO_LEASE"]}
    source: Any = reader.options(**size).load() if loads == "stream" else spark
    process(
        source,
        act,
        store=store,
        queue="work",
        checkpoint=f"{base}-checkpoint",
        results=place(os.environ.get("LAZARETTO_RESULTS", ""), base),
        schema="n bigint, session string",
        isolation=isolation,
        deadline=120,
        **({} if loads == "stream" else size),
    ).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
