"""How queues stand, at a glance: troubles first, counts from small indexes, nothing scanned."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Final

from lazaretto.engine.entities.queues import require_queue, shown_culprit
from lazaretto.engine.outcome.breakers import describe_breaker
from lazaretto.model.breaker import BreakerStatus
from lazaretto.model.clock import MICROSECONDS, to_datetime
from lazaretto.model.entities import EntityPath, QueueStatus
from lazaretto.model.rates import ALL_QUEUES, MINUTE, NONE, Counts, Rate, Totals, series, start_of
from lazaretto.model.trouble import (
    CLIENTS_WINDOW,
    UNATTENDED,
    ClientFailures,
    Standing,
    Trouble,
    advise_for_clients,
    find_troubles,
)
from lazaretto.store.records.messages import QueueRecord
from lazaretto.store.records.overview import NO_DEAD, Dead, Waiting
from lazaretto.store.sql.transaction import Transaction

#: Queues that metrics name unless one asks for more, and the most that one can ask for.
NAMED: Final = 100
MOST_NAMED: Final = 2_000
_HOUR = 3_600_000_000
#: The hours of which dead letters are told one by one.
_HOURS = 24
#: Over how many full minutes, and the one that is not over, recent rates are taken.
_RECENT = 4


@dataclasses.dataclass(frozen=True, slots=True)
class RecentRates:
    """Rates of a queue's messages in the last five minutes, per minute.

    `growing`: whether more were sent than completed or dead-lettered.
    """

    sent: float
    completed: float
    failed: float
    dead: float
    growing: bool


@dataclasses.dataclass(frozen=True, slots=True)
class QueueGlance:
    """How a queue stands, at a glance.

    `troubles`: what is wrong, the worst first. `waiting`: messages in the queue itself, in any state;
    `exact` is False if there are more than 100: then it is an estimate that gaps make too high. `oldest`:
    when the oldest of these was sent. `dead_letters`: with those in transfer; `dead_since`: when the oldest
    cause of these began; `fingerprints`: how many they have; `died_this_hour` and `died_last_hour`: how many
    came in this and the hour before; `died_by_hour`: in each of the last 24 hours, this one last.
    `held_sessions`: sessions that a poison message holds back. `rates`: of the last five minutes. `totals`:
    since the queue was made.
    """

    path: str
    troubles: tuple[Trouble, ...]
    waiting: int
    exact: bool
    oldest: datetime | None
    dead_letters: int
    dead_since: datetime | None
    died_this_hour: int
    died_last_hour: int
    died_by_hour: tuple[int, ...]
    rates: RecentRates
    status: QueueStatus
    breaker: BreakerStatus
    held_sessions: int
    fingerprints: int
    totals: Totals

    @property
    def growing(self) -> bool:
        """Whether dead letters came in this hour."""
        return self.died_this_hour > 0


@dataclasses.dataclass(frozen=True, slots=True)
class Status:
    """How a store's queues stand, those with troubles first.

    `queues`: the page that was asked for. `total`: how many queues match; `troubled`: how many of these have
    something wrong, `severe` how many of them stand still. `totals`: of all queues, also of those that were
    deleted since. `open_claims`: claims of pipelines that are not settled.
    """

    time: datetime
    total: int
    troubled: int
    severe: int
    queues: tuple[QueueGlance, ...]
    totals: Totals
    open_claims: int


def read_status(tx: Transaction, limit: int | None, part: str) -> Status:
    """Return how queues and subscriptions stand; `part`: a text in their path, in lower case."""
    sessions, dead = tx.overview.held_sessions(), tx.overview.dead_letters()
    minute = tx.now // MINUTE - _RECENT
    unattended = tx.overview.unattended(part, minute, tx.now - UNATTENDED * 1_000_000)
    attended = tx.workers.attended() if unattended else frozenset()
    failing = _client_failures(tx)
    concerned = tx.overview.concerned([*sessions, *dead, *unattended, *failing])
    troubled = [queue for queue in concerned if part in queue.path.lower()]
    total = tx.overview.count(part)
    queue_troubles: list[tuple[QueueRecord, tuple[Trouble, ...]]] = []
    for queue in troubled:
        letters, since, _ = dead.get(queue.queue_id, NO_DEAD)
        waits = unattended.get(queue.queue_id)
        standing = Standing(
            path=queue.path,
            status=queue.status,
            updated=to_datetime(queue.updated),
            halted_by=shown_culprit(queue.halted_by),
            dead_letter_halted_by=shown_culprit(queue.dead_letter_halted_by),
            breaker=describe_breaker(queue),
            held_sessions=sessions.get(queue.queue_id, 0),
            dead_letters=letters,
            died=None if since is None else to_datetime(since),
            options=queue.options,
            waits_since=None if waits is None else to_datetime(waits),
            attended=queue.path.lower() in attended,
            client_failures=failing.get(queue.queue_id),
        )
        troubles = find_troubles(standing)
        if troubles:
            queue_troubles.append((queue, troubles))

    def urgency(one: tuple[QueueRecord, tuple[Trouble, ...]]) -> tuple[bool, int, str]:
        queue, troubles = one
        return not troubles[0].severe, -dead.get(queue.queue_id, NO_DEAD).letters, queue.path.lower()

    queue_troubles.sort(key=urgency)
    severe = sum(troubles[0].severe for _, troubles in queue_troubles)
    shown = queue_troubles[:limit]
    if limit is None or len(shown) < limit:
        ids = {queue.queue_id for queue, _ in queue_troubles}
        room = 1 << 30 if limit is None else limit - len(shown) + len(ids)
        others = [q for q in tx.overview.holders(part, room) if q.queue_id not in ids]
        shown += [(queue, ()) for queue in others[: None if limit is None else limit - len(shown)]]
    totals = tx.rates.totals([ALL_QUEUES, *(queue.queue_id for queue, _ in shown)])
    glances = tuple(_glances(tx, shown, dead, sessions, totals))
    everything = Totals(*totals.get(ALL_QUEUES, NONE))
    return Status(
        to_datetime(tx.now),
        total,
        len(queue_troubles),
        severe,
        glances,
        everything,
        tx.overview.open_claims(),
    )


def read_client_advice(tx: Transaction, path: EntityPath) -> Trouble | None:
    """Return the options that would have spared a queue what clients' failures cost it lately, if any."""
    queue = require_queue(tx, path)
    return advise_for_clients(queue.path, queue.options, _client_failures(tx).get(queue.queue_id))


def _client_failures(tx: Transaction) -> dict[int, ClientFailures]:
    failures = tx.overview.client_failures(tx.now - CLIENTS_WINDOW * MICROSECONDS)
    return {
        queue_id: ClientFailures(messages, expired, to_datetime(since))
        for queue_id, (messages, expired, since) in failures.items()
    }


def read_rates(tx: Transaction, path: EntityPath | None, span: int, limit: int) -> list[Rate]:
    """Return what happened to the messages of a queue, or of all, in the latest spans of so many minutes."""
    queue_id = ALL_QUEUES if path is None else require_queue(tx, path).queue_id
    since = start_of(tx.now, span) - (limit - 1) * span
    return series(tx.rates.of(queue_id, span, since), tx.now, span, limit)


def _recent(counts: Counts, now: int, since: int) -> RecentRates:
    minutes = now / MINUTE - since
    sent, _, completed, failed, dead = counts
    return RecentRates(
        sent=round(sent / minutes, 2),
        completed=round(completed / minutes, 2),
        failed=round(failed / minutes, 2),
        dead=round(dead / minutes, 2),
        growing=sent > completed + dead,
    )


def _glances(
    tx: Transaction,
    shown: list[tuple[QueueRecord, tuple[Trouble, ...]]],
    dead: Mapping[int, Dead],
    sessions: Mapping[int, int],
    totals: Mapping[int, Counts],
) -> Iterator[QueueGlance]:
    hour = tx.now // _HOUR
    waiting = tx.overview.waiting([queue for queue, _ in shown])
    hours = range(hour - _HOURS + 1, hour + 1)
    died = tx.overview.died([queue.queue_id for queue, _ in shown if queue.queue_id in dead], hours[0])
    first = tx.now // MINUTE - _RECENT
    rates = tx.rates.recent([queue.queue_id for queue, _ in shown], first)
    for queue, troubles in shown:
        letters, since, fingerprints = dead.get(queue.queue_id, NO_DEAD)
        stands = waiting.get(queue.queue_id, Waiting())
        by_hour = tuple(died.get((queue.queue_id, at), 0) for at in hours)
        yield QueueGlance(
            path=queue.path,
            troubles=troubles,
            waiting=stands.messages,
            exact=stands.exact,
            oldest=None if stands.oldest is None else to_datetime(stands.oldest),
            dead_letters=letters,
            dead_since=None if since is None else to_datetime(since),
            died_this_hour=by_hour[-1],
            died_last_hour=by_hour[-2],
            died_by_hour=by_hour,
            rates=_recent(rates.get(queue.queue_id, NONE), tx.now, first),
            status=queue.status,
            breaker=describe_breaker(queue).status,
            held_sessions=sessions.get(queue.queue_id, 0),
            fingerprints=fingerprints,
            totals=Totals(*totals.get(queue.queue_id, NONE)),
        )
