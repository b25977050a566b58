"""`lazaretto serve`: the store's queues and topics for clients of other kinds."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import getpass
import signal
import threading
from collections.abc import Coroutine, Iterator
from typing import Any

from lazaretto.cli import output
from lazaretto.cli.amqp_door import AmqpDoor, AmqpOptions
from lazaretto.cli.call import CallOptions
from lazaretto.cli.command import Group
from lazaretto.cli.exits import usage
from lazaretto.cli.http_door import PORT, HttpDoor, HttpOptions
from lazaretto.cli.logs import LogOptions

commands = Group()


@commands.command("serve")
def serve(
    call: CallOptions,
    logs: LogOptions,
    http: HttpOptions,
    amqp: AmqpOptions,
) -> None:
    """Serve the console, and clients over HTTP and AMQP 1.0.

    It serves programs on this machine, until SIGTERM or Control-C, and prints where. What they send lies in
    the same queues and topics that Python sees.
    """
    if http.http is None and amqp.amqp is None:
        http = dataclasses.replace(http, http=PORT)
    if http.read_only and amqp.amqp is not None:
        raise usage("give --read-only or --amqp, not both: clients of AMQP receive and settle")
    # Opened once to say what is wrong with the store as every command does.
    with call.broker():
        pass
    if http.http is not None:
        http.check()
    amqp.check()
    with logs.shown():
        _run(_serve(call.url(), http, amqp, call.json))


def _run(serving: Coroutine[Any, Any, None]) -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(serving)
    else:
        uvloop.run(serving)


@contextlib.contextmanager
def _running_repairs(url: str, over: threading.Event) -> Iterator[None]:
    """Run repairs until `over`, in a thread: those applied here, and what another process has left."""
    from lazaretto.broker import connect

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


async def _serve(url: str, http: HttpDoor, amqp: AmqpDoor, json: bool) -> None:
    from lazaretto import aio

    ended, over = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def end() -> None:
        # Repairs stop while clients still take their answers.
        over.set()
        ended.set()

    for number_ in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number_, end)
    async with contextlib.AsyncExitStack() as stack:
        broker = await stack.enter_async_context(await aio.connect(url, create=False))
        if not http.read_only:
            stack.enter_context(_running_repairs(url, over))
        told: dict[str, Any] = {}
        lines: list[str] = []
        if http.http is not None:
            from lazaretto.cli.access_commands import login_url
            from lazaretto.commands import CreateLink
            from lazaretto.web import open_web

            serving = open_web(
                broker, http.access(), host=http.host, port=http.http, host_names=http.host_names(),
                pages=http.pages(), prefix=http.prefix(),
            )  # fmt: skip
            port = (await stack.enter_async_context(serving)).port
            here = f"http://{http.shown_host()}:{port}{http.prefix()}"
            server = here if http.origin is None else http.origin.geturl()
            told |= {"http_port": port, "url": f"{here}/api/v1", "token": http.token}
            lines.append(f"serving the HTTP API at {here}/api/v1")
            lines.append(f"the console: {server}/")
            if http.token is not None:
                made = await broker.run(CreateLink(), actor=getpass.getuser())
                told["login_url"] = login_url(server, made["secret"])
                lines += ["send the header:", f"Authorization: Bearer {http.token}"]
                lines += ["log in within a minute, once:", told["login_url"]]
        if amqp.amqp is not None:
            from lazaretto.door import open_door

            serving_amqp = open_door(
                broker, host=amqp.amqp_host, port=amqp.amqp, policies=amqp.policies(), tls=amqp.tls(),
                insecure=amqp.insecure, tls_only=not amqp.plain, more_ports=amqp.more_ports or (),
            )  # fmt: skip
            port = (await stack.enter_async_context(serving_amqp)).port
            line = amqp.connection_string(port)
            told |= {"amqp_port": port, "connection_string": line}
            lines += [f"serving AMQP 1.0 at {amqp.amqp_host}:{port}; the connection string:", line]
        if json:
            output.json_line(told)
        for line in () if json else lines:
            output.line(line)
        await ended.wait()
