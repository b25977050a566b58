"""`lazaretto serve`: the store's queues and topics for clients of other kinds."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import importlib.util
import secrets
import signal
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lazaretto.cli import output
from lazaretto.cli.call import CallOptions
from lazaretto.cli.command import Group
from lazaretto.cli.exits import usage
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
    """Serve clients over HTTP and AMQP 1.0.

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
    token = None if no_login or http is None else _token_of(token_file)
    _run(_serve(call.url(), http, token, amqp, policies, call.json))


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


async def _serve(
    url: str, http: int | None, token: str | None, amqp: int | None, policies: list[AccessPolicy], json: bool
) -> None:
    from lazaretto import aio

    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number_ in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number_, ended.set)
    async with contextlib.AsyncExitStack() as stack:
        broker = await stack.enter_async_context(await aio.connect(url, create=False))
        told: dict[str, object] = {}
        lines: list[str] = []
        if http is not None:
            from lazaretto.web import open_web

            port = (await stack.enter_async_context(open_web(broker, _access_of(token), port=http))).port
            told |= {"http_port": port, "url": f"http://localhost:{port}/api/v1", "token": token}
            lines.append(f"serving the HTTP API at http://localhost:{port}/api/v1")
            lines += [] if token is None else ["send the header:", f"Authorization: Bearer {token}"]
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


def _access_of(token: str | None) -> Access:
    from lazaretto.web import Access, Grant, Identity, Role

    somebody = Identity(getpass.getuser(), (Grant(Role.ADMIN),))
    return Access(anonymous=somebody) if token is None else Access([(token, somebody)])
