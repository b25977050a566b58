"""TLS at both doors, certificates and keys that are read again, and HTTPS for named hosts alone."""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trustme
from door.client import token

from lazaretto import connect
from lazaretto.serving.http import is_named


class Server:
    """`lazaretto serve` with a certificate of an authority."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = trustme.CA()
        self.give_certificate(1)
        self.give_key("first key of all")
        with connect(folder / "store.db") as broker:
            broker.create_queue("q")
        command = [
            sys.executable, "-m", "lazaretto", "serve", "--store", str(folder / "store.db"), "--json",
            "--http", "0", "--amqp", "0", "--certificate", str(folder / "server.pem"), "--log-level", "info",
            "--key-file", str(folder / "key"),
        ]  # fmt: skip
        self.log = (folder / "log").open("w+")
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env={**os.environ, "HOME": str(folder)},
        )
        assert self.process.stdout is not None
        self.told: dict[str, Any] = json.loads(self.process.stdout.readline())

    def give_certificate(self, days: int) -> None:
        until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
        made = self.authority.issue_cert("localhost", "queues.example.com", not_after=until)
        made.private_key_and_cert_chain_pem.write_to_path(self.folder / "server.pem")

    def give_key(self, key: str) -> None:
        (self.folder / "key").write_text(key)
        (self.folder / "key").chmod(0o600)

    def hang_up(self) -> None:
        """Have it read again, and wait until it has said what came of it."""
        before = (self.folder / "log").read_text().count("certificate")
        self.process.send_signal(signal.SIGHUP)
        for _ in range(1_200):
            if (self.folder / "log").read_text().count("certificate") > before:
                return
            assert self.process.poll() is None
            asyncio.run(asyncio.sleep(0.05))
        raise AssertionError("nothing was said")

    def ask(self, port: int, path: str, host: str, *lines: str) -> tuple[str, str]:
        """Return the answer\'s head, and until when the certificate holds."""
        context = ssl.create_default_context()
        self.authority.configure_trust(context)
        with (
            socket.create_connection(("127.0.0.1", port), timeout=120) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as client,
        ):
            head = [f"GET {path} HTTP/1.1", f"Host: {host}", "Connection: close", *lines, "", ""]
            client.sendall("\r\n".join(head).encode())
            came = b""
            while some := client.recv(65_536):
                came += some
            certificate = client.getpeercert()
            assert certificate is not None
            return came.partition(b"\r\n\r\n")[0].decode(), str(certificate["notAfter"])

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(120)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.log.close()


@pytest.mark.stores("sqlite")
def test_both_doors_encrypt_and_read_again_what_they_encrypt_with(tmp_path: Path) -> None:
    server = Server(tmp_path)
    try:
        http, amqp = server.told["http_port"], server.told["amqp_port"]
        assert server.told["url"].startswith("https://")
        head, until = server.ask(http, "/healthz", "localhost")
        assert head.startswith("HTTP/1.1 200")
        assert "strict-transport-security" not in head.lower()
        named, _ = server.ask(http, "/healthz", "queues.example.com")
        assert "strict-transport-security: max-age=31536000" in named.lower()
        with socket.create_connection(("127.0.0.1", http), timeout=120) as plain:
            plain.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert plain.recv(100) == b""

        def status(key: str) -> str:
            signed = token("RootManageSharedAccessKey", key, f"https://localhost:{amqp}/q")
            return server.ask(amqp, "/q", "localhost", f"Authorization: {signed}")[0].split()[1]

        assert (status("first key of all"), status("second key of all")) == ("200", "401")
        server.give_certificate(20)
        server.give_key("second key of all")
        server.hang_up()
        assert (status("first key of all"), status("second key of all")) == ("401", "200")
        _, later = server.ask(http, "/healthz", "localhost")
        assert server.ask(amqp, "/health", "localhost")[1] == later != until
        # What cannot be read leaves what is there.
        (tmp_path / "server.pem").write_text("no certificate")
        server.hang_up()
        assert server.ask(http, "/healthz", "localhost")[1] == later
    finally:
        server.end()


@pytest.mark.parametrize(
    ("host", "named"),
    [
        (b"queues.example.com", True), (b"Queues.Example.com.:8080", True), (b"localhost", False),
        (b"localhost:8080", False), (b"app.localhost", False), (b"127.0.0.1:8080", False),
        (b"[::1]:8080", False),
        (b"server", False), (b"", False),
    ],
)  # fmt: skip
def test_hosts_that_browsers_are_told_to_come_to_over_tls(host: bytes, named: bool) -> None:
    assert is_named(host) is named
