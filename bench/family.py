"""This process and all below it: their CPU and memory while something runs."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path

#: What processes are, by the names of their programs. All others run tasks of Spark's.
_KINDS = {"java": "Java", "postgres": "server"}


class Measured:
    """Measures what runs within it: seconds by the clock and of CPU, and the peak memory of each process.

    Peaks are Linux's own (VmHWM), set back at the beginning; so a process that ends is seen too, but for what
    it took in its last half second. `peaks`: in MiB, the highest of each kind of process.
    """

    _EVERY = 0.5

    def __init__(self) -> None:
        self._over = threading.Event()
        self._peaks: dict[int, tuple[str, int]] = {}
        self._cpu: dict[int, float] = {}
        self._before: dict[int, float] = {}
        self.seconds = self.cpu = self.load = 0.0
        self.peaks: dict[str, int] = {}

    def __enter__(self) -> Measured:
        for pid, (_, cpu) in _family().items():
            with contextlib.suppress(OSError):
                Path(f"/proc/{pid}/clear_refs").write_text("5", "ascii")
            self._before[pid] = cpu
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        self._began = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._began
        self._over.set()
        self._thread.join()
        self._look()
        self.cpu = sum(spent - self._before.get(pid, 0.0) for pid, spent in self._cpu.items())
        for kind, peak in self._peaks.values():
            self.peaks[kind] = max(peak, self.peaks.get(kind, 0))
        self.load = os.getloadavg()[0]

    def memory(self) -> str:
        """Return the peak memory of each kind of process, in MiB."""
        return ", ".join(f"{kind} {peak}" for kind, peak in sorted(self.peaks.items()))

    def _watch(self) -> None:
        while not self._over.wait(self._EVERY):
            self._look()

    def _look(self) -> None:
        for pid, (name, cpu) in _family().items():
            with contextlib.suppress(OSError, IndexError):
                status = Path(f"/proc/{pid}/status").read_text("ascii", "replace")
                kind = "driver" if pid == os.getpid() else _KINDS.get(name, "task")
                self._peaks[pid] = kind, int(status.partition("VmHWM:")[2].split()[0]) // 1024
                self._cpu[pid] = cpu


def _family() -> dict[int, tuple[str, float]]:
    """Return this process and all below it: the name of each, and its seconds of CPU."""
    tick = os.sysconf("SC_CLK_TCK")
    parents, known = {}, {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            name, _, rest = (entry / "stat").read_text("utf-8", "replace").partition("(")[2].rpartition(")")
            fields = rest.split()
            parents[int(entry.name)] = int(fields[1])
            known[int(entry.name)] = name, (int(fields[11]) + int(fields[12])) / tick
    found, last = set(), {os.getpid()}
    while last:
        found |= last
        last = {pid for pid, parent in parents.items() if parent in last} - found
    return {pid: known[pid] for pid in found if pid in known}
