"""Files of tests in memory: what they make is flushed thousands of times, and a disk takes long for each."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

_MEMORY: Final = Path("/dev/shm")
#: Bytes that tests may take in it: four servers' data and the stores of the tests that run.
_ROOM: Final = 4 * 1024**3


def memory_folder() -> Path | None:
    """Return a folder in memory, None if there is none with enough room in which programs may run."""
    if not (_MEMORY.is_dir() and os.access(_MEMORY, os.W_OK)):
        return None
    if os.statvfs(_MEMORY).f_flag & os.ST_NOEXEC or shutil.disk_usage(_MEMORY).free <= _ROOM:
        return None
    return _MEMORY
