"""Why a rule matches a message, or does not."""

from __future__ import annotations

import dataclasses

from lazaretto.errors import FilterError
from lazaretto.filters.rules import CorrelationFilter, Rule, SqlFilter, TrueFilter, apply, equals, sql
from lazaretto.filters.values import Value
from lazaretto.filters.view import MessageView
from lazaretto.options import shown


@dataclasses.dataclass(frozen=True, slots=True)
class Judgement:
    """What a rule says of a message. `matches`: None if it cannot say, and `why` is the error then."""

    rule: str
    matches: bool | None
    why: str


def judge(rule: Rule, view: MessageView) -> Judgement:
    """Return what a rule says of a message, and by which of its properties."""
    wanted = rule.filter
    if isinstance(wanted, CorrelationFilter):
        for (scope, name), value in wanted.wanted().items():
            found = view.get(scope, name)
            if not equals(found, value):
                return Judgement(rule.name, False, f"{name} is {_told(found)}, {_told(value)} is wanted")
        return Judgement(rule.name, True, "all are equal")
    if not isinstance(wanted, SqlFilter):
        matches = isinstance(wanted, TrueFilter)
        return Judgement(rule.name, matches, "every message does" if matches else "no message does")
    try:
        truth = sql().compile_filter(wanted.expression, wanted.parameters)(view)
        if rule.action is not None and truth:
            apply(rule.action.compiled(), view, rule.name)
    except FilterError as error:
        return Judgement(rule.name, None, str(error))
    names = sql().properties_of(wanted.expression, wanted.parameters)
    values = ", ".join(
        f"{p.written} is {_told(view.get('sys' if p.system else 'user', p.name))}" for p in names
    )
    return Judgement(
        rule.name, truth is True, f"unknown: {values}" if truth is None else values or "always so"
    )


def _told(value: Value) -> str:
    return "not set" if value is None else shown(value)
