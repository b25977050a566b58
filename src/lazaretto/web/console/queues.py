"""Queues: all with their counts, one with what stands still, and its settings."""

from __future__ import annotations

from lazaretto.errors import InvalidOption, LazarettoError
from lazaretto.model.descriptions import QueueDescription
from lazaretto.model.entities import (
    SYSTEM_DEAD_LETTER_QUEUE,
    EntityPath,
    MessageState,
    names_subscription,
)
from lazaretto.model.permissions import Permission
from lazaretto.model.policy import UNLIMITED, Backoff, PoisonPolicy
from lazaretto.web.console.bodies import show_body
from lazaretto.web.console.peeked import MESSAGES, peek, state_of
from lazaretto.web.console.render import shown_span
from lazaretto.web.console.settings import options_shown
from lazaretto.web.console.visit import Page, Visit

_QUEUES = 50
#: Queues of a chain of forwarding that a page tells.
_CHAIN = 5
#: Cycles whose delays are summed one by one.
_SUMMED = 10_000


async def list_queues(visit: Visit) -> Page:
    """Show queues in the order of their paths."""
    visit.require(Permission.SEE, None)
    part, after = visit.text("text"), visit.text("after")
    page = await visit.broker.queues(limit=_QUEUES, after=after, name_contains=part)
    following = page[-1].path if len(page) == _QUEUES else None
    return Page("queues.html", "queues", "Queues", {"queues": page, "text": part, "following": following})


async def show(visit: Visit) -> Page:
    """Show a queue: what stands still, counts, settings, its next messages."""
    path = visit.queue()
    visit.require(Permission.SEE, path)
    broker = visit.broker
    queue = await broker.queue(path)
    sessions = await broker.held_sessions(path, limit=50) if queue.held_sessions else []
    peeked, state, start = None, state_of(visit.text("state")), visit.text("start") or "0"
    if visit.may(Permission.READ_BODIES, path):
        if not (start.isascii() and start.isdigit()) or len(start) > 13:
            raise InvalidOption("expected start to be a sequence number")
        peeked = await peek(visit.share, broker, path, state, int(start))
    values = {
        "queue": queue, "held": sessions, "breaker": await broker.breaker(path), "peeked": peeked,
        "bodies": [] if peeked is None else [show_body(one.body) for one in peeked.messages],
        "state": None if state is None else state.value, "states": [one.value for one in MessageState],
        "most": MESSAGES,
        "subscription": names_subscription(EntityPath.parse(path)),
        "system": path.lower() == SYSTEM_DEAD_LETTER_QUEUE,
        "rates": await broker.rates(path, span="hour", limit=24), "settings": options_shown(queue.options),
        "chain": await _chain(visit, queue), "attempts": attempts_of(queue.options.policy),
        "advice": await visit.visits.client_advice(path),
    }  # fmt: skip
    return Page("queue.html", "queues", path, values)


async def _chain(visit: Visit, queue: QueueDescription) -> list[str]:
    """Return the paths that a queue's messages are forwarded along, if they are, those after it."""
    paths, to = list[str](), queue.options.forward_to
    while to is not None and len(paths) < _CHAIN and to not in paths:
        paths.append(to)
        if not visit.may(Permission.SEE, to):
            break
        try:
            to = (await visit.broker.queue(to)).options.forward_to
        except LazarettoError:
            # It is a topic, or was deleted a moment ago.
            break
    return paths


def attempts_of(policy: PoisonPolicy) -> str:
    """Return how often a message is tried at most, and over how long, in words."""
    each, cycles = policy.receive_retry_count + 1, policy.max_retry_cycles
    if policy.receive_retry_count >= UNLIMITED or cycles >= UNLIMITED:
        return "as often as it takes"
    total = each * (cycles + 1)
    if total == 1:
        return "once"
    if not cycles:
        return f"{total:,} times"
    delay = policy.retry_cycle_delay
    if isinstance(delay, Backoff):
        first = min(cycles, _SUMMED)
        waits = sum(delay.delay(number, 1.0) for number in range(1, first + 1))
        waits += (cycles - first) * delay.delay(cycles, 1.0)
    else:
        waits = cycles * delay
    return f"{total:,} times: {each:,} in each of {cycles + 1:,} cycles, over {shown_span(waits)}"
