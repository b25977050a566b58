"""Facts about Service Bus, asked by a program on Azure's SDK for .NET that the environment names."""

from __future__ import annotations

import os
import re
import socket
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path

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
