"""`lazaretto serve`: the store's queues and topics for clients of other kinds."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lazaretto.cli import output
from lazaretto.cli.call import CallOptions
from lazaretto.cli.command import Group
from lazaretto.cli.exits import usage
from lazaretto.cli.parse import number

if TYPE_CHECKING:
    from lazaretto.door import AccessPolicy

commands = Group()

#: The name of the policy that clients of Service Bus use unless told otherwise.
_POLICY = "RootManageSharedAccessKey"


@commands.command("serve")
def serve(
    call: CallOptions,
    amqp: Annotated[
        int,
        typer.Option(
            "--amqp", parser=number(0, 65_535), metavar="PORT", help="Port for AMQP 1.0; 0 for a free one."
        ),
    ] = 5672,
    key_file: Annotated[
        Path | None,
        typer.Option(
            "--key-file",
            metavar="FILE",
            help="File with the key that clients sign their tokens with.  [default: none]",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Serve Service Bus clients over AMQP 1.0.

    It serves programs on this machine, until SIGTERM or Control-C, and prints the connection string for their
    SDK. What they send lies in the same queues and topics that Python sees.
    """
    policies = [] if key_file is None else [_policy_of(key_file)]
    # Opened once to say what is wrong with the store as every command does.
    with call.broker():
        pass
    asyncio.run(_serve(call.url(), amqp, policies, call.json))


def _policy_of(file: Path) -> AccessPolicy:
    from lazaretto.door import AccessPolicy

    try:
        key = file.read_text("utf-8").strip()
    except (OSError, ValueError) as error:
        raise usage(f"expected a file with a key at {str(file)!r}, got {type(error).__name__}") from None
    if not key:
        raise usage(f"expected a key in {str(file)!r}, got an empty file")
    return AccessPolicy(_POLICY, key)


async def _serve(url: str, port: int, policies: list[AccessPolicy], json: bool) -> None:
    from lazaretto import aio
    from lazaretto.door import open_door

    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number_ in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number_, ended.set)
    async with (
        await aio.connect(url, create=False) as broker,
        open_door(broker, port=port, policies=policies) as door,
    ):
        key = "KEY" if policies else "any"
        line = (
            f"Endpoint=sb://localhost:{door.port};SharedAccessKeyName={_POLICY};"
            f"SharedAccessKey={key};UseDevelopmentEmulator=true;"
        )
        if json:
            output.json_line({"amqp_port": door.port, "connection_string": line})
        else:
            output.line(f"serving AMQP 1.0 at 127.0.0.1:{door.port}; the connection string:")
            output.line(line)
        await ended.wait()
