"""The console with one page open: `python -m bench.viewer FILE`, until its input ends.

What a browser does: it follows the stream of changes, and asks for its page again when it hears of one, but
not before a second is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from pathlib import Path

from bench.web import Connection, serving

_PAUSE = 1.0
_PAGE = "/"


async def _view(port: int) -> None:
    following, asking = await Connection(port).open(), await Connection(port).open()
    reader = await following.follow("/api/v1/events/stream")
    await asking.ask("GET", _PAGE, accept="text/html")
    print("ready", flush=True)
    while line := await reader.readline():
        if line.startswith(b"data:"):
            await asking.ask("GET", _PAGE, accept="text/html")
            await asyncio.sleep(_PAUSE)


def main(path: Path) -> None:
    """Serve a store, and look at it."""
    with serving(path) as server:
        viewing = threading.Thread(target=lambda: asyncio.run(_end_quietly(server.port)), daemon=True)
        viewing.start()
        sys.stdin.read()


async def _end_quietly(port: int) -> None:
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        await _view(port)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
