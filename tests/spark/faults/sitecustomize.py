"""On the path of a pipeline's processes: kills them at named points, once for each file in a folder.

A file `jvm-POINT` kills the driver's JVM there, `driver-POINT` the Python driver, `self-POINT` the process
that is there, `executor-POINT` the JVM above it; `store-POINT` and `sink-POINT` end the server of the store,
and of the results, as its operator's `-m immediate` does. Once something was killed, a claim has to be
settled before the next is: whoever is at work at one death after the other is to blame, and here nobody is.
"""

import contextlib
import functools
import importlib.util
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_FOLDER = os.environ.get("LAZARETTO_FAULTS")
_SERVERS = ("store", "sink")


def _fault(point: str) -> None:
    folder = Path(_FOLDER or "")
    if not (folder / "calm").exists():
        return
    for target in ("jvm", "driver", "self", "executor", *_SERVERS):
        with contextlib.suppress(FileNotFoundError):
            # Whoever moves the file does it.
            (folder / f"{target}-{point}").rename(folder / "killed" / f"{target}-{point}")
            (folder / "calm").unlink(missing_ok=True)
            if target == "executor":
                pid = _executor()
            else:
                pid = os.getpid() if target == "self" else int((folder / f"{target}.pid").read_text())
            if target in _SERVERS:
                os.kill(pid, signal.SIGQUIT)
                _await_end(pid)
                return
            os.kill(pid, signal.SIGKILL)
            time.sleep(30)


def _await_end(pid: int) -> None:
    """Wait until a process has ended, whether or not its parent knows."""
    while Path(f"/proc/{pid}/cmdline").read_bytes():
        time.sleep(0.01)


def _executor() -> int:
    pid = os.getpid()
    while b"CoarseGrainedExecutorBackend" not in Path(f"/proc/{pid}/cmdline").read_bytes():
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid


def _install() -> None:
    from lazaretto.broker.claims import ClaimConsumer
    from lazaretto.engine.claims import end_claims, settle_claims
    from lazaretto.engine.claims.end_claims import RemoveCompleted
    from lazaretto.engine.claims.settle_claims import SettleClaims, Stage
    from lazaretto.engine.claims.settle_rows import SettleRows, StageRows

    # Small claims are removed like large ones: by later commits.
    settle_claims._LARGE = 1
    end_claims._AT_ONCE = 3

    def around(name: str) -> None:
        original = getattr(ClaimConsumer, name)

        @functools.wraps(original)
        def wrapped(self: Any, *arguments: Any, **named: Any) -> Any:
            _fault(f"before-{name}")
            answer = original(self, *arguments, **named)
            if name == "settle":
                Path(_FOLDER or "", "calm").touch()
            if name != "take" or answer is not None:
                _fault(f"after-{name}")
            return answer

        setattr(ClaimConsumer, name, wrapped)

    for name in ("take", "start", "stage", "settle"):
        around(name)

    def within(operation: Any, point: str) -> None:
        """Die when all is done, and nothing is committed."""
        original = operation.run

        def run(self: Any, tx: Any) -> Any:
            answer = original(self, tx)
            _fault(point)
            return answer

        operation.run = run

    within(Stage, "in-stage")
    within(SettleClaims, "in-settle")
    within(RemoveCompleted, "in-remove")
    within(StageRows, "in-stage-rows")
    within(SettleRows, "in-rows")


def _install_in_reader(source: Any) -> None:
    original = source.read_shard

    def read_shard(*arguments: Any) -> Any:
        for batch in original(*arguments):
            yield batch
            _fault("during-read")

    source.read_shard = read_shard


def _install_in_quarantine(module: Any) -> None:
    for name in ("_settle", "_publish"):
        original = getattr(module.QuarantineSink, name)

        def wrapped(self: Any, *arguments: Any, _original: Any = original, _name: str = name) -> None:
            _fault(f"before{_name}-rows")
            _original(self, *arguments)
            # No message of the queue is to blame where only rows of the source were at work.
            Path(_FOLDER or "", "calm").touch()
            _fault(f"after{_name}-rows")

        setattr(module.QuarantineSink, name, wrapped)


def _install_in_database(module: Any) -> None:
    original = module.DatabaseResults._forget

    def forget(self: Any, *arguments: Any) -> None:
        original(self, *arguments)
        # All is in the table, and nothing is committed.
        _fault("in-publish")

    module.DatabaseResults._forget = forget


class _Finder:
    """Waits for a module of Spark: importing it here would import Spark into every process."""

    def __init__(self, name: str, install: Callable[[Any], None]) -> None:
        self.name, self._install = name, install

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.loader is not None
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            self._install(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if _FOLDER:
    _install()
    sys.meta_path[:0] = [
        _Finder("lazaretto.spark.source", _install_in_reader),
        _Finder("lazaretto.spark.run_task", _install_in_reader),
        _Finder("lazaretto.spark.quarantine_sink", _install_in_quarantine),
        _Finder("lazaretto.spark.database_results", _install_in_database),
    ]
