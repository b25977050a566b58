"""`lazaretto events` and `lazaretto audit`: what happened, and what operators did."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from lazaretto.broker import Broker
from lazaretto.cli import output
from lazaretto.cli.call import Call, JsonOption, StoreOption
from lazaretto.cli.tables import Table
from lazaretto.engine.log import EVENT_KINDS, Event
from lazaretto.receiver import MOST_MESSAGES

_PAGE = 1000
#: How long one wait for the next event lasts, in seconds; then it is asked again.
_WAIT = 60.0

_EVENT_COLUMNS = ("position", "time", "kind", "queue", "sequence", "detail")
#: What makes room for the detail, in this order.
_SPARE = ("position", "actor", "time")
_AUDIT_COLUMNS = ("position", "time", "actor", "action", "queue", "detail")

OnlyQueueOption = Annotated[str | None, typer.Option("--queue", "-q", help="Only of this queue.")]


def events(
    context: typer.Context,
    after: Annotated[
        int | None, typer.Option("--after", min=0, help="Only after this position [0; with --follow: now].")
    ] = None,
    follow: Annotated[
        bool,
        typer.Option("--follow", help="Go on with what happens from now on; JSON is then one object a line."),
    ] = False,
    kind: Annotated[
        str | None, typer.Option("--kind", help=f"Only of this kind: {', '.join(EVENT_KINDS)}.")
    ] = None,
    queue: OnlyQueueOption = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="How many at most.")] = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Print what happened, oldest first: dead letters, halted and disabled queues, and so on.

    Events are kept for 30 days. To go on later, give the last position with --after.
    """
    call = Call.of(context, store, json)
    with call.broker() as broker:
        if follow:
            start = broker.last_event() if after is None else after
            _follow(call, _events(broker, start, kind, queue, limit, follow=True))
        else:
            found = _events(broker, after or 0, kind, queue, limit, follow=False)
            if call.json:
                output.json_array(found)
            else:
                output.table(_EVENT_COLUMNS, map(_event_row, found), "no events", spare=_SPARE)


def _follow(call: Call, found: Iterator[Event]) -> None:
    listing = Table(_EVENT_COLUMNS, spare=_SPARE)
    for event in found:
        if call.json:
            output.json_line(event)
        else:
            listing.add([_event_row(event)])


def _events(
    broker: Broker, after: int, kind: str | None, queue: str | None, limit: int | None, *, follow: bool
) -> Iterator[Event]:
    left = limit
    while left is None or left > 0:
        page = _PAGE if left is None else min(_PAGE, left)
        found = broker.events(after, kind=kind, queue=queue, limit=page, max_wait=_WAIT if follow else 0.0)
        yield from found
        if found:
            after = found[-1].position
            left = None if left is None else left - len(found)
        elif not follow:
            return


def _event_row(event: Event) -> tuple[object, ...]:
    return (
        event.position,
        output.shown_time(event.time),
        event.kind,
        event.queue,
        event.sequence_number,
        _detail(event.detail),
    )


def _detail(detail: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_shown(value)}" for name, value in detail.items() if value is not None)


def _shown(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def audit(
    context: typer.Context,
    queue: OnlyQueueOption = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=MOST_MESSAGES, help="How many at most, the latest.")
    ] = 100,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Print what operators did, the latest first: who, when, what, to which messages."""
    call = Call.of(context, store, json)
    with call.broker() as broker:
        found = broker.audit(queue=queue, limit=limit)
    if call.json:
        output.json_array(found)
        return
    rows = [
        (e.position, output.shown_time(e.time), e.actor, e.action, e.queue, _detail(e.detail)) for e in found
    ]
    output.table(_AUDIT_COLUMNS, rows, "nothing in the audit log", spare=_SPARE)


def add_to(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command("events", short_help="Print what happened, or follow it.")(events)
    app.command("audit", short_help="Print what operators did.")(audit)
