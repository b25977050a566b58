"""A disk whose syncs take longer, as one on a network: a library delays those of programs that load it."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

_DELAY_MICROSECONDS = 3_000
_SOURCE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>

int fdatasync(int fd) {
    static int (*next)(int);
    if (!next) next = dlsym(RTLD_NEXT, "fdatasync");
    usleep(DELAY);
    return next(fd);
}
"""


def compiler() -> str | None:
    """Return the C compiler, if there is one."""
    return shutil.which("cc")


@contextlib.contextmanager
def slow_disk(folder: Path) -> Iterator[None]:
    """Have programs that start within a block wait 3 ms longer for each sync of data."""
    source, library = folder / "slow.c", folder.absolute() / "slow.so"
    source.write_text(_SOURCE)
    options = [f"-DDELAY={_DELAY_MICROSECONDS}", "-O2", "-shared", "-fPIC", "-o", str(library)]
    subprocess.run([compiler() or "cc", *options, str(source), "-ldl"], check=True)
    # Servers run as another user.
    library.chmod(0o755)
    os.environ["LD_PRELOAD"] = str(library)
    try:
        yield
    finally:
        del os.environ["LD_PRELOAD"]
