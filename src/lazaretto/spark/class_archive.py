"""An archive of the classes that Java loads for a pipeline, from which a later session starts faster."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

import pyspark

from lazaretto.errors import JavaNotFound
from lazaretto.spark.java import Java, cache_folder, find_java

#: Seconds that Java may take to write it, on a busy machine.
_LONGEST = 300.0


def archive_of(java: Java) -> Path:
    """Return where the archive for a Java and this Spark is, if it was made."""
    made_for = f"{java.home.resolve()} {java.version} {Path(pyspark.__file__).parent} {pyspark.__version__}"
    return cache_folder() / f"spark-{pyspark.__version__}-{zlib.crc32(made_for.encode()):08x}.jsa"


def java_options(java: Java) -> str:
    """Return Java's options to use the archive, none if there is none. Java ignores one that does not fit."""
    archive = archive_of(java)
    return f' "-XX:SharedArchiveFile={archive}" -Xlog:cds*=off' if archive.exists() else ""


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
        done = subprocess.run(program, capture_output=True, timeout=_LONGEST, check=False)  # noqa: S603
        if done.returncode or not made.exists():
            told = done.stderr.decode(errors="replace").strip().splitlines()
            raise JavaNotFound(
                f"{java.origin} (Java {java.version}) made no archive: {told[-1] if told else 'no error'}"
            )
        os.replace(made, archive)  # noqa: PTH105
    return archive


def handle(message: object) -> dict[str, int]:
    """Return a result: the pipeline's handler."""
    return {"n": 1}


def _run(archive: str) -> None:
    """Run a pipeline in a Java that writes what it loaded when it ends."""
    import lazaretto
    from lazaretto import Message
    from lazaretto.spark.pipeline import process
    from lazaretto.spark.session import SETTINGS, spark_session

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
