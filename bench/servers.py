"""The servers of the peers that have one: started for one measurement, ended by their process ids."""

from __future__ import annotations

import atexit
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from servers import free_port, unprivileged_account

_START_SECONDS = 90.0
_STOP_SECONDS = 20.0


class Server:
    """A process that the benchmark started. `account`: the user it runs as, if not this one."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        *,
        environment: Mapping[str, str] | None = None,
        account: str | None = None,
    ) -> None:
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=None if environment is None else dict(environment),
                cwd=log.parent,
                user=account,
                group=None if account is None else pwd.getpwnam(account).pw_gid,
                extra_groups=None if account is None else [],
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
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


class RedisServer:
    """redis-server on a Unix socket, syncing its append-only file before every answer."""

    def __init__(self, home: Path) -> None:
        # The path of a Unix socket may have 107 bytes, fewer than a project's folder may need.
        self._sockets = Path(tempfile.mkdtemp(prefix="bench-"))
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
