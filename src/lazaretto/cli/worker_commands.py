"""`lazaretto worker`, `claim`, `session` and `breaker`: who takes messages, and what holds them back."""

from __future__ import annotations

from typing import Annotated, Literal

from lazaretto.cli import output
from lazaretto.cli.call import (
    Call,
    CallOptions,
    Change,
    ChangeOptions,
    ListingOptions,
    QueueArgument,
    limit_option,
)
from lazaretto.cli.command import Group, argument, option
from lazaretto.cli.derived import add_change
from lazaretto.cli.output import Columns
from lazaretto.cli.parse import number
from lazaretto.commands import FreeSession, ResumeSession, RevokeClaim, SetBreaker
from lazaretto.engine.workers.list_workers import HeldMessages, Worker
from lazaretto.model.descriptions import BreakerDescription, SessionDescription

commands = Group()
workers = commands.group("worker")

#: Sequence numbers that are shown of a batch.
_SHOWN = 5

claims = commands.group("claim")

_CLAIM_COLUMNS: Columns = {
    "consumer": "consumer",
    "claim": "number",
    "state": "state",
    "messages": "rows",
    "shards": lambda claim: claim.shards or None,
    "reads": lambda claim: claim.reads or None,
    "created": "created",
    "lease until": "lease_until",
    "outcomes": lambda claim: ", ".join(f"{name} {count}" for name, count in claim.outcomes.items()),
}

sessions = commands.group("session")

SessionArgument = Annotated[str, argument("ID of the session.", "SESSION")]
_SESSION_COLUMNS: Columns = {
    "session": "session_id",
    "messages": lambda session: sum(session.messages.values()),
    "locked until": "locked_until",
    "held by": lambda session: session.held and session.held.sequence_number,
    "mode": lambda session: session.held and session.held.mode,
    "reason": lambda session: session.held and session.held.reason,
    "error": lambda session: session.held and session.held.error,
}

breakers = commands.group("breaker")


def _held(messages: HeldMessages) -> str:
    numbers = ", ".join(map(str, messages.sequence_numbers[:_SHOWN]))
    more = len(messages.sequence_numbers) - _SHOWN
    session = "" if messages.session_id is None else f" session {messages.session_id}"
    waits = "" if messages.started else " (not started)"
    shown = f"{numbers}{f' and {more} more' if more > 0 else ''}" or "no message"
    return f"{messages.queue}{session}: {shown}{waits}"


def _number(worker: Worker) -> int | str:
    count = sum(len(messages.sequence_numbers) for messages in worker.holds)
    return count if worker.complete else f"{count} or more"


def _queues(worker: Worker) -> set[str]:
    return {one.queue for one in worker.takers} | {messages.queue for messages in worker.holds}


def _takes(worker: Worker) -> str:
    """Return who takes messages in a process, each with its queues."""
    by_queue: dict[str, list[str]] = {}
    for one in worker.takers:
        by_queue.setdefault(f"{one.kind} {one.name}", []).append(one.queue)
    return "; ".join(f"{', '.join(queues)} ({who})" for who, queues in by_queue.items())


_WORKER_COLUMNS: Columns = {
    "process": "pid",
    "machine": "host_name",
    "state": lambda worker: "alive" if worker.alive else "dead",
    "takes": _takes,
    "messages": _number,
    "holds": lambda worker: "; ".join(map(_held, worker.holds)),
    "seen": "seen",
    "worker": "name",
}


@workers.command("list")
def list_workers(
    call: ListingOptions,
    queue: Annotated[str | None, option("Only workers that take or hold messages of it.")] = None,
) -> None:
    """List who takes messages, from which queues, and holds what.

    A server is among them while clients take messages through it: these are named. Up to 1,000 messages are
    told of a process, besides those that were handed to it as a service host.
    """
    with call.broker() as broker:
        records = broker.workers()
    if queue is not None:
        records = [one for one in records if queue in _queues(one)]
    call.print_all(records, _WORKER_COLUMNS, "no workers", spare=("worker", "seen", "machine"))


@claims.command("list")
def list_claims(
    call: ListingOptions,
    queue: QueueArgument,
    limit: Annotated[int, limit_option("Maximum number of rows.", 10_000)] = 100,
) -> None:
    """List the claims of a queue, newest first."""
    with call.broker() as broker:
        page = broker.claims(queue, limit=limit)
    call.print_all(page, _CLAIM_COLUMNS, "no claims", spare=("reads", "shards", "created"))


add_change(
    claims,
    "revoke",
    RevokeClaim,
    "revoked claim {number} of {consumer}",
    parameters={
        "consumer": Annotated[str, argument("Consumer that holds the claim.")],
        "number": Annotated[int, argument("Number of the claim.", "CLAIM", parser=number(1))]
    },
    result=lambda broker, fields, answer: {
        "queue": fields["path"], "consumer": fields["consumer"], "number": fields["number"],
        "state": "revoked",
    },
)  # fmt: skip


@sessions.command("list")
def list_sessions(
    call: ListingOptions,
    queue: QueueArgument,
    held: Annotated[bool, option("Only sessions held by a poison message.")] = False,
) -> None:
    """List the sessions of a queue.

    It lists sessions that have messages, a lock or a state, or are held back.
    """
    with call.broker() as broker:
        names = [h.session_id for h in broker.held_sessions(queue)] if held else broker.sessions(queue)
        records = (broker.session(queue, name) for name in names)
        empty = "no held sessions" if held else "no sessions"
        call.print_all(records, _SESSION_COLUMNS, empty, spare=("mode",))


@sessions.command("show")
def show_session(call: CallOptions, queue: QueueArgument, session: SessionArgument) -> None:
    """Show a session: messages, lock, and what holds it back."""
    with call.broker() as broker:
        description = broker.session(queue, session)

    def print_facts() -> None:
        output.line(f"session {description.session_id} of {description.queue}")
        output.fields(_facts(description), "  ")

    call.print(description, print_facts)


def _facts(description: SessionDescription) -> list[tuple[str, object]]:
    facts: list[tuple[str, object]] = [*sorted(description.messages.items())]
    facts += [
        ("locked until", description.locked_until),
        ("locked by", description.locked_by),
        ("has state", "yes" if description.has_state else "no"),
    ]
    if description.held is not None:
        hold = description.held
        error_text = f": {hold.error}" if hold.error else ""
        why = f"message {hold.sequence_number} since {output.shown_time(hold.time)}: {hold.reason}"
        facts.append(("held back by", f"{why} ({hold.mode.value}){error_text}"))
    return facts


add_change(
    sessions,
    "free",
    FreeSession,
    "freed session {session_id} of {path}",
    parameters={"session_id": SessionArgument},
)


add_change(
    sessions,
    "resume",
    ResumeSession,
    "resumed session {session_id} of {path}: {verdict}",
    parameters={
        "session_id": SessionArgument,
        "verdict": Annotated[
            Literal["retry", "move", "drop", "reject", "skip"],
            option(
                "What happens to the poison message. A blocked session takes retry, move, drop or "
                "reject; a parked one takes retry or skip."
            ),
        ],
    },
    result=lambda broker, fields, answer: broker.session(fields["path"], fields["session_id"]),
)


def _print_breaker(call: Call, queue: str, description: BreakerDescription) -> None:
    def facts() -> None:
        output.line(f"breaker of {queue}")
        output.fields(
            [
                ("status", description.status),
                ("since", description.since),
                ("error", description.error),
                ("fingerprint", description.fingerprint),
                ("next probe", description.probe_at),
            ],
            "  ",
        )

    call.print(description, facts)


def _set_breaker(call: Change, queue: str, verb: str) -> None:
    with call.broker() as broker:
        call.run(broker, SetBreaker(path=queue, verb=verb))
        description = broker.breaker(queue)
    _print_breaker(call, queue, description)


@breakers.command("show")
def show_breaker(call: CallOptions, queue: QueueArgument) -> None:
    """Show a queue's breaker and the failure that opened it."""
    with call.broker() as broker:
        description = broker.breaker(queue)
    _print_breaker(call, queue, description)


@breakers.command("pause", also="open")
def pause_breaker(call: ChangeOptions, queue: QueueArgument) -> None:
    """Pause deliveries to service hosts.

    `lazaretto breaker resume` resumes them.
    """
    _set_breaker(call, queue, "open")


@breakers.command("resume", also="auto")
def resume_breaker(
    call: ChangeOptions,
    queue: QueueArgument,
    always: Annotated[bool, option("Never open the breaker, whatever fails.")] = False,
) -> None:
    """Resume deliveries; the breaker decides by itself again."""
    _set_breaker(call, queue, "close" if always else "auto")


@breakers.command("close", hidden=True)
def close_breaker(call: ChangeOptions, queue: QueueArgument) -> None:
    """Resume deliveries and never open the breaker.

    It is the same as `lazaretto breaker resume --always`.
    """
    _set_breaker(call, queue, "close")
