"""`lazaretto events`, `audit` and `mark`: what happened."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Annotated

from lazaretto.broker.broker import Broker
from lazaretto.cli import output
from lazaretto.cli.call import ListingOptions, limit_option
from lazaretto.cli.command import Group, argument, option
from lazaretto.cli.completion import names_of_queues
from lazaretto.cli.derived import add_change
from lazaretto.cli.exits import usage
from lazaretto.cli.output import Columns, Table
from lazaretto.cli.parse import number
from lazaretto.commands import Mark
from lazaretto.commands.opposites import LATER, entry_records
from lazaretto.engine.log import EVENT_KINDS, Event
from lazaretto.model.messages import MOST_MESSAGES
from lazaretto.model.records.plain import told_detail

commands = Group()

_PAGE = 1000
#: How long one wait for the next event lasts, in seconds; then it is asked again.
_WAIT = 60.0

_EVENT_COLUMNS: Columns = {
    "position": "position", "time": "time", "kind": "kind", "queue": "queue", "sequence": "sequence_number",
    "detail": lambda event: told_detail(event.detail),
}  # fmt: skip
#: What makes room for the detail, in this order.
_SPARE = ("position", "actor", "time")
_AUDIT_COLUMNS: Columns = {
    "position": "position", "time": "time", "actor": "actor", "action": "action", "queue": "queue",
    "detail": lambda entry: told_detail(entry.detail),
}  # fmt: skip

OnlyQueueOption = Annotated[str | None, option("Only of this queue.", "", "-q", complete=names_of_queues)]
SinceOption = Annotated[datetime | None, option("Only from this time (ISO 8601, or 2h ago).")]


@commands.command("events")
def events(
    call: ListingOptions,
    after: Annotated[int | None, option("Only after this position.", "POSITION", parser=number(0))] = None,
    since: SinceOption = None,
    last: Annotated[
        int | None, option("Show only the newest; --follow continues from there.", "NUMBER", parser=number(1))
    ] = None,
    follow: Annotated[bool, option("Keep printing new events (JSON Lines with --json).", "", "-f")] = False,
    kind: Annotated[
        str | None, option(f"Only this kind: {', '.join(EVENT_KINDS)}.", complete=lambda: list(EVENT_KINDS))
    ] = None,
    queue: OnlyQueueOption = None,
    limit: Annotated[
        int | None, limit_option("Maximum number of events: the newest, or the next after --after.")
    ] = None,
) -> None:
    """Print what happened, oldest first.

    Events are dead letters, halted queues and the like; they are kept for 30 days. To continue later,
    pass the last position with --after.
    """
    if (after is not None) + (since is not None) + (last is not None) > 1:
        raise usage("give one of --after, --since and --last")
    if limit is not None and last is not None:
        raise usage("give --limit or --last, not both")
    with call.broker() as broker:
        if since is not None:
            after = _position_before(broker, since)
        elif follow and last is None and after is None:
            after = broker.last_event()
        newest = last if follow or (after is not None and since is None) else last or limit
        if newest is not None:
            latest = _newest(broker, after or 0, kind, queue, newest)
            after = latest[0].position - 1 if latest else broker.last_event()
        if follow:
            _follow(call.wants_objects, _events(broker, after or 0, kind, queue, limit, follow=True))
        else:
            page_ = _events(broker, after or 0, kind, queue, newest or limit, follow=False)
            call.print_all(page_, _EVENT_COLUMNS, "no events", spare=_SPARE)


def _follow(objects: bool, events_: Iterator[Event]) -> None:
    listing = Table(list(_EVENT_COLUMNS), spare=_SPARE)
    for event in events_:
        if objects:
            output.json_line(event)
        else:
            listing.add(output.rows_of([event], _EVENT_COLUMNS))


def _events(
    broker: Broker, after: int, kind: str | None, queue: str | None, limit: int | None, *, follow: bool
) -> Iterator[Event]:
    rest = limit
    while rest is None or rest > 0:
        page = _PAGE if rest is None else min(_PAGE, rest)
        page_ = broker.events(after, kind=kind, queue=queue, limit=page, max_wait=_WAIT if follow else 0.0)
        yield from page_
        if page_:
            after = page_[-1].position
            rest = None if rest is None else rest - len(page_)
        elif not follow:
            return


def _newest(broker: Broker, after: int, kind: str | None, queue: str | None, most: int) -> list[Event]:
    """Return the newest events, in order of time: looks back ever farther until there are enough."""
    end = broker.last_event()
    far = _PAGE
    while True:
        start = max(after, end - far)
        newest = list(_events(broker, start, kind, queue, None, follow=False))
        if len(newest) >= most or start == after:
            return newest[-most:]
        far *= 8


def _position_before(broker: Broker, since: datetime) -> int:
    """Return the position of the last event before a time, for positions are in order of time."""
    low, high = 0, broker.last_event()
    while low < high:
        middle = (low + high) // 2
        page_ = broker.events(middle, limit=1)
        if page_ and page_[0].time < since:
            low = page_[0].position
        else:
            high = middle
    return low


@commands.command("audit")
def audit(
    call: ListingOptions,
    queue: OnlyQueueOption = None,
    limit: Annotated[int, limit_option("Maximum number of entries: the newest.", MOST_MESSAGES)] = 100,
    actor: Annotated[str | None, option("Only of this actor.", "NAME")] = None,
    action: Annotated[str | None, option("Only this action, such as update.")] = None,
    since: SinceOption = None,
    until: Annotated[datetime | None, option("Only before this time.")] = None,
    before: Annotated[
        int | None,
        option("Only below this position: the next page behind its last line.", "POSITION", parser=number(1)),
    ] = None,
) -> None:
    """Print what operators did, newest first."""
    with call.broker() as broker:
        entries = broker.audit(
            queue=queue, limit=limit, actor=actor, action=action, since=since, until=until, before=before
        )
        later = broker.audit(since=entries[0].time, limit=LATER) if entries and call.wants_objects else []
    shown = entry_records(entries, later) if call.wants_objects else entries
    call.print_all(shown, _AUDIT_COLUMNS, "nothing in the audit log", spare=_SPARE)


add_change(
    commands,
    "mark",
    Mark,
    "marked {text}",
    text="Mark this moment, such as a release.\n\n"
    "Causes of dead letters tell after which mark they came first. `lazaretto audit --action mark` lists "
    "marks.",
    parameters={"text": Annotated[str, argument("Such as 'release 42'.")]},
    result=lambda broker, fields, answer: {"text": fields["text"]},
)
