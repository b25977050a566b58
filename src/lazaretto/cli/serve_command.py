"""`lazaretto serve`: the store's queues and topics for clients of other kinds."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import importlib.util
import secrets
import signal
import threading
import urllib.parse
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple
from urllib.parse import SplitResult

import typer

from lazaretto.cli import output
from lazaretto.cli.call import CallOptions
from lazaretto.cli.command import Group
from lazaretto.cli.exits import usage
from lazaretto.cli.logs import LogOptions
from lazaretto.cli.parse import number

if TYPE_CHECKING:
    from lazaretto.door import AccessPolicy
    from lazaretto.web import Access

commands = Group()

#: The name of the policy that clients of Service Bus use unless told otherwise.
_POLICY = "RootManageSharedAccessKey"
#: Where the HTTP API is, unless told otherwise.
_PORT = 8080


@commands.command("serve")
def serve(
    call: CallOptions,
    logs: LogOptions,
    http: Annotated[
        int | None,
        typer.Option(
            "--http",
            parser=number(0, 65_535),
            metavar="PORT",
            help="Port for the HTTP API; 0 for a free one.  [default: 8080 without --amqp]",
            show_default=False,
        ),
    ] = None,
    host: Annotated[
        str,
        typer.Option(
            "--host",
            metavar="ADDRESS",
            help="Address of the HTTP API. Beyond this machine put TLS in front of it.",
        ),
    ] = "127.0.0.1",
    amqp: Annotated[
        int | None,
        typer.Option(
            "--amqp",
            parser=number(0, 65_535),
            metavar="PORT",
            help="Port for AMQP 1.0; 0 for a free one.  [default: none]",
            show_default=False,
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            metavar="FILE",
            help="File with the token that HTTP clients send.  [default: a new one, which is printed]",
            show_default=False,
        ),
    ] = None,
    no_login: Annotated[
        bool, typer.Option("--no-login", help="Let every program on this machine use the HTTP API.")
    ] = False,
    proxies: Annotated[
        list[str] | None,
        typer.Option(
            "--proxy",
            metavar="ADDRESS",
            help="Address or network of a proxy that says who asks; repeatable.  [default: none]",
            show_default=False,
        ),
    ] = None,
    user_header: Annotated[
        str, typer.Option("--user-header", metavar="HEADER", help="Header with a person's name.")
    ] = "X-Forwarded-User",
    groups_header: Annotated[
        str, typer.Option("--groups-header", metavar="HEADER", help="Header with names of groups.")
    ] = "X-Forwarded-Groups",
    origin: Annotated[
        str | None,
        typer.Option(
            "--origin",
            metavar="URL",
            help="Where browsers see the server, if a proxy is in front: https://queues.example.com.",
            show_default=False,
        ),
    ] = None,
    key_file: Annotated[
        Path | None,
        typer.Option(
            "--key-file",
            metavar="FILE",
            help="File with the key that AMQP clients sign their tokens with.  [default: none]",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Serve the console, and clients over HTTP and AMQP 1.0.

    It serves programs on this machine, until SIGTERM or Control-C, and prints where. What they send lies in
    the same queues and topics that Python sees.
    """
    if no_login and token_file is not None:
        raise usage("give --token-file or --no-login, not both")
    policies = [] if key_file is None else [_policy_of(key_file)]
    if http is None and amqp is None:
        http = _PORT
    if http is not None and importlib.util.find_spec("starlette") is None:
        raise usage("the HTTP API needs more packages: pip install 'lazaretto[serve]'")
    # Opened once to say what is wrong with the store as every command does.
    with call.broker():
        pass
    door = None
    if http is not None:
        named = (proxies or [], user_header, groups_header)
        if host in ("0.0.0.0", "::") and origin is None:  # noqa: S104
            raise usage(f"--host {host} needs --origin: the address under which clients see the server")
        door = HttpDoor(host, http, None if no_login else _token_of(token_file), *named, _origin_of(origin))
        door.access()
    with logs.shown():
        _run(_serve(call.url(), door, amqp, policies, call.json))


class HttpDoor(NamedTuple):
    """How the HTTP API is served, and whom it lets in. `token`: that of its owner; None: everybody's."""

    host: str
    port: int
    token: str | None
    proxies: list[str]
    user_header: str
    groups_header: str
    origin: SplitResult | None

    def access(self) -> Access:
        """Return whom the server takes for whom. Raises InvalidOption."""
        from lazaretto.web import Access, Grant, Identity, Proxies, Role

        somebody = Identity(getpass.getuser(), (Grant(Role.ADMIN),))
        own = [] if self.token is None else [(self.token, somebody)]
        proxies = Proxies(self.proxies, self.user_header, self.groups_header) if self.proxies else None
        secure = self.origin is not None and self.origin.scheme == "https"
        anonymous = somebody if self.token is None else None
        return Access(own, anonymous, proxies=proxies, secure=secure)

    def shown_host(self) -> str:
        """Return how addresses name the host where it listens."""
        if self.host in ("127.0.0.1", "0.0.0.0", "::"):  # noqa: S104
            return "localhost"
        return f"[{self.host}]" if ":" in self.host else self.host

    def host_names(self) -> list[str]:
        """Return the names under which the server is seen besides those of this machine."""
        return [] if self.origin is None else [self.origin.netloc, str(self.origin.hostname)]


def _origin_of(given: str | None) -> SplitResult | None:
    if given is None:
        return None
    found = urllib.parse.urlsplit(given.rstrip("/"))
    if found.scheme not in ("http", "https") or not found.hostname or found.path or found.query:
        raise usage(f"expected --origin to be such as https://queues.example.com, got {given!r}")
    return found


def _run(serving: Coroutine[Any, Any, None]) -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(serving)
    else:
        uvloop.run(serving)


def _token_of(file: Path | None) -> str:
    return f"lzt_{secrets.token_urlsafe(32)}" if file is None else _secret_of(file, "token")


def _secret_of(file: Path, what: str) -> str:
    try:
        found = file.read_text("utf-8").strip()
    except (OSError, ValueError) as error:
        raise usage(f"expected a file with a {what} at {str(file)!r}, got {type(error).__name__}") from None
    if not found:
        raise usage(f"expected a {what} in {str(file)!r}, got an empty file")
    return found


def _policy_of(file: Path) -> AccessPolicy:
    from lazaretto.door import AccessPolicy

    return AccessPolicy(_POLICY, _secret_of(file, "key"))


@contextlib.contextmanager
def _running_repairs(url: str) -> Iterator[None]:
    """Run repairs meanwhile, in a thread: those that are applied here, and what another process has left."""
    from lazaretto.broker import connect

    over = threading.Event()
    with connect(url, create=False) as broker:
        runner = threading.Thread(
            target=broker.run_repairs, kwargs={"until": over.is_set}, name="lazaretto-repairs"
        )
        runner.start()
        try:
            yield
        finally:
            over.set()
            runner.join()


async def _serve(
    url: str, http: HttpDoor | None, amqp: int | None, policies: list[AccessPolicy], json: bool
) -> None:
    from lazaretto import aio

    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number_ in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number_, ended.set)
    async with contextlib.AsyncExitStack() as stack:
        broker = await stack.enter_async_context(await aio.connect(url, create=False))
        stack.enter_context(_running_repairs(url))
        told: dict[str, Any] = {}
        lines: list[str] = []
        if http is not None:
            from lazaretto.cli.access_commands import login_url
            from lazaretto.commands import CreateLink
            from lazaretto.web import open_web

            serving = open_web(
                broker, http.access(), host=http.host, port=http.port, host_names=http.host_names()
            )
            port = (await stack.enter_async_context(serving)).port
            here = f"http://{http.shown_host()}:{port}"
            server = here if http.origin is None else http.origin.geturl()
            told |= {"http_port": port, "url": f"{here}/api/v1", "token": http.token}
            lines.append(f"serving the HTTP API at {here}/api/v1")
            lines.append(f"the console: {server}/")
            if http.token is not None:
                made = await broker.run(CreateLink(), actor=getpass.getuser())
                told["login_url"] = login_url(server, made["secret"])
                lines += ["send the header:", f"Authorization: Bearer {http.token}"]
                lines += ["log in within a minute, once:", told["login_url"]]
        if amqp is not None:
            from lazaretto.door import open_door

            door = await stack.enter_async_context(open_door(broker, port=amqp, policies=policies))
            key = "KEY" if policies else "any"
            line = (
                f"Endpoint=sb://localhost:{door.port};SharedAccessKeyName={_POLICY};"
                f"SharedAccessKey={key};UseDevelopmentEmulator=true;"
            )
            told |= {"amqp_port": door.port, "connection_string": line}
            lines += [f"serving AMQP 1.0 at 127.0.0.1:{door.port}; the connection string:", line]
        if json:
            output.json_line(told)
        for line in () if json else lines:
            output.line(line)
        await ended.wait()
