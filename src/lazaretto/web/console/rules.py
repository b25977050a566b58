"""The rules of a subscription, and which messages a condition would match."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence

from lazaretto.engine.messages.prepare import view_of
from lazaretto.engine.outcome.dead_letter_operations import DeadLetterFilter
from lazaretto.errors import (
    FilterError,
    FilterSyntaxError,
    InvalidMessage,
    InvalidOption,
    LazarettoError,
)
from lazaretto.model.entities import EntityPath
from lazaretto.model.filters.rules import Judgement, Rule, SqlFilter, judge_of
from lazaretto.model.grants import Permission
from lazaretto.model.messages import Message, StoredMessage
from lazaretto.model.records.messages import values_of
from lazaretto.web.bounded import in_room
from lazaretto.web.console.visit import Page, Visit
from lazaretto.web.refusals import NotPermitted
from lazaretto.web.viewed import check_filter, readings_of

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


async def show(visit: Visit) -> Page:
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
