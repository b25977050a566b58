"""`lazaretto emulator`: a namespace of Service Bus on this machine, for development and tests."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from lazaretto.cli import output
from lazaretto.cli.amqp_door import AmqpDoor
from lazaretto.cli.call import JsonOption
from lazaretto.cli.command import Group, option
from lazaretto.cli.exits import usage
from lazaretto.cli.logs import LogOptions
from lazaretto.cli.parse import number

if TYPE_CHECKING:
    from lazaretto.door.emulated import EmulatedNamespace

commands = Group()

#: Where Service Bus's own emulator speaks AMQP.
_PORT: Final = 5672
#: More is no description of a namespace.
_LARGEST_FILE: Final = 16 << 20


@commands.command("emulator")
def emulator(
    logs: LogOptions,
    config: Annotated[
        Path | None, option("--config", "FILE", "Config.json of Service Bus's emulator.")
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            "--store",
            metavar="STORE",
            help="Store that keeps everything.  [default: a temporary one]",
            show_default=False,
        ),
    ] = None,
    port: Annotated[
        int, typer.Option("--port", parser=number(0, 65_535), metavar="PORT", help="Port; 0: a free one.")
    ] = _PORT,
    also: Annotated[
        list[int] | None,
        typer.Option(
            "--also",
            parser=number(1, 65_535),
            metavar="PORT",
            help="Another port for the same; repeatable.",
            show_default=False,
        ),
    ] = None,
    host: Annotated[
        str, typer.Option("--host", metavar="ADDRESS", help="Address where it is served.")
    ] = "127.0.0.1",
    certificate: Annotated[
        Path | None, option("--certificate", "FILE", "Certificate for clients that encrypt, as PEM.")
    ] = None,
    private_key: Annotated[
        Path | None, option("--private-key", "FILE", "Its key, as PEM.  [default: in the certificate's file]")
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Serve other machines too, which need no key.")
    ] = False,
    host_name: Annotated[
        list[str] | None,
        option("--host-name", "NAME", "Name of this host with a dot that is asked by; repeatable."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Serve a namespace of Service Bus, as its emulator does.

    It prints the connection string and serves until SIGTERM or Control-C. Everything is kept in a temporary
    store, and gone afterwards, unless --store names one.
    """
    door = AmqpDoor(
        amqp=port, amqp_host=host, key_file=None, certificate=certificate, private_key=private_key,
        insecure=insecure, plain=certificate is not None, more_ports=also, names_of_host=host_name,
    )  # fmt: skip
    door.check()
    wanted = None if config is None else _read(config)
    with contextlib.ExitStack() as stack, logs.shown():
        if store is None:
            # Told to end before it serves, it leaves no folder behind either.
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="lazaretto-"))
            store = f"sqlite:///{Path(folder) / 'emulator.db'}"
        _prepare(store, config, wanted)
        asyncio.run(_serve(store, door, json))


def _read(config: Path) -> EmulatedNamespace:
    from lazaretto.door.emulated import read_namespace
    from lazaretto.errors import InvalidOption

    try:
        with config.open("rb") as file:
            content = file.read(_LARGEST_FILE)
    except OSError as error:
        raise usage(f"{str(config)!r} cannot be read: {error.strerror}") from None
    try:
        found = read_namespace(content)
    except InvalidOption as error:
        raise usage(f"{config}: {error}") from None
    for place in found.ignored:
        output.notice(f"{config}: {place} is ignored")
    return found


def _prepare(store: str, config: Path | None, wanted: EmulatedNamespace | None) -> None:
    from lazaretto.broker import connect
    from lazaretto.door.provision import provision
    from lazaretto.errors import InvalidOption

    with connect(store) as broker:
        if wanted is None:
            return
        try:
            provision(broker, wanted)
        except InvalidOption as error:
            raise usage(f"{config}: {error}") from None


async def _serve(store: str, door: AmqpDoor, json: bool) -> None:
    from lazaretto import aio
    from lazaretto.door import open_door

    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number_ in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number_, ended.set)
    assert door.amqp is not None
    async with (
        await aio.connect(store, create=False) as broker,
        open_door(
            broker, host=door.amqp_host, port=door.amqp, tls=door.tls(), insecure=door.insecure,
            tls_only=False, more_ports=door.more_ports or (), host_names=door.names_of_host or (),
        ) as opened,
    ):  # fmt: skip
        line = door.connection_string(opened.port)
        if json:
            output.json_line({"port": opened.port, "connection_string": line})
        else:
            output.say(f"serving a namespace at {door.amqp_host}:{opened.port}; the connection string:")
            output.say(line)
        await ended.wait()
