"""On the path of a pipeline's processes: kills them at named points, once for each file in a folder.

A file `jvm-POINT` kills Spark's JVM there, `driver-POINT` the Python driver, `self-POINT` the process
that is there.
"""

import contextlib
import functools
import os
import signal
import time
from pathlib import Path
from typing import Any

_FOLDER = os.environ.get("LAZARETTO_FAULTS")


def _fault(point: str) -> None:
    folder = Path(_FOLDER or "")
    for target in ("jvm", "driver", "self"):
        with contextlib.suppress(FileNotFoundError):
            # Whoever removes the file does it.
            (folder / f"{target}-{point}").unlink()
            pid = os.getpid() if target == "self" else int((folder / f"{target}.pid").read_text())
            with (folder / "killed").open("a") as file:
                file.write(f"{target}-{point}\n")
            os.kill(pid, signal.SIGKILL)
            time.sleep(30)


def _install() -> None:
    from lazaretto.claims import ClaimConsumer

    def around(name: str) -> None:
        original = getattr(ClaimConsumer, name)

        @functools.wraps(original)
        def wrapped(self: Any, *arguments: Any, **named: Any) -> Any:
            _fault(f"before-{name}")
            answer = original(self, *arguments, **named)
            if name != "take" or answer is not None:
                _fault(f"after-{name}")
            return answer

        setattr(ClaimConsumer, name, wrapped)

    for name in ("take", "start", "stage", "settle"):
        around(name)


if _FOLDER:
    _install()
