"""A PostgreSQL server for one measurement, on a Unix socket, with data in its folder."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path

from servers import ACCOUNTS, postgres_programs, unprivileged_account

from bench.servers import Server


class PostgresServer:
    """postgres as it comes: every commit synced. `address` is a connection string, `url` the same as a URL.

    Data that is there already is gone on with. `port`: where it listens on 127.0.0.1, too.
    """

    def __init__(self, home: Path, port: int | None = None) -> None:
        programs = postgres_programs()
        if programs is None:
            raise FileNotFoundError("initdb and postgres are not installed")
        base = home / "postgres"
        base.mkdir(exist_ok=True)
        # It refuses to run as root.
        account = unprivileged_account(base, ACCOUNTS)
        # The path of a Unix socket may have 107 bytes, fewer than a project's folder may need.
        self._sockets = Path(tempfile.mkdtemp(prefix="bench-"))
        if account is not None:
            entry = pwd.getpwnam(account)
            os.chown(self._sockets, entry.pw_uid, entry.pw_gid)
        self.port = port or 5_432
        self.address = f"host={self._sockets} port={self.port} user=drill dbname=postgres"
        #: The path of its Unix socket.
        self.socket = str(self._sockets / f".s.PGSQL.{self.port}")
        self.url = self.url_of("postgres")
        data = base / "data"
        try:
            if not (data / "PG_VERSION").exists():
                _initialise(programs / "initdb", data, account)
            listen = ["-h", "127.0.0.1" if port else "", "-p", str(self.port)]
            command = [str(programs / "postgres"), "-D", str(data), "-k", str(self._sockets), *listen]
            self._server = Server(command, base / "server.log", account=account)
            ready = [str(programs / "pg_isready"), "-q", "-d", self.address]
            self._server.wait_until(lambda: subprocess.run(ready, check=False).returncode == 0)
        except BaseException:
            self.stop()
            raise

    def processor_time(self) -> float:
        """Return the processor time of all its processes so far, in seconds."""
        ticks = 0
        for entry in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = entry.read_text().rpartition(")")[2].split()
            except OSError:
                # It has ended meanwhile, and its time counts for its parent.
                continue
            if int(entry.parent.name) == self._server.pid:
                ticks += sum(map(int, fields[11:15]))
            elif int(fields[1]) == self._server.pid:
                ticks += sum(map(int, fields[11:13]))
        return ticks / os.sysconf("SC_CLK_TCK")

    def url_of(self, database: str) -> str:
        """Return the URL of a database."""
        return f"postgresql://drill@/{database}?host={self._sockets}&port={self.port}"

    def stop(self) -> None:
        """End the server."""
        if hasattr(self, "_server"):
            self._server.stop()
        shutil.rmtree(self._sockets, ignore_errors=True)


def _initialise(program: Path, data: Path, account: str | None) -> None:
    command = [str(program), "-D", str(data), "-U", "drill", "-A", "trust", "-E", "UTF8", "--locale=C"]
    made = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd=data.parent,
        user=account,
        group=None if account is None else pwd.getpwnam(account).pw_gid,
        extra_groups=None if account is None else [],
    )
    if made.returncode != 0:
        raise RuntimeError(f"initdb failed: {made.stderr.strip()[-600:]}")
