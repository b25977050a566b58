"""A network far away, on this machine: `python -m bench.delay SOCKET SECONDS` prints the port it listens on.

What comes to the port goes on to the Unix socket, and what comes from there back, each SECONDS later.
"""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Iterator

_PIECE = 1 << 18


@contextlib.contextmanager
def delayed(path: str, seconds: float) -> Iterator[int]:
    """Run such a proxy in a process of its own; give its port."""
    command = [sys.executable, "-m", "bench.delay", path, str(seconds)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.terminate()
        process.wait(10)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    # In order, whatever order the loop has for timers of one moment.
    pieces: deque[bytes] = deque()
    with contextlib.suppress(ConnectionError):
        while piece := await reader.read(_PIECE):
            pieces.append(piece)
            loop.call_later(seconds, lambda: writer.write(pieces.popleft()))
    loop.call_later(seconds, writer.close)


async def _serve(path: str, seconds: float) -> None:
    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        near: socket.socket = writer.get_extra_info("socket")
        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        from_server, to_server = await asyncio.open_unix_connection(path)
        await asyncio.gather(_pass_on(reader, to_server, seconds), _pass_on(from_server, writer, seconds))

    server = await asyncio.start_server(connect, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    # epoll knows whole milliseconds only, select microseconds.
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
        runner.run(_serve(sys.argv[1], float(sys.argv[2])))
