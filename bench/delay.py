"""A network far away, on this machine: `python -m bench.delay SOCKET SECONDS` prints the port it listens on.

What comes to the port goes on to the Unix socket, and what comes from there back, each SECONDS later.
It runs on the same cores as what is measured, so it does little for each piece: one loop, no streams, and one
queue, since each piece waits equally long.
"""

from __future__ import annotations

import contextlib
import select
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator

_PIECE = 1 << 18
_END = b""


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


class _Proxy:
    """Both directions of all connections, and what is on its way."""

    def __init__(self, path: str, seconds: float) -> None:
        self._path = path
        self._seconds = seconds
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self._others: dict[int, tuple[socket.socket, socket.socket]] = {}
        self._watched = [self._listener.fileno()]
        #: Those to whom all has been delivered.
        self._ended: set[socket.socket] = set()
        #: When each piece is due, where it goes, and what it is; `_END` if its sender has ended.
        self._pieces: deque[tuple[float, socket.socket, bytes]] = deque()
        self.port: int = self._listener.getsockname()[1]

    def serve(self) -> None:
        """Pass on, for ever."""
        # epoll knows whole milliseconds only, select microseconds.
        pieces, listener = self._pieces, self._listener.fileno()
        while True:
            wait = None if not pieces else max(pieces[0][0] - time.monotonic(), 0.0)
            ready, _, _ = select.select(self._watched, (), (), wait)
            for number in ready:
                if number == listener:
                    self._connect()
                else:
                    self._take(number)
            now = time.monotonic()
            while pieces and pieces[0][0] <= now:
                self._deliver(*pieces.popleft()[1:])

    def _connect(self) -> None:
        near, _ = self._listener.accept()
        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        far = socket.socket(socket.AF_UNIX)
        far.connect(self._path)
        self._others[near.fileno()] = (near, far)
        self._others[far.fileno()] = (far, near)
        self._watched += [near.fileno(), far.fileno()]

    def _take(self, number: int) -> None:
        source, target = self._others[number]
        try:
            piece = source.recv(_PIECE)
        except ConnectionError:
            piece = _END
        if piece == _END:
            self._watched.remove(number)
        self._pieces.append((time.monotonic() + self._seconds, target, piece))

    def _deliver(self, target: socket.socket, piece: bytes) -> None:
        if piece != _END:
            with contextlib.suppress(OSError):
                target.sendall(piece)
            return
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)
        _, source = self._others[target.fileno()]
        self._ended.add(target)
        if source in self._ended:
            for side in (target, source):
                self._ended.discard(side)
                del self._others[side.fileno()]
                side.close()


if __name__ == "__main__":
    proxy = _Proxy(sys.argv[1], float(sys.argv[2]))
    print(proxy.port, flush=True)
    proxy.serve()
