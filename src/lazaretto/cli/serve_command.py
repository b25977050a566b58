"""`lazaretto serve`: the store's queues and topics for clients of other kinds."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import logging
import signal
import ssl
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from lazaretto.cli import output
from lazaretto.cli.amqp_door import AmqpDoor, AmqpOptions
from lazaretto.cli.call import CallOptions, LogOptions
from lazaretto.cli.command import Group
from lazaretto.cli.exits import usage
from lazaretto.cli.http_door import PORT, HttpDoor, HttpOptions
from lazaretto.cli.secret_files import SHORT_KEY, secret_of
from lazaretto.cli.served_doors import ServedDoors, noted, risks_of, short_keys
from lazaretto.errors import InvalidOption, MessageNotFound
from lazaretto.model.edits.edit import Edit
from lazaretto.tools.signals import on_loop_signal

if TYPE_CHECKING:
    from lazaretto.aio import AsyncBroker
    from lazaretto.servicebus import Door
    from lazaretto.serving.guard import Guard
    from lazaretto.web.page_options import TriedLetter

commands = Group()
_log = logging.getLogger("lazaretto.serving")


class ServedHandlers:
    """Tries letters of the store at `url`, one at a time, on handlers by the names they were given."""

    def __init__(self, url: str, handlers: Mapping[str, Any]) -> None:
        self._url, self._handlers = url, handlers
        # A sandbox is a process of its own.
        self._one = asyncio.Lock()

    def names(self, queue: str) -> Sequence[str]:
        """Return the names of handlers for the letters of a queue: functions are for any."""
        from lazaretto.host import Handler

        return [
            name
            for name, one in self._handlers.items()
            if not isinstance(one, Handler) or one.path.queue.lower() == queue.lower()
        ]

    async def try_letter(self, queue: str, number: int, name: str, edit: Edit | None) -> TriedLetter:
        """Try a dead letter on a handler. See TriedHandlers."""
        if name not in self.names(queue):
            raise InvalidOption(f"expected a handler that the server was started with, got {name!r}")
        async with self._one:
            return await asyncio.to_thread(self._try, queue, number, name, edit)

    def _try(self, queue: str, number: int, name: str, edit: Edit | None) -> TriedLetter:
        from lazaretto.broker.broker import connect
        from lazaretto.host import Handler
        from lazaretto.host.dry_run import dry_run
        from lazaretto.web.page_options import TriedLetter

        reference = self._handlers[name]
        handler = reference if isinstance(reference, Handler) else Handler(queue, reference)
        with connect(self._url, create=False) as broker:
            run = dry_run(broker, queue, number, handler, edit=edit)
        if not run.letters:
            raise MessageNotFound(f"{number} of {queue!r} is no dead letter any more")
        failure = run.failures[0] if run.failures else None
        return TriedLetter(
            error_type=None if failure is None else failure.error_type or "failure",
            error_message=None if failure is None else failure.error_message,
            refused=next(iter(run.refused.values()), None),
            sends=run.sends,
            statements=run.statements,
        )


def load_handlers(names: Sequence[str]) -> dict[str, Any]:
    """Return functions and handlers by their names, such as "shop:book". Raises HandlerError."""
    from lazaretto.host import load_function

    return {name: load_function(name) for name in names}


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
    if http.also and http.http is None:
        raise usage("give --also with --http: clients of AMQP have one store")
    # Opened once to say what is wrong with a store as every command does.
    stores = []
    for url in (call.store, *(other.url for other in http.also or ())):
        with dataclasses.replace(call, store=url).broker() as broker:
            stores.append(str(broker.facts()["store_id"]))
    if http.http is not None:
        http.check()
    amqp.check()
    doors = _doors(stores, http, amqp)
    warnings = risks_of(doors).problems + short_keys(doors)
    with logs.shown(), noted(doors), http.with_token_file() as http:
        _run(_serve(call.url(), http, amqp, call.json, warnings))


def _doors(stores: list[str], http: HttpDoor, amqp: AmqpDoor) -> ServedDoors:
    over_http, over_amqp = http.http is not None, amqp.amqp is not None
    files = [http.token_file, http.oidc_secret_file] if over_http else []
    files += amqp.key_files if over_amqp else []
    files.append(amqp.private_key or amqp.certificate)
    keys = [secret_of(file, "key") for file in amqp.key_files]
    return ServedDoors(
        stores=stores,
        files=[str(file.absolute()) for file in files if file is not None],
        http_host=http.host if over_http else None,
        http_tls=amqp.encrypts and not amqp.plain,
        proxied=http.origin is not None and http.origin.scheme == "https",
        login=http.token is not None,
        amqp_host=amqp.amqp_host if over_amqp else None,
        amqp_tls=amqp.encrypts and not amqp.plain,
        keys=bool(keys),
        short_key=any(len(key) < SHORT_KEY for key in keys),
    )


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
    from lazaretto.broker.broker import connect

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


class ServedTls(NamedTuple):
    """How clients are encrypted. `only`: all of them; `named`: the certificate is no made one."""

    context: ssl.SSLContext | None
    only: bool
    named: bool

    @property
    def scheme(self) -> str:
        """How addresses begin."""
        return "https" if self.context is not None else "http"


def _read_again(amqp: AmqpDoor, context: ssl.SSLContext | None, doors: Sequence[Door]) -> None:
    """Read the certificate and the keys again. What cannot be read leaves what is there."""
    try:
        policies = amqp.policies()
        # Tried first: half of it would leave the server without any.
        amqp.tls()
        if context is not None:
            amqp.read_certificate(context)
    except Exception as error:
        _log.error("the certificate and the keys are kept as they were: %s", error)
        return
    for door in doors:
        door.keys.renew(policies)
    _log.info("the certificate and the keys were read again", extra={"event": "keys_read"})


async def _serve_http(
    stack: contextlib.AsyncExitStack,
    url: str,
    http: HttpDoor,
    port: int,
    broker: AsyncBroker,
    opened: Callable[[str], Awaitable[AsyncBroker]],
    guard: Guard,
    tls: ServedTls,
) -> tuple[dict[str, Any], list[str]]:
    """Serve HTTP until the stack closes; return what is told of it, for programs and as lines."""
    from lazaretto.web import OtherStore, open_web

    access, handlers = http.access(secure=tls.only), load_handlers(http.handlers or ())

    def tried(url: str) -> ServedHandlers | None:
        return ServedHandlers(url, handlers) if handlers else None

    others = [
        OtherStore(
            other.name,
            await opened(other.url),
            http.access(secure=tls.only),
            http.pages(other),
            tried(other.url),
        )
        for other in http.also or ()
    ]
    serving = open_web(
        broker, access, host=http.host, port=port, host_names=http.host_names(), pages=http.pages(),
        prefix=http.prefix(), others=others, handlers=tried(url), guard=guard,
        tls=tls.context, tls_only=tls.only, strict=tls.named,
    )  # fmt: skip
    port = (await stack.enter_async_context(serving)).port
    here = f"{tls.scheme}://{http.shown_host()}:{port}{http.prefix()}"
    seen = here if http.origin is None else http.origin.geturl()
    facts: dict[str, Any] = {"http_port": port, "url": f"{here}/api/v1"}
    lines: list[str] = []
    if http.token is not None:
        # First, since it is good for a minute.
        each = " for each" if others else ""
        facts |= {"login_url": await _link(broker, seen), "token_file": str(http.token_file)}
        more = {other.name: await _link(other.broker, f"{seen}/{other.name}") for other in others}
        facts |= {"login_urls": more} if more else {}
        lines += [f"log in within a minute, once{each}:", facts["login_url"], *more.values()]
    lines += [f"serving the HTTP API at {here}/api/v1", f"the console: {seen}/"]
    lines += [f"the store {other.name}: {seen}/{other.name}/" for other in others]
    if http.token is not None:
        lines.append(f"the token that programs send is in {http.token_file}")
    return facts, lines


async def _link(broker: AsyncBroker, server: str) -> str:
    from lazaretto.cli.access_commands import login_url
    from lazaretto.commands import CreateLink
    from lazaretto.engine.log import actor_name, user_name
    from lazaretto.model.actors import STORE_DOOR, Actor, NameKind

    # At the command line the same person has the longer name.
    actor = Actor.at(user_name(), "", [actor_name()], by_server=False, door=STORE_DOOR, kind=NameKind.PROCESS)
    made = await broker.run(CreateLink(), actor=actor)
    return login_url(server, made["secret"])


async def _serve(url: str, http: HttpDoor, amqp: AmqpDoor, json: bool, warnings: list[str]) -> None:
    from lazaretto import aio
    from lazaretto.serving.guard import Guard
    from lazaretto.serving.process import set_up_server

    set_up_server()
    ended, over = asyncio.Event(), threading.Event()

    def end() -> None:
        # Repairs stop while clients still take their answers.
        over.set()
        ended.set()

    for number_ in (signal.SIGINT, signal.SIGTERM):
        on_loop_signal(number_, end)
    async with contextlib.AsyncExitStack() as stack:

        async def opened(address: str) -> AsyncBroker:
            opened_broker = await stack.enter_async_context(await aio.connect(address, create=False))
            if not http.read_only:
                stack.enter_context(_running_repairs(address, over))
            return opened_broker

        broker = await opened(url)
        guard = Guard()
        context = amqp.tls()
        only, named = context is not None and not amqp.plain, amqp.certificate is not None
        tls = ServedTls(context, only=only, named=named)
        doors: list[Door] = []
        if (context is not None or amqp.key_files) and hasattr(signal, "SIGHUP"):
            on_loop_signal(signal.SIGHUP, functools.partial(_read_again, amqp, context, doors))
        facts: dict[str, Any] = {}
        lines: list[str] = []
        if http.http is not None:
            more, text = await _serve_http(stack, url, http, http.http, broker, opened, guard, tls)
            facts |= more
            lines += text
        if amqp.amqp is not None:
            from lazaretto.servicebus import open_door

            serving_amqp = open_door(
                broker, host=amqp.amqp_host, port=amqp.amqp, policies=amqp.policies(), tls=context,
                insecure=amqp.insecure, tls_only=not amqp.plain, more_ports=amqp.more_ports or (),
                host_names=amqp.names_of_host or (),
                guard=guard,
            )  # fmt: skip
            doors.append(await stack.enter_async_context(serving_amqp))
            port = doors[0].port
            line = amqp.connection_string(port)
            trusted = amqp.told()
            facts |= {"amqp_port": port, "connection_string": line} | trusted
            lines += [f"serving AMQP 1.0 at {amqp.amqp_host}:{port}; the connection string:", line]
            if trusted:
                lines.append("clients must trust {authority}, SHA-256 {fingerprint}".format(**trusted))
        for warning in warnings:
            output.notice(f"warning: {warning}")
        if json:
            output.json_line(facts)
        for line in () if json else lines:
            output.say(line)
        await ended.wait()
