"""`lazaretto emulator`: a namespace of Service Bus on this machine, for development and tests."""

from __future__ import annotations

import asyncio
import signal
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from lazaretto.cli import output
from lazaretto.cli.amqp_door import AmqpDoor
from lazaretto.cli.call import CallOptions, JsonOption, LogOptions
from lazaretto.cli.command import Group, option
from lazaretto.cli.exits import CommandError, Exit, usage
from lazaretto.cli.parse import number
from lazaretto.model.limits import Tier
from lazaretto.tools.signals import on_loop_signal

if TYPE_CHECKING:
    from lazaretto.emulator import EmulatorOptions
    from lazaretto.emulator.template import CannedMessage, Template
    from lazaretto.servicebus.emulated import EmulatedNamespace

commands = Group()
emulators = commands.group("emulator")

#: Where Service Bus's own emulator speaks AMQP, and where it is administered.
_PORT: Final = 5672
_ADMINISTRATION: Final = 5300
#: More is no description of a namespace, and no collection of messages to begin with.
_LARGEST_FILE: Final = 16 << 20


@emulators.alone
def emulator(
    logs: LogOptions,
    config: Annotated[Path | None, option("Config.json of Service Bus's emulator.")] = None,
    messages: Annotated[
        Path | None, option("Messages to begin with, lines of JSON, each with its entity.")
    ] = None,
    store: Annotated[str | None, option("Store that keeps everything.  [default: a temporary one]")] = None,
    port: Annotated[
        int | None,
        option("Port; 0: a free one.  [default: 5672, and 5300 if that is free]", parser=number(0, 65_535)),
    ] = None,
    also: Annotated[
        list[int] | None, option("Another port for the same; repeatable.", "PORT", parser=number(1, 65_535))
    ] = None,
    host: Annotated[str, option("Address where it is served.", "ADDRESS")] = "127.0.0.1",
    key_file: Annotated[
        Path | None, option("File with the key that clients need.  [default: any key will do]")
    ] = None,
    policy: Annotated[
        list[str] | None, option("Another key, as reader:Listen:reader.key; repeatable.", "NAME:RIGHTS:FILE")
    ] = None,
    tls: Annotated[bool, option("Make and use a certificate for localhost.")] = False,
    certificate: Annotated[Path | None, option("Certificate for clients that encrypt, as PEM.")] = None,
    private_key: Annotated[
        Path | None, option("Its key, as PEM.  [default: in the certificate's file]")
    ] = None,
    insecure: Annotated[bool, option("Serve other machines too, which need no key.")] = False,
    host_name: Annotated[
        list[str] | None, option("Name of this host with a dot that is asked by; repeatable.", "NAME")
    ] = None,
    namespaces: Annotated[
        bool, option("Make a namespace of each key's name and host's label in use.")
    ] = False,
    console: Annotated[bool, option("Serve pages for people, below /$emulator/console/.")] = False,
    tier: Annotated[Tier | None, option("Tier whose limits hold.  [default: the larger]")] = None,
    json: JsonOption = False,
) -> None:
    """Serve a namespace of Service Bus, as its emulator does.

    It prints the connection string and serves until SIGTERM or Control-C. Everything is kept in a temporary
    store, and gone afterwards, unless --store names one.
    """
    door = AmqpDoor(
        amqp=_PORT if port is None else port, amqp_host=host, key_file=key_file, certificate=certificate,
        private_key=private_key, insecure=insecure, plain=tls or certificate is not None, more_ports=also,
        names_of_host=host_name, local=tls, more_policies=policy,
    )  # fmt: skip
    for name, wish in (("--namespaces", namespaces), ("--console", console)):
        if wish and door.key_files:
            raise usage(f"give {name} or keys, not both: whoever comes without a key would be let in")
    door.check()
    ports = _ports(host, port, also or ())
    entities = None if config is None else _read(config)
    canned = [] if messages is None else _read_messages(messages)
    from lazaretto.emulator import EmulatorOptions
    from lazaretto.emulator.template import Template

    with tempfile.TemporaryDirectory(prefix="lazaretto-") as folder, logs.shown():
        # Told to end before it serves, it leaves no folder behind either.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        template = Template(Path(folder), entities, canned)
        _prepare(store, config, template)
        options = EmulatorOptions(
            host=host, ports=ports, policies=door.policies(), tls=door.tls(), insecure=insecure,
            host_names=host_name or (), store=store, each_name=namespaces, console=console,
            tier=tier,
        )  # fmt: skip
        asyncio.run(_serve(template, options, door, json))


@emulators.command("export-config")
def export_config(
    call: CallOptions,
    namespace: Annotated[
        Path | None, option("File with a connection string: of that namespace, not of a store.")
    ] = None,
    authority: Annotated[Path | None, option("Authority to trust there, as PEM.")] = None,
    name: Annotated[str, option("Name of the namespace in the file.")] = "sbemulatorns",
) -> None:
    """Print the Config.json of a store or a namespace.

    A namespace of Service Bus is read through Azure's administration client, with a key that may manage it.
    What differs from Service Bus's defaults is written; keys, statuses and messages are not. A notice tells
    of each option that the file cannot have.
    """
    from lazaretto.emulator.export import config_of, entities_of_store

    if namespace is not None and call.store is not None:
        raise usage("give --namespace or --store, not both")
    if namespace is not None:
        entities = _entities_of(namespace, authority)
    else:
        with call.broker() as broker:
            entities = entities_of_store(broker)
    config = config_of(entities, name)
    for place in entities.ignored:
        output.notice(place)
    output.json_object(config)


def _entities_of(namespace: Path, authority: Path | None) -> EmulatedNamespace:
    """Return what the namespace of a connection string has. Raises CommandError."""
    from lazaretto.emulator.export import entities_of_namespace

    try:
        from azure.core.exceptions import AzureError
        from azure.servicebus.management import ServiceBusAdministrationClient
    except ImportError:
        raise usage("--namespace needs Azure's client: pip install azure-servicebus") from None
    trust = {} if authority is None else {"connection_verify": str(authority)}
    line = _content(namespace).decode("utf-8", "replace").strip()
    try:
        with ServiceBusAdministrationClient.from_connection_string(line, **trust) as client:
            return entities_of_namespace(client)
    except ValueError:
        # Its text may have the key.
        raise usage(f"{str(namespace)!r} has no connection string of a namespace") from None
    except AzureError as error:
        raise CommandError("namespace_error", f"the namespace cannot be read: {error}", Exit.FAILED) from None


def _ports(host: str, port: int | None, also: Sequence[int]) -> list[int]:
    """Return the ports to serve at: those that were asked for, or both of Service Bus's own emulator."""
    if port is not None:
        return [port, *also]
    own = [_PORT, *also]
    if _ADMINISTRATION in also:
        return own
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((host, _ADMINISTRATION))
        except OSError:
            output.notice(f"port {_ADMINISTRATION} is not free: administration is served at {_PORT} alone")
            return own
    return [_PORT, _ADMINISTRATION, *also]


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_LARGEST_FILE)
    except OSError as error:
        raise usage(f"{str(path)!r} cannot be read: {error.strerror}") from None


def _read(config: Path) -> EmulatedNamespace:
    from lazaretto.errors import InvalidOption
    from lazaretto.servicebus.emulated import read_namespace

    try:
        entities = read_namespace(_content(config))
    except InvalidOption as error:
        raise usage(f"{config}: {error}") from None
    for place in entities.ignored:
        output.notice(f"{config}: {place} is ignored")
    return entities


def _read_messages(messages: Path) -> list[CannedMessage]:
    from lazaretto.emulator.template import read_messages
    from lazaretto.errors import InvalidOption

    try:
        return read_messages(_content(messages).splitlines())
    except InvalidOption as error:
        raise usage(f"{messages}: {error}") from None


def _prepare(store: str | None, config: Path | None, template: Template) -> None:
    """Make what there is to begin with. Raises a usage error."""
    from lazaretto.broker.broker import connect
    from lazaretto.errors import InvalidOption

    try:
        if store is None:
            template.prepare()
            return
        with connect(store) as broker:
            template.furnish(broker)
    except InvalidOption as error:
        raise usage(f"{config}: {error}" if config is not None else str(error)) from None


async def _serve(template: Template, options: EmulatorOptions, door: AmqpDoor, json: bool) -> None:
    from lazaretto.emulator import open_emulator
    from lazaretto.serving.process import set_up_server

    set_up_server()
    ended = asyncio.Event()
    for number_ in (signal.SIGINT, signal.SIGTERM):
        on_loop_signal(number_, ended.set)
    async with open_emulator(template, options) as opened:
        line = door.connection_string(opened.port)
        trusted = door.told()
        address = f"{'https' if door.encrypts else 'http'}://localhost:{opened.port}"
        control = f"{address}/$emulator"
        pages = {"console": f"{control}/console/"} if options.console else {}
        ports = [opened.port, *options.ports[1:]]
        if json:
            facts = {"port": opened.port, "ports": ports, "connection_string": line, "control": control}
            output.json_line(facts | pages | trusted)
        else:
            places = ", ".join(f"{door.amqp_host}:{port}" for port in ports)
            output.say(f"serving a namespace at {places}; the connection string:")
            output.say(line)
            for address in pages.values():
                output.say(f"the console: {address}")
            if trusted:
                output.say("clients must trust {authority}, SHA-256 {fingerprint}".format(**trusted))
        await ended.wait()
