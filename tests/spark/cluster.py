"""A standalone cluster of Spark on this machine: a master and workers whose Python has no packages."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyspark
from servers import free_port

from lazaretto.spark import find_java
from lazaretto.spark.session import java_options

#: What Spark says on a busy machine: it waits ten seconds for a Python process, and no setting changes that.
IMPATIENT = "Python worker failed to connect back"
HOME = Path(pyspark.__file__).parent
#: Seconds for a process to start, and to end, on a busy machine.
START, END = 300, 60
#: A task that takes longer than another is tried a second time at once.
SPECULATION = {
    "spark.speculation": "true", "spark.speculation.minTaskRuntime": "1ms",
    "spark.speculation.quantile": "0.1", "spark.executor.cores": "1",
}  # fmt: skip
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"


@functools.cache
def quick_start() -> str:
    """Return options with which a Java that does little takes the least to start."""
    return f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC{java_options(find_java())}"


def clean_environment(folder: Path) -> dict[str, str]:
    """Return the environment of a machine without this project: its own Python of our version, by name."""
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    python = programs / f"python{VERSION}"
    if not python.exists():
        # The one that the environment of the tests was made from: it has none of its packages.
        python.symlink_to(Path(sys.base_prefix) / "bin" / f"python{VERSION}")
    return {
        "PATH": f"{programs}:/usr/bin:/bin", "HOME": str(folder), "JAVA_HOME": str(find_java().home),
        "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(HOME), "LANG": "C.UTF-8",
        "SPARK_DAEMON_JAVA_OPTS": quick_start(),
    }  # fmt: skip


@contextlib.contextmanager
def ended(program: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """In the end, kill a program that still runs, with all that runs in its session."""
    with program:
        try:
            yield program
        finally:
            # While it is not waited for, its number is nobody else's.
            if program.poll() is None:
                os.killpg(program.pid, signal.SIGKILL)


class Process:
    """A process of the cluster; what it logs is kept."""

    def __init__(self, words: list[str], environment: dict[str, str], folder: Path, ready: str) -> None:
        self._process = subprocess.Popen(
            [str(HOME / "bin" / "spark-class"), *words], env=environment, cwd=folder, text=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        self.log: list[str] = []
        assert self._process.stderr is not None
        late = threading.Timer(START, self._kill)
        late.start()
        for line in self._process.stderr:
            self.log.append(line)
            if ready in line:
                break
        late.cancel()
        if not self.log or ready not in self.log[-1]:
            self._kill()
            self._process.wait(END)
            self._process.stderr.close()
            raise RuntimeError(f"it did not start: {''.join(self.log)}")
        self._reading = threading.Thread(target=self.log.extend, args=(self._process.stderr,))
        self._reading.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        """End it: a worker ends its executors."""
        self._process.terminate()
        self._reading.join(END)
        if self._process.poll() is None or self._reading.is_alive():
            self._kill()
        self._process.wait(END)
        self._reading.join(END)
        assert self._process.stderr is not None
        self._process.stderr.close()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)


@contextlib.contextmanager
def cluster(folder: Path, workers: int = 1, cores: int = 2) -> Iterator[str]:
    """Run a cluster; yield its master's URL.

    Each worker has an address of its own: Spark tries a slow task again only on another machine.
    """
    environment = clean_environment(folder)
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    page = ["--webui-port", "0"]
    started: list[Process] = []
    try:
        master = ["--host", "127.0.0.1", *page, "--port", str(port)]
        name = "org.apache.spark.deploy.master.Master"
        started.append(Process([name, *master], environment, folder, "I have been elected leader"))
        for number in range(workers):
            work = folder / f"work-{number}"
            work.mkdir()
            listen = ["--host", f"127.0.0.{number + 2}", *page]
            words = [*listen, "--cores", str(cores), "--memory", "1g", "--work-dir", str(work), url]
            name = "org.apache.spark.deploy.worker.Worker"
            started.append(Process([name, *words], environment, folder, "Successfully registered"))
        yield url
    finally:
        for process in reversed(started):
            process.stop()


class ConnectServer:
    """A server of Spark Connect on this machine, with our Python; it can be started again once it is dead."""

    def __init__(self, folder: Path, extra: Mapping[str, str] | None = None) -> None:
        self._folder = folder
        self._environment = {
            **os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1",
            **clean_environment(folder), "PATH": os.environ["PATH"], **submitting(dict(extra or {})),
        }  # fmt: skip
        self._process: Process | None = None
        self.url = ""

    def start(self) -> int:
        """Start it, unless it runs; return its process."""
        if self._process is None or not self._process.runs:
            self.stop()
            port = free_port()
            settings = {
                "spark.master": "local[2,4]", "spark.driver.memory": "600m", "spark.ui.enabled": "false",
                "spark.connect.grpc.binding.port": port, "spark.sql.shuffle.partitions": 2,
                "spark.sql.session.timeZone": "UTC", "spark.python.authenticate.socketTimeout": "300s",
                "spark.driver.extraJavaOptions": quick_start(),
            }  # fmt: skip
            said = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
            words = [*said, "--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
            words = ["org.apache.spark.deploy.SparkSubmit", *words, "spark-internal"]
            self._process = Process(words, self._environment, self._folder, "Spark Connect server started")
            self.url = f"sc://127.0.0.1:{port}"
        return self._process.pid

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.stop()
            self._process = None


def submitting(extra: dict[str, str]) -> dict[str, str]:
    """Return the environment of a driver."""
    path = os.pathsep.join([str(Path(__file__).parents[2] / "src"), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, **extra}
