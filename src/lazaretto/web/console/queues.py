"""Queues: all, one with its settings, its sessions, the rules of a subscription, and dialogs."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from lazaretto.aio import AsyncBroker
from lazaretto.engine.messages.prepare import view_of
from lazaretto.engine.outcome.dead_letter_operations import DeadLetterFilter
from lazaretto.errors import (
    FilterError,
    FilterSyntaxError,
    InvalidMessage,
    InvalidOption,
    LazarettoError,
    MessageNotFound,
)
from lazaretto.model.descriptions import QueueDescription, SessionDescription
from lazaretto.model.entities import (
    SYSTEM_DEAD_LETTER_QUEUE,
    EntityPath,
    MessageState,
    names_subscription,
)
from lazaretto.model.filters.rules import Judgement, Rule, SqlFilter, judge_of
from lazaretto.model.grants import Permission
from lazaretto.model.messages import Message, PeekedMessage, StoredMessage
from lazaretto.model.policy import UNLIMITED, Backoff, PoisonPolicy
from lazaretto.model.records.messages import values_of
from lazaretto.serving.budget import Share
from lazaretto.web.bounded import in_room, peeked
from lazaretto.web.console.bodies import ShownBody, show_body
from lazaretto.web.console.render import shown_span
from lazaretto.web.console.settings import options_shown
from lazaretto.web.console.visit import Page, Visit
from lazaretto.web.refusals import NotPermitted
from lazaretto.web.viewed import check_filter, hides, readings_of

#: Messages of a page.
MESSAGES: Final = 10
#: Those that are looked at before the clock is.
_CHUNK: Final = 100
#: Bytes of a body that a page has.
_LONGEST: Final = 1 << 20
#: Seconds after which a page tells what it has found.
_BUDGET: Final = 0.25

_QUEUES = 50
#: Queues of a chain of forwarding that a page tells.
_CHAIN = 5
#: Cycles whose delays are summed one by one.
_SUMMED = 10_000

_SESSIONS = 50

_CONVERSATIONS, _ENTRIES = 50, 200


@dataclasses.dataclass(frozen=True, slots=True)
class Peeked:
    """Messages of a queue, in order.

    `looked_at`: how many were read for them. `following`: the number to go on from; None: none is left.
    """

    messages: list[PeekedMessage]
    looked_at: int
    following: int | None


class ListedSession(NamedTuple):
    """A session with its state, if whoever asks may read it."""

    session: SessionDescription
    state: ShownBody | None


def state_of(text: str | None) -> MessageState | None:
    """Return the state that a page asks for. Raises InvalidOption."""
    if text is None:
        return None
    try:
        return MessageState(text)
    except ValueError:
        names = ", ".join(state.value for state in MessageState)
        raise InvalidOption(f"expected state to be one of {names}") from None


async def peek(
    share: Share, broker: AsyncBroker, path: str, state: MessageState | None, start: int
) -> Peeked:
    """Return the messages in a state, or all, from a sequence number on; of large ones the beginning."""
    # Those that wait for a retry have an index.
    delayed = state is MessageState.DELAYED
    entity = EntityPath.parse(path, "retry") if delayed else EntityPath.parse(path)
    rows, looked_at, end = list[PeekedMessage](), 0, time.monotonic() + _BUDGET
    while True:
        before = looked_at
        async for messages, _ in peeked(share, readings_of(broker), entity, _CHUNK, start, None):
            for message in messages:
                looked_at += 1
                start = message.sequence_number + 1
                if state is None or delayed or message.state is state:
                    rows.append(msgspec.structs.replace(message, body=message.body[:_LONGEST]))
                if len(rows) == MESSAGES:
                    return Peeked(rows, looked_at, start)
        if looked_at - before < _CHUNK:
            return Peeked(rows, looked_at, None)
        if time.monotonic() >= end:
            return Peeked(rows, looked_at, start)


async def list_queues(visit: Visit) -> Page:
    """Show queues in the order of their paths."""
    visit.require(Permission.SEE, None)
    part, after = visit.text("text"), visit.text("after")
    page = await visit.broker.queues(limit=_QUEUES, after=after, name_contains=part)
    following = page[-1].path if len(page) == _QUEUES else None
    return Page("queues.html", "queues", "Queues", {"queues": page, "text": part, "following": following})


async def show_queue(visit: Visit) -> Page:
    """Show a queue: what stands still, counts, settings, its next messages."""
    path = visit.queue()
    visit.require(Permission.SEE, path)
    broker = visit.broker
    queue = await broker.queue(path)
    sessions = await broker.held_sessions(path, limit=50) if queue.held_sessions else []
    page, state, start = None, state_of(visit.text("state")), visit.text("start") or "0"
    if visit.may(Permission.READ_BODIES, path):
        if not (start.isascii() and start.isdigit()) or len(start) > 13:
            raise InvalidOption("expected start to be a sequence number")
        page = await peek(visit.share, broker, path, state, int(start))
    values = {
        "queue": queue, "held": sessions, "breaker": await broker.breaker(path), "peeked": page,
        "bodies": [] if page is None else [show_body(one.body) for one in page.messages],
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


async def show_sessions(visit: Visit) -> Page:
    """Show the sessions of a queue by name."""
    queue, after = visit.queue(), visit.text("after")
    visit.require(Permission.SEE, queue)
    names = await visit.broker.sessions(queue, limit=_SESSIONS, after=after)
    reads = visit.may(Permission.READ_BODIES, queue) and not await hides(visit.broker, queue)
    listed: list[ListedSession] = []
    for name in names:
        try:
            session = await visit.broker.session(queue, name)
        except MessageNotFound:
            # Its last message was completed a moment ago.
            continue
        state = await visit.visits.session_state(queue, name) if reads and session.has_state else None
        listed.append(ListedSession(session, None if state is None else show_body(state)))
    values = {
        "queue": queue, "sessions": listed, "reads": reads,
        "following": names[-1] if len(names) == _SESSIONS else None,
    }  # fmt: skip
    return Page("sessions.html", "queues", f"Sessions of {queue}", values)


async def list_conversations(visit: Visit) -> Page:
    """Show conversations: those that a poison message holds first."""
    visit.require(Permission.SEE, None)
    dialogs, queue, after = visit.broker.dialogs, visit.text("queue"), visit.text("after") or ""
    state = visit.text("state")
    every = dialogs.conversations(queue=queue, state=state, after=after, limit=_CONVERSATIONS)
    page = [one async for one in every]
    waiting = []
    if not after:
        stopped = dialogs.conversations(queue=queue, state=state, held=True, limit=_CONVERSATIONS)
        waiting = [one async for one in stopped]
    values = {
        "conversations": page, "held": waiting, "queue": queue, "state": state,
        "following": page[-1].conversation if len(page) == _CONVERSATIONS else None,
    }  # fmt: skip
    return Page("dialogs.html", "queues", "Dialogs", values)


async def show_dialog(visit: Visit) -> Page:
    """Show a dialog: its ends beside each other, what happened in it, and what can be done."""
    visit.require(Permission.SEE, None)
    dialog = visit.request.path_params["dialog"]
    ends = await visit.broker.dialogs.dialog(dialog)
    entries = await visit.broker.dialogs.timeline(dialog)
    values = {
        "dialog": ends[0].dialog, "ends": ends, "entries": entries[-_ENTRIES:],
        "hidden": max(0, len(entries) - _ENTRIES),
    }  # fmt: skip
    return Page("dialog.html", "queues", f"Dialog {ends[0].dialog[:8]}", values)


#: Messages of the subscription that rules are tried on, the first ones that wait.
_MESSAGES = 100
_CONDITION = "this condition"


@dataclasses.dataclass(frozen=True, slots=True)
class Trial:
    """How many of the messages that wait a rule matches, and of how many it cannot say."""

    rule: str
    matches: int
    unknown: int
    why: str | None


async def show_rules(visit: Visit) -> Page:
    """Show a subscription's rules, and try them and a condition on messages."""
    topic, name = visit.text("topic"), visit.text("subscription")
    if topic is None or name is None:
        raise InvalidOption("expected the parameters topic and subscription")
    visit.require(Permission.SEE, topic)
    description = await visit.broker.subscription(topic, name)
    path, condition = description.queue.path, visit.text("filter")
    waiting: list[StoredMessage] = []
    if visit.may(Permission.READ_BODIES, path):
        part = await in_room(
            visit.share,
            lambda room: readings_of(visit.broker).peek(EntityPath.parse(path), _MESSAGES, 0, None, room),
        )
        waiting = list(part.messages)
    wrong, trials, judged = None, list[Trial](), list[Judgement]()
    try:
        tried = list(description.rules)
        if condition is not None:
            await check_filter(visit.broker, path, DeadLetterFilter(where=condition))
            tried.append(Rule(_CONDITION, SqlFilter(condition)))
        trials = await asyncio.to_thread(_trials, tried, waiting)
        message = _message(visit)
        if message is not None:
            judged = await asyncio.to_thread(_judged, tried, message)
    except (FilterError, FilterSyntaxError, InvalidOption, InvalidMessage, NotPermitted) as error:
        wrong = str(error)
    values = {
        "topic": topic, "name": name, "path": path, "rules": description.rules, "condition": condition,
        "waiting": len(waiting), "trials": trials, "judged": judged, "wrong": wrong,
        "subject": visit.text("subject"), "properties": visit.text("properties"), "named": _CONDITION,
    }  # fmt: skip
    return Page("rules.html", "queues", f"Rules of {path}", values)


def _message(visit: Visit) -> Message | None:
    """Return the message that the form describes; None if it describes none."""
    subject, lines = visit.text("subject"), (visit.text("properties") or "").splitlines()
    pairs = [line.partition("=") for line in lines if line.strip()]
    if subject is None and not pairs:
        return None
    if any(not name.strip() or not equals for name, equals, _ in pairs):
        raise InvalidOption("expected each property as name=value, in a line of its own")
    properties = values_of({name.strip(): value.strip() for name, _, value in pairs})
    return Message(b"", subject=subject, properties=properties)


def _trials(rules: Sequence[Rule], messages: Sequence[StoredMessage]) -> list[Trial]:
    views = []
    for message in messages:
        try:
            views.append(view_of(message))
        except LazarettoError:
            # It was sent under other limits: it could not be sent again.
            continue
    trials = []
    for rule in rules:
        judge = judge_of(rule)
        said = [judge(view) for view in views]
        unknown = [one for one in said if one.matches is None]
        why = unknown[0].why if unknown else None
        trials.append(Trial(rule.name, sum(one.matches is True for one in said), len(unknown), why))
    return trials


def _judged(rules: Sequence[Rule], message: Message) -> list[Judgement]:
    view = view_of(message)
    return [judge_of(rule)(view) for rule in rules]
