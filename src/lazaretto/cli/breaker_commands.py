"""`lazaretto breaker`: shows, pauses and resumes a queue's breaker."""

from __future__ import annotations

from typing import Annotated

import typer

from lazaretto.cli import output
from lazaretto.cli.call import Call, CallOptions, Change, ChangeOptions, QueueArgument
from lazaretto.cli.command import Group
from lazaretto.commands import SetBreaker
from lazaretto.model.descriptions import BreakerDescription

commands = Group()
breakers = commands.group("breaker")


def _print(call: Call, queue: str, description: BreakerDescription) -> None:
    def facts() -> None:
        output.line(f"breaker of {queue}")
        output.fields(
            [
                ("status", description.status.value),
                ("since", output.shown_time(description.since)),
                ("error", description.error),
                ("fingerprint", description.fingerprint),
                ("next probe", output.shown_time(description.probe_at)),
            ],
            "  ",
        )

    call.print(description, facts)


def _set(call: Change, queue: str, verb: str) -> None:
    with call.broker() as broker:
        call.run(broker, SetBreaker(path=queue, verb=verb))
        description = broker.breaker(queue)
    _print(call, queue, description)


@breakers.command("show")
def show(call: CallOptions, queue: QueueArgument) -> None:
    """Show a queue's breaker and the failure that opened it."""
    with call.broker() as broker:
        description = broker.breaker(queue)
    _print(call, queue, description)


@breakers.command("pause", also="open")
def pause(call: ChangeOptions, queue: QueueArgument) -> None:
    """Pause deliveries to service hosts.

    `lazaretto breaker resume` resumes them.
    """
    _set(call, queue, "open")


@breakers.command("resume", also="auto")
def resume(
    call: ChangeOptions,
    queue: QueueArgument,
    always: Annotated[bool, typer.Option("--always", help="Never open the breaker, whatever fails.")] = False,
) -> None:
    """Resume deliveries; the breaker decides by itself again."""
    _set(call, queue, "close" if always else "auto")


@breakers.command("close", hidden=True)
def close(call: ChangeOptions, queue: QueueArgument) -> None:
    """Resume deliveries and never open the breaker.

    It is the same as `lazaretto breaker resume --always`.
    """
    _set(call, queue, "close")
