"""Queues: all with their counts, one with what stands still, and its settings."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

import msgspec

from lazaretto.errors import InvalidOption, LazarettoError
from lazaretto.model.descriptions import QueueDescription
from lazaretto.model.entities import (
    SYSTEM_DEAD_LETTER_QUEUE,
    EntityPath,
    MessageState,
    QueueOptions,
    names_subscription,
)
from lazaretto.model.options import Kind, Option, options_of
from lazaretto.model.permissions import Permission
from lazaretto.model.policy import UNLIMITED, Backoff, PoisonPolicy
from lazaretto.records.options import changes_from
from lazaretto.web.console.bodies import show_body
from lazaretto.web.console.peeked import MESSAGES, peek, state_of
from lazaretto.web.console.render import shown_span
from lazaretto.web.console.visit import Page, Visit

_QUEUES = 50
#: Queues of a chain of forwarding that a page tells.
_CHAIN = 5
#: Cycles whose delays are summed one by one.
_SUMMED = 10_000


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """An option as a form has it. `name`: with a point for those of the poison policy."""

    name: str
    kind: str
    value: str
    choices: tuple[str, ...]
    text: str
    fixed: bool
    optional: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """An option that a form changes."""

    name: str
    before: str
    after: str


async def list_queues(visit: Visit) -> Page:
    """Show queues in the order of their paths."""
    visit.require(Permission.SEE, None)
    part, after = visit.text("text"), visit.text("after")
    found = await visit.broker.queues(limit=_QUEUES, after=after, name_contains=part)
    following = found[-1].path if len(found) == _QUEUES else None
    return Page("queues.html", "queues", "Queues", {"queues": found, "text": part, "following": following})


async def show(visit: Visit) -> Page:
    """Show a queue: what stands still, counts, settings, its next messages."""
    path = visit.queue()
    visit.require(Permission.SEE, path)
    broker = visit.broker
    queue = await broker.queue(path)
    held = await broker.held_sessions(path, limit=50) if queue.held_sessions else []
    peeked, state, start = None, state_of(visit.text("state")), visit.text("start") or "0"
    if visit.may(Permission.READ_BODIES, path):
        if not (start.isascii() and start.isdigit()) or len(start) > 13:
            raise InvalidOption("expected start to be a sequence number")
        peeked = await peek(visit.share, broker, path, state, int(start))
    values = {
        "queue": queue, "held": held, "breaker": await broker.breaker(path), "peeked": peeked,
        "bodies": [] if peeked is None else [show_body(one.body) for one in peeked.messages],
        "state": None if state is None else state.value, "states": [one.value for one in MessageState],
        "most": MESSAGES,
        "subscription": names_subscription(EntityPath.parse(path)),
        "system": path.lower() == SYSTEM_DEAD_LETTER_QUEUE,
        "rates": await broker.rates(path, span="hour", limit=24), "settings": _settings(queue.options),
        "chain": await _chain(visit, queue), "attempts": attempts_of(queue.options.policy),
    }  # fmt: skip
    return Page("queue.html", "queues", path, values)


async def _chain(visit: Visit, queue: QueueDescription) -> list[str]:
    """Return the paths that a queue's messages are forwarded along, if they are, those after it."""
    found, to = list[str](), queue.options.forward_to
    while to is not None and len(found) < _CHAIN and to not in found:
        found.append(to)
        if not visit.may(Permission.SEE, to):
            break
        try:
            to = (await visit.broker.queue(to)).options.forward_to
        except LazarettoError:
            # It is a topic, or was deleted a moment ago.
            break
    return found


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


async def settings(visit: Visit) -> Page:
    """Show a queue's settings as a form, and what it would change."""
    path = visit.queue()
    visit.require(Permission.SEE, path)
    queue = await visit.broker.queue(path)
    shown = _settings(queue.options)
    given = {name: value for name, value in visit.request.query_params.items() if name != "queue"}
    changed = [
        Change(one.name, one.value, given[one.name].strip() or "none")
        for one in shown
        if one.name in given and not one.fixed and (given[one.name].strip() or "none") != one.value
    ]
    changes: dict[str, Any] = {}
    wrong, then = None, queue.options
    kinds = {one.name: one for one in shown}
    try:
        for one in changed:
            group, _, name = one.name.rpartition(".")
            where = changes.setdefault(group, {}) if group else changes
            where[name] = _value(kinds[one.name], one.after)
        if changes:
            then = dataclasses.replace(queue.options, **changes_from(QueueOptions, changes, queue.options))
    except InvalidOption as error:
        wrong = str(error)
    values = {
        "queue": queue, "settings": shown, "given": given, "changed": changed, "wrong": wrong,
        "now_tried": attempts_of(queue.options.policy), "attempts": attempts_of(then.policy),
        "changes": msgspec.json.encode(changes).decode(),
    }  # fmt: skip
    return Page("settings.html", "queues", f"Settings of {path}", values)


def _settings(options: QueueOptions) -> list[Setting]:
    found = [
        _setting(name, option, getattr(options, name))
        for name, option in options_of(QueueOptions).items()
        if option.check.kind is not Kind.OBJECT and name not in ("dialogs", "retention")
    ]
    return found + [
        _setting(f"policy.{name}", option, getattr(options.policy, name))
        for name, option in options_of(PoisonPolicy).items()
        if option.check.kind is not Kind.OBJECT
    ]


def _setting(name: str, option: Option, value: Any) -> Setting:
    check = option.check
    choices: tuple[str, ...] = tuple(check.choices)
    if check.kind is Kind.FLAG:
        choices = ("yes", "no")
    text = option.text.replace("`", "")
    return Setting(name, check.kind.value, _shown(value), choices, text, option.fixed, check.optional)


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, enum.Enum):
        return str(value.value)
    return f"{value:g}" if isinstance(value, float) and abs(value) < 1e6 else str(value)


def _value(setting: Setting, text: str) -> Any:
    if text == "none" and setting.optional:
        return None
    try:
        match setting.kind:
            case "flag":
                return {"yes": True, "no": False}[text]
            case "integer" | "size":
                return int(text)
            case "duration" | "share":
                return float(text)
    except (KeyError, ValueError):
        raise InvalidOption(f"expected {setting.name} to be a {setting.kind}, got {text!r}") from None
    return text
