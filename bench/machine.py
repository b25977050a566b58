"""The machine and the software that figures belong to: without them a figure says nothing."""

from __future__ import annotations

import dataclasses
import os
import platform
import sqlite3
from datetime import UTC, datetime
from pathlib import Path

_IN_MEMORY = ("tmpfs", "ramfs")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What was measured on, and when."""

    date: str
    cpu: str
    cores: int
    memory: str
    kernel: str
    system: str
    filesystem: str
    disk_cache: str
    python: str
    sqlite: str
    load_before: str
    load_after: str = ""

    @classmethod
    def here(cls, folder: Path) -> Machine:
        """Return this machine, with the filesystem that `folder` is on."""
        kind, options, device = _mount(folder)
        return cls(
            date=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
            cpu=_field("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
            cores=os.cpu_count() or 0,
            memory=f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
            kernel=f"{platform.system()} {platform.release()}",
            system=_field("/etc/os-release", "PRETTY_NAME", "=") or "unknown",
            filesystem=f"{kind} on {device} ({options})",
            disk_cache=_write_cache(device),
            python=f"{platform.python_implementation()} {platform.python_version()}",
            sqlite=sqlite3.sqlite_version,
            load_before=_load(),
        )

    def after(self) -> Machine:
        """Return the same with the load as it is now, after the run."""
        return dataclasses.replace(self, load_after=_load())

    @property
    def in_memory(self) -> bool:
        """Whether the folder is on a filesystem that has no disk under it."""
        return self.filesystem.startswith(_IN_MEMORY)


def _field(path: str, name: str, separator: str = ":") -> str | None:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        key, _, value = line.partition(separator)
        if key.strip() == name:
            return value.strip().strip('"')
    return None


def _mount(folder: Path) -> tuple[str, str, str]:
    """Return the type, the options and the device of the filesystem that a folder is on."""
    here = folder.resolve()
    best = ("unknown", "", "unknown")
    longest = -1
    for line in Path("/proc/mounts").read_text().splitlines():
        device, point, kind, options = line.split()[:4]
        if here.is_relative_to(point) and len(point) >= longest:
            best, longest = (kind, options, device), len(point)
    return best


def _write_cache(device: str) -> str:
    name = Path(device).name
    for candidate in (name, name.rstrip("0123456789"), name.rstrip("0123456789").removesuffix("p")):
        cache = Path("/sys/block") / candidate / "queue" / "write_cache"
        if candidate and cache.exists():
            return cache.read_text().strip()
    return "unknown"


def _load() -> str:
    return f"{os.getloadavg()[0]:.2f}"
