"""An archive of classes that Java loads for a pipeline, from which a session starts faster."""

from __future__ import annotations

import zlib
from pathlib import Path

import pyspark

from lazaretto.spark.java import Java, cache_folder


def archive_of(java: Java) -> Path:
    """Return where the archive for a Java and this Spark is, if it was made."""
    made_for = f"{java.home.resolve()} {java.version} {Path(pyspark.__file__).parent} {pyspark.__version__}"
    return cache_folder() / f"spark-{pyspark.__version__}-{zlib.crc32(made_for.encode()):08x}.jsa"


def java_options(java: Java) -> str:
    """Return Java's options to use the archive, none if there is none. Java ignores one that does not fit."""
    archive = archive_of(java)
    return f' "-XX:SharedArchiveFile={archive}" -Xlog:cds*=off' if archive.exists() else ""
