"""`lazaretto claim`: what consumers have claimed of a queue, and giving it back."""

from __future__ import annotations

from typing import Annotated

import typer

from lazaretto.claims import Claim
from lazaretto.cli import output
from lazaretto.cli.call import Call, JsonOption, QueueArgument, StoreOption
from lazaretto.cli.listings import print_listing, takes_listing_options

app = typer.Typer(
    help="List or revoke the claims that Spark pipelines hold on a queue.", rich_markup_mode=None
)

_COLUMNS = ("consumer", "claim", "state", "messages", "shards", "reads", "created", "lease until", "outcomes")


def _row(claim: Claim) -> tuple[object, ...]:
    return (
        claim.consumer,
        claim.number,
        claim.state,
        claim.rows,
        claim.shards or None,
        claim.reads or None,
        output.shown_time(claim.created),
        output.shown_time(claim.lease_until),
        ", ".join(f"{name} {count}" for name, count in claim.outcomes.items()),
    )


@app.command("list")
@takes_listing_options
def list_(
    context: typer.Context,
    queue: QueueArgument,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=10_000, help="Maximum number of rows.")
    ] = 100,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """List the claims of a queue, the latest first."""
    call = Call.of(context, store, json)
    with call.broker() as broker:
        found = broker.claims(queue, limit=limit)
    spare = ("reads", "shards", "created")
    print_listing(context, call, found, _COLUMNS, _row, "no claims", spare=spare)


@app.command("revoke")
def revoke(
    context: typer.Context,
    queue: QueueArgument,
    consumer: Annotated[str, typer.Argument(metavar="CONSUMER", help="Consumer that holds it.")],
    number: Annotated[int, typer.Argument(metavar="CLAIM", min=1, help="Its number.")],
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Release the messages of an open claim.

    No attempt is counted; the pipeline goes on without them.
    """
    call = Call.of(context, store, json)
    with call.broker() as broker:
        broker.revoke_claim(queue, consumer, number)
    if call.json:
        output.json_object({"queue": queue, "consumer": consumer, "number": number, "state": "revoked"})
    else:
        output.line(output.safe(f"revoked claim {number} of {consumer}"))


def add_to(program: typer.Typer) -> None:
    """Add the commands to the command line."""
    program.add_typer(app, name="claim")
