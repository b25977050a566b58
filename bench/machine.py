"""The machine that figures belong to: without it a figure says nothing."""

from __future__ import annotations

import dataclasses
import os
import platform
from datetime import UTC, datetime
from pathlib import Path


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What was measured on, and when; `load`: before it."""

    date: str
    cpu: str
    cores: int
    filesystem: str
    python: str
    load: str

    @classmethod
    def here(cls, folder: Path) -> Machine:
        """Return this machine, with the filesystem that `folder` is on."""
        return cls(
            date=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
            cpu=_processor() or platform.processor() or platform.machine(),
            cores=os.cpu_count() or 0,
            filesystem=_filesystem(folder),
            python=platform.python_version(),
            load=_load(),
        )

    @property
    def in_memory(self) -> bool:
        """Whether the folder is on a filesystem that has no disk under it."""
        return self.filesystem.startswith(("tmpfs", "ramfs"))

    def line(self) -> str:
        """Return all of it in a line, with the load as it is now, after the run."""
        return (
            f"{self.date}, {self.cpu}, {self.cores} cores, {self.filesystem}, Python {self.python}, "
            f"load {self.load} before, {_load()} after"
        )


def _processor() -> str | None:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return None


def _filesystem(folder: Path) -> str:
    """Return the type and the device of the filesystem that a folder is on."""
    here, found, longest = folder.resolve(), "unknown", -1
    for line in Path("/proc/mounts").read_text().splitlines():
        device, point, kind = line.split()[:3]
        if here.is_relative_to(point) and len(point) >= longest:
            found, longest = f"{kind} on {device}", len(point)
    return found


def _load() -> str:
    return f"{os.getloadavg()[0]:.2f}"
