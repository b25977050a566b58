"""Servers of one's own: started for one measurement, with data in its folder, ended by their process ids."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from servers import ACCOUNTS, free_port, postgres_programs, unprivileged_account

from bench.processor import family_seconds

_START_SECONDS = 90.0
_STOP_SECONDS = 20.0


class Server:
    """A process that the benchmark started.

    `account`: the user it runs as, if not this one; `ending`: the signal that asks it to end.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        *,
        environment: Mapping[str, str] | None = None,
        account: str | None = None,
        ending: signal.Signals = signal.SIGTERM,
    ) -> None:
        self._log, self._ending = log, ending
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=None if environment is None else dict(environment),
                cwd=log.parent,
                **_as(account),
            )
        # Whatever goes wrong here, it is not left behind.
        atexit.register(self.stop)

    @property
    def pid(self) -> int:
        """The number of its process."""
        return self._process.pid

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """Wait until the server answers. Raises RuntimeError with the end of its log if it does not."""
        deadline = time.monotonic() + _START_SECONDS
        while not ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                tail = self._log.read_text(errors="replace")[-1_500:]
                raise RuntimeError(f"{self._process.args!r} did not start: {tail}")
            time.sleep(0.05)

    def stop(self) -> None:
        """End the process: asked first, then made to."""
        if self._process.poll() is None:
            self._process.send_signal(self._ending)
            try:
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


def _as(account: str | None) -> dict[str, Any]:
    """Return the options of a process that runs as an account."""
    if account is None:
        return {}
    return {"user": account, "group": pwd.getpwnam(account).pw_gid, "extra_groups": []}


def _short_folder() -> Path:
    # The path of a Unix socket may have 107 bytes, fewer than a project's folder may need.
    return Path(tempfile.mkdtemp(prefix="bench-"))


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
        self._sockets = _short_folder()
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
            # Whoever is still connected is not waited for.
            self._server = Server(command, base / "server.log", account=account, ending=signal.SIGINT)
            ready = [str(programs / "pg_isready"), "-q", "-d", self.address]
            self._server.wait_until(lambda: subprocess.run(ready, check=False).returncode == 0)
        except BaseException:
            self.stop()
            raise

    def processor_time(self) -> float:
        """Return the processor time of all its processes so far, in seconds."""
        return family_seconds(self._server.pid)

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
        **_as(account),
    )
    if made.returncode != 0:
        raise RuntimeError(f"initdb failed: {made.stderr.strip()[-600:]}")


class RedisServer:
    """redis-server on a Unix socket, syncing its append-only file before every answer."""

    def __init__(self, home: Path) -> None:
        self._sockets = _short_folder()
        self.address = str(self._sockets / "redis.sock")
        options = {
            "port": "0",
            "unixsocket": self.address,
            "dir": str(home),
            "daemonize": "no",
            "appendonly": "yes",
            "appendfsync": "always",
            # Snapshots and rewrites would add writes that the others do not have.
            "save": "",
            "auto-aof-rewrite-percentage": "0",
        }
        command = [redis_program() or "redis-server"]
        for key, value in options.items():
            command += [f"--{key}", value]
        self._server = Server(command, home / "redis.log")
        try:
            self._server.wait_until(Path(self.address).exists)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the server."""
        self._server.stop()
        shutil.rmtree(self._sockets, ignore_errors=True)


class RabbitmqServer:
    """rabbitmq-server with a node, a cookie, a port mapper and folders of its own, on 127.0.0.1 alone.

    `plugins`: those that it runs with. `queues`: quorum queues that it has from the start.
    """

    def __init__(self, home: Path, plugins: Sequence[str] = (), queues: Sequence[str] = ()) -> None:
        base = home / "rabbitmq"
        base.mkdir()
        account = unprivileged_account(base, ("rabbitmq", "nobody"))
        self.port, distribution, mapper = free_port(), free_port(), free_port()
        settings = f"listeners.tcp.1 = 127.0.0.1:{self.port}\nlog.file.level = warning\n"
        if queues:
            (base / "definitions.json").write_text(_definitions(queues))
            settings += f"load_definitions = {base / 'definitions.json'}\n"
        (base / "rabbitmq.conf").write_text(settings)
        (base / "enabled_plugins").write_text(f"[{','.join(plugins)}].\n")
        (base / "env.conf").write_text("")
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "LANG": "C.UTF-8",
            # Where the node keeps the cookie that it makes up.
            "HOME": str(base),
            "ERL_EPMD_PORT": str(mapper),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"bench{os.getpid()}@localhost",
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "RABBITMQ_MNESIA_BASE": str(base / "data"),
            "RABBITMQ_LOG_BASE": str(base / "log"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(base / "config"),
            "RABBITMQ_PID_FILE": str(base / "pid"),
            "RABBITMQ_CONF_ENV_FILE": str(base / "env.conf"),
            "RABBITMQ_CONFIG_FILE": str(base / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(base / "enabled_plugins"),
        }
        # A mapper of our own: the one that the node would start outlives it.
        self._mapper = Server(
            ["epmd", "-address", "127.0.0.1", "-port", str(mapper)],
            base / "epmd.log",
            environment=environment,
            account=account,
        )
        self._mapper.wait_until(lambda: _answers(mapper))
        self._server = Server(
            [rabbitmq_program() or "rabbitmq-server"],
            base / "server.log",
            environment=environment,
            account=account,
        )
        try:
            self._server.wait_until(lambda: _answers(self.port))
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the node, then its port mapper."""
        self._server.stop()
        self._mapper.stop()


def _definitions(queues: Sequence[str]) -> str:
    """Return what a node of RabbitMQ has at its first start: a user, and queues."""
    guest = {"name": "guest", "password": "guest", "tags": "administrator"}
    rights = {"user": "guest", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}
    kinds = [
        {
            "name": name,
            "vhost": "/",
            "durable": True,
            "auto_delete": False,
            "arguments": {"x-queue-type": "quorum"},
        }
        for name in queues
    ]
    return json.dumps({"users": [guest], "vhosts": [{"name": "/"}], "permissions": [rights], "queues": kinds})


class Served(NamedTuple):
    """A running `lazaretto serve`: its process, and the port that it serves."""

    process: subprocess.Popen[bytes]
    port: int

    def processor_time(self) -> float:
        """Return the seconds of processors that it has taken."""
        return family_seconds(self.process.pid)


@contextlib.contextmanager
def serving(store: Path, protocol: str, *words: str) -> Iterator[Served]:
    """Serve a store on this machine by `http` or `amqp`."""
    command = [
        sys.executable,
        "-m",
        "lazaretto",
        "serve",
        "--store",
        str(store),
        f"--{protocol}",
        "0",
        "--json",
    ]
    with subprocess.Popen([*command, *words], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield Served(process, json.loads(process.stdout.readline())[f"{protocol}_port"])
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def redis_program() -> str | None:
    """Return the path of redis-server, if it is installed."""
    return shutil.which("redis-server")


def rabbitmq_program() -> str | None:
    """Return the path of RabbitMQ's own start script, if it is installed.

    The one on the path is, in Debian, a wrapper that only knows the system's node.
    """
    for candidate in (Path("/usr/lib/rabbitmq/bin/rabbitmq-server"), shutil.which("rabbitmq-server")):
        if candidate is not None and Path(candidate).exists() and shutil.which("epmd") is not None:
            return str(candidate)
    return None


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False
