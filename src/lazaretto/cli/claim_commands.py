"""`lazaretto claim`: lists and revokes the claims that pipelines hold on a queue."""

from __future__ import annotations

from typing import Annotated

import typer

from lazaretto.broker.claims import Claim
from lazaretto.cli import output
from lazaretto.cli.call import QueueArgument, limit_option
from lazaretto.cli.command import Group
from lazaretto.cli.derived import add_change
from lazaretto.cli.listings import ListingOptions
from lazaretto.cli.parse import number
from lazaretto.commands import RevokeClaim

commands = Group()
claims = commands.group("claim")

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


@claims.command("list")
def list_(
    call: ListingOptions,
    queue: QueueArgument,
    limit: Annotated[
        int,
        limit_option("Maximum number of rows.", 10_000),
    ] = 100,
) -> None:
    """List the claims of a queue, newest first."""
    with call.broker() as broker:
        page = broker.claims(queue, limit=limit)
    call.print_all(page, _COLUMNS, _row, "no claims", spare=("reads", "shards", "created"))


add_change(
    claims,
    "revoke",
    RevokeClaim,
    "revoked claim {number} of {consumer}",
    parameters={
        "consumer": (
            Annotated[str, typer.Argument(metavar="CONSUMER", help="Consumer that holds the claim.")],
            ...,
        ),
        "number": (
            Annotated[int, typer.Argument(metavar="CLAIM", parser=number(1), help="Number of the claim.")],
            ...,
        ),
    },
    result=lambda broker, fields, answer: {
        "queue": fields["path"], "consumer": fields["consumer"], "number": fields["number"],
        "state": "revoked",
    },
)  # fmt: skip
