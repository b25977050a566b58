"""`prepare`: a small pipeline runs once, and Java writes the archive of the classes that it loaded."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import lazaretto
from lazaretto import Message
from lazaretto.errors import JavaNotFound
from lazaretto.spark.java import find_java
from lazaretto.spark.pipeline import process
from lazaretto.spark.session import SETTINGS, archive_of, spark_session

#: Seconds that Java may take to write it, on a busy machine.
_LONGEST = 300.0


def prepare() -> Path:
    """Run a small pipeline and make the archive of what Java loaded; return where it is.

    It takes half a minute and 170 MB of disk. Raises JavaNotFound, also if this Java cannot make one.
    """
    java = find_java()
    archive = archive_of(java)
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
        made = Path(folder) / "classes.jsa"
        program = [sys.executable, "-m", __name__, str(made)]
        try:
            result = subprocess.run(program, capture_output=True, timeout=_LONGEST, check=False)  # noqa: S603
        except subprocess.TimeoutExpired:
            raise JavaNotFound(
                f"{java.origin} (Java {java.version}) made no archive within {_LONGEST:g} s: "
                "try again when the machine is less busy"
            ) from None
        if result.returncode or not made.exists():
            lines = result.stderr.decode(errors="replace").strip().splitlines()
            raise JavaNotFound(
                f"{java.origin} (Java {java.version}) made no archive: {lines[-1] if lines else 'no error'}"
            )
        os.replace(made, archive)  # noqa: PTH105
    return archive


def handle(message: object) -> dict[str, int]:
    """Return a result: the pipeline's handler."""
    return {"n": 1}


def _run(archive: str) -> None:
    """Run a pipeline in a Java that writes what it loaded when it ends."""
    name = "spark.driver.extraJavaOptions"
    spark = spark_session({name: f'{SETTINGS[name]} "-XX:ArchiveClassesAtExit={archive}"'})
    with tempfile.TemporaryDirectory() as folder:
        store = f"{folder}/store.db"
        with lazaretto.connect(store) as broker:
            broker.create_queue("queue")
            broker.sender("queue").send([Message(b"1"), Message(b"2")])
        query = process(
            spark, handle, store=store, queue="queue", checkpoint=f"{folder}/checkpoint",
            results=f"{folder}/results", schema="n bigint",
        )  # fmt: skip
        query.awaitTermination()
        spark.read.parquet(f"{folder}/results").count()
    spark.stop()
    # Java ends with this program, writes the archive, and only then lets go of the program's output.


if __name__ == "__main__":
    _run(sys.argv[1])
