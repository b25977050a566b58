"""Facts about Service Bus, asked by a program on Azure's SDK for .NET that the environment names."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import socketserver
import ssl
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
import trustme

from door.served import Served

_ROOT = Path(__file__).parents[2]
_KNOWN = _ROOT / "contrib/clients/dotnet/known-to-fail.txt"
_PROGRAM = os.environ.get("LAZARETTO_TEST_DOTNET", "")
#: Where its client connects with TLS, whatever it is told.
_PORTS = (443, 5671)
_HELD = re.compile(r"^ok    (.*?)(?:   -- .*)?$", re.MULTILINE)
_WRONG = re.compile(r"^WRONG (.*) \(\d+ s\)$", re.MULTILINE)
#: Facts have waits of their own, of up to 70 seconds; a fact that does not end is told after 90.
_LONGEST = 600
#: How often a fact is asked alone that did not hold beside the others: it waits by the clock, and the machine
#: may have been busy.
_AGAIN = 2

#: Properties with an empty group-id, and a message of one byte without properties, in a batch or alone.
_EMPTY_ID: Final = bytes.fromhex("005373c00d0b") + b"\x40" * 10 + b"\xa1\x00"
_WITHOUT_ID: Final = re.compile(rb"(\x00\x53\x75\xa0\x06)?(\x00\x53\x75\xa0\x01[12])")
_AMQP: Final = b"AMQP"
_TRANSFER: Final = 0x14

pytestmark = [
    pytest.mark.skipif(
        not _PROGRAM, reason="LAZARETTO_TEST_DOTNET names no program of contrib/clients/dotnet"
    ),
    pytest.mark.stores(*(("sqlite", "postgres") if os.environ.get("LAZARETTO_SOAK") else ("sqlite",))),
]


def free(port: int) -> bool:
    """Whether this process may listen on a port, and nobody else does."""
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def certificates(folder: Path) -> tuple[Path, Path]:
    """Make a certificate for localhost; return its file, and one with all authorities that are trusted."""
    authority, own, trusted = trustme.CA(), folder / "server.pem", folder / "all.pem"
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(str(own))
    system = ssl.get_default_verify_paths().cafile
    trusted.write_bytes(
        authority.cert_pem.bytes() + (Path(system).read_bytes() if system and Path(system).exists() else b"")
    )
    return own, trusted


def ask(port: int, trusted: Path, title: str = "") -> tuple[set[str], set[str], str]:
    """Ask facts with a part of a title; return those that hold, the others, and what it says."""
    ended = subprocess.run(
        [_PROGRAM, "facts", str(port), *([title] if title else [])],
        env={**os.environ, "SSL_CERT_FILE": str(trusted), "WORKERS": "8"},
        capture_output=True, text=True, timeout=_LONGEST, check=False,
    )  # fmt: skip
    text = ended.stdout + ended.stderr
    return set(_HELD.findall(text)), set(_WRONG.findall(text)), text


def test_facts_of_dotnet(serve: Callable[..., Served], tmp_path: Path) -> None:
    if not all(map(free, _PORTS)):
        pytest.skip("the facts for .NET need ports 443 and 5671, which are not free for this user")
    own, trusted = certificates(tmp_path)
    also = [word for port in _PORTS for word in ("--amqp-also", str(port))]
    served = serve(*also, "--certificate", str(own), "--plain")
    held, wrong, text = ask(served.port, trusted)
    known = set(_KNOWN.read_text("utf-8").splitlines())
    assert len(held | wrong) >= 135, text
    for title in sorted(wrong - known):
        for _ in range(_AGAIN):
            if title not in wrong:
                break
            again, _, told = ask(served.port, trusted, title)
            wrong -= again
            text += told
    assert wrong == known, text


class Relay(socketserver.BaseRequestHandler):
    """A connection to a door, in which messages without a session id get an empty one."""

    def handle(self) -> None:
        assert isinstance(self.server, Relays)
        with socket.create_connection(("127.0.0.1", self.server.door)) as door:
            back = threading.Thread(target=copy, args=(door, self.request))
            back.start()
            with contextlib.suppress(OSError, EOFError):
                self._ask(door)
            with contextlib.suppress(OSError):
                door.shutdown(socket.SHUT_WR)
            back.join()

    def _ask(self, door: socket.socket) -> None:
        start = self._read(4)
        if start != _AMQP:
            # The administration client's HTTP.
            door.sendall(start)
            copy(self.request, door)
        while start:
            if start == _AMQP:
                door.sendall(start + self._read(4))
            else:
                door.sendall(with_empty_ids(self._read(struct.unpack(">I", start)[0] - 4)))
            start = self._read(4)

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more: bytes = self.request.recv(size - len(data))
            if not more:
                raise EOFError
            data += more
        return data


def copy(source: socket.socket, target: socket.socket) -> None:
    """Send on what comes, until it ends."""
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


class Relays(socketserver.ThreadingTCPServer):
    """Where a client connects to be relayed to a door."""

    daemon_threads = True

    def __init__(self, door: int) -> None:
        self.door = door
        super().__init__(("127.0.0.1", 0), Relay)


def with_empty_ids(frame: bytes) -> bytes:
    """Return a frame that came without its size, with it; of a transfer, with an empty session id."""

    def name(match: re.Match[bytes]) -> bytes:
        batch, message = match.groups()
        size = bytes([len(_EMPTY_ID) + len(message)])
        return (batch[:-1] + size if batch else b"") + _EMPTY_ID + message

    if frame[6] == _TRANSFER:
        frame = _WITHOUT_ID.sub(name, frame)
    return struct.pack(">I", 4 + len(frame)) + frame


@contextlib.contextmanager
def relayed(door: int) -> Iterator[int]:
    """Relay to a door; give the port."""
    with Relays(door) as relays:
        thread = threading.Thread(target=relays.serve_forever)
        thread.start()
        yield relays.server_address[1]
        relays.shutdown()
        thread.join()


def test_an_empty_session_id_that_arrives_is_a_session(serve: Callable[..., Served], tmp_path: Path) -> None:
    # The SDK sends the same for an empty id and for none. If it sent the id, all facts would hold.
    served = serve()
    known = _KNOWN.read_text("utf-8").splitlines()
    with relayed(served.port) as port:
        held, wrong, text = ask(port, certificates(tmp_path)[1], min(known, key=len))
    assert (held, wrong) == (set(known), set()), text
