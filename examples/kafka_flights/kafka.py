"""A broker of Kafka's on this machine, and the jars that it and Spark need: brought once, and kept."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import SparkSession

from lazaretto.spark import find_java

_JARS = Path(__file__).with_name("jars.xml")
_IVY = "org.apache.ivy.Main"
_BRING_SECONDS, _START_SECONDS, _TRIES = 600, 120, 3
_SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
log.dirs={folder}/log
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
auto.create.topics.enable=false
"""
#: Any name of a cluster, in Kafka's form.
_CLUSTER = "TGF6YXJldHRvIGV4YW1wbA"


class KafkaMissing(Exception):
    """The jars of Kafka cannot be had."""


def cache() -> Path:
    """Return the folder in which downloads are kept, outside of this project."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lazaretto-examples"


@contextlib.contextmanager
def brought(folder: Path) -> Iterator[bool]:
    """Hold a folder of downloads; say whether it is complete. It is afterwards, unless an error is raised."""
    folder.mkdir(parents=True, exist_ok=True)
    mark = folder / "complete"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield mark.exists()
        mark.touch()


def jars(kind: str) -> list[Path]:
    """Return the jars of `broker`, `kafka` (Spark's source) or `delta`. Raises KafkaMissing."""
    try:
        return jars_of(_JARS, kind)
    except OSError as error:
        raise KafkaMissing(f"the jars of Kafka cannot be brought: {error}") from error


def jars_of(wanted: Path, kind: str) -> list[Path]:
    """Return the jars of one configuration of a file of Ivy's. Raises OSError: they cannot be brought."""
    folder = cache() / f"jars-{hash_of(wanted)}"
    with brought(folder) as is_complete:
        if not is_complete:
            _bring(wanted, folder)
    return sorted((folder / kind).glob("*.jar"))


def hash_of(file: Path) -> str:
    """Return a short name for what a file says."""
    import hashlib

    return hashlib.sha256(file.read_bytes()).hexdigest()[:12]


def _bring(wanted: Path, folder: Path) -> None:
    # Spark has a client of Maven's repositories with it.
    ivy = Path(pyspark.__file__).parent / "jars"
    pattern = str(folder / "[conf]" / "[artifact]-[revision](-[classifier]).[ext]")
    words = [
        str(find_java().home / "bin" / "java"), "-cp", f"{ivy}/*", _IVY, "-ivy", str(wanted), "-cache",
        str(folder / "ivy"), "-types", "jar", "bundle", "-retrieve", pattern,
    ]  # fmt: skip
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_BRING_SECONDS)
    except subprocess.SubprocessError as error:
        raise OSError(str(error)) from error
    if done.returncode != 0:
        why = [line for line in done.stdout.splitlines() if "not found" in line or "FAILED" in line]
        text = (why or done.stderr.splitlines() or ["Ivy says nothing"])[-1].strip()
        raise OSError(f"Maven's central repository does not give them: {text}")


def _free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]


@contextlib.contextmanager
def kafka_broker() -> Iterator[str]:
    """Run a broker; yield its address. Raises KafkaMissing, RuntimeError: it does not start."""
    classes = os.pathsep.join(map(str, jars("broker")))
    with tempfile.TemporaryDirectory(prefix="lazaretto-kafka-") as place:
        for attempt in range(1, _TRIES + 1):
            folder = Path(place, str(attempt))
            folder.mkdir()
            port, controller = _free_ports()
            settings = folder / "server.properties"
            settings.write_text(_SETTINGS.format(port=port, controller=controller, folder=folder))
            java = [
                str(find_java().home / "bin" / "java"), "-Xmx256m", "-XX:TieredStopAtLevel=1",
                "-XX:+UseSerialGC", "-cp", classes,
            ]  # fmt: skip
            form = [*java, "kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(settings)]
            subprocess.run(form, check=True, capture_output=True, timeout=_START_SECONDS)
            with (folder / "output").open("wb") as output:
                process = subprocess.Popen(
                    [*java, "kafka.Kafka", str(settings)], stdout=output, stderr=subprocess.STDOUT, cwd=folder
                )
            try:
                if _answers(process, port):
                    yield f"127.0.0.1:{port}"
                    return
            finally:
                process.kill()
                process.wait()
        raise RuntimeError(f"Kafka's broker does not start: {(folder / 'output').read_text()[-1500:]}")


def _answers(process: subprocess.Popen[bytes], port: int) -> bool:
    """Wait until the broker takes connections; return whether it does."""
    deadline = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5):
            return True
        time.sleep(0.1)
    return False


@contextlib.contextmanager
def topics(spark: SparkSession, address: str) -> Iterator[Any]:
    """Yield Kafka's own administrator, of Java, in a session that has Kafka's jars."""
    jvm: Any = spark._jvm
    settings = jvm.java.util.Properties()
    settings.put("bootstrap.servers", address)
    admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(settings)
    try:
        yield admin
    finally:
        admin.close()


def create_topic(spark: SparkSession, address: str, topic: str) -> None:
    """Make a topic of two partitions."""
    jvm: Any = spark._jvm
    new = jvm.org.apache.kafka.clients.admin.NewTopic(topic, 2, 1)
    with topics(spark, address) as admin:
        admin.createTopics(jvm.java.util.List.of(new)).all().get()


def delete_topic(spark: SparkSession, address: str, topic: str) -> None:
    """Delete a topic with all its rows."""
    jvm: Any = spark._jvm
    with topics(spark, address) as admin:
        admin.deleteTopics(jvm.java.util.List.of(topic)).all().get()


def main() -> int:
    """Bring all jars; return 0 if they are there."""
    try:
        for kind in ("broker", "kafka", "delta"):
            print(f"{kind}: {len(jars(kind))} jars in {cache()}")
    except KafkaMissing as error:
        print(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
