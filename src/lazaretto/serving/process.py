"""Sets the process of a server up: as many open files as it may have, and memory that it gives back."""

from __future__ import annotations

import contextlib
import ctypes
from typing import Final

from lazaretto.model.limits import ServerLimits

#: Files of the process that are not its clients' connections: the store's, logs, libraries.
OTHER_FILES: Final = 256
#: What glibc calls its settings, and what they are set to: pieces above so many bytes are the system's again
#: once they are free, and threads share two arenas.
_MMAP_THRESHOLD, _ARENA_MAX = -3, -8
_LARGE: Final = 256 * 1024
_ARENAS: Final = 2


def set_up_server() -> None:
    """Allow the process all files that it needs, and have it give back memory."""
    _allow_files(ServerLimits().connections + OTHER_FILES)
    # Other C libraries have no such function, and Windows has no one C library.
    with contextlib.suppress(OSError, AttributeError, TypeError):
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_THRESHOLD, _LARGE)
        library.mallopt(_ARENA_MAX, _ARENAS)


def most_files() -> int | None:
    """Return how many files this process may have open, None where the system does not limit that."""
    try:
        import resource
    except ImportError:
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft < 0 else soft


def _allow_files(count: int) -> None:
    soft = most_files()
    if soft is not None and soft < count:
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (count if hard < 0 else min(count, hard), hard))
