"""Explains why a rule matches a message or does not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from lazaretto.errors import FilterError
from lazaretto.model.checks import shown
from lazaretto.model.filters.rules import CorrelationFilter, Rule, SqlFilter, TrueFilter, apply, equals, sql
from lazaretto.model.filters.values import Value
from lazaretto.model.filters.view import COMPUTED, MessageView, Property


@dataclasses.dataclass(frozen=True, slots=True)
class Judgement:
    """A rule's judgement on a message. `matches`: None if it cannot say, and `why` is the error then."""

    rule: str
    matches: bool | None
    why: str


def judge_of(rule: Rule) -> Callable[[MessageView], Judgement]:
    """Return what says of messages whether a rule matches them, and by which of their properties."""
    wanted = rule.filter
    if isinstance(wanted, SqlFilter):
        return _judge_of_sql(rule, wanted)
    if isinstance(wanted, CorrelationFilter):
        pairs = list(wanted.wanted().items())

        def compare(view: MessageView) -> Judgement:
            for (scope, name), value in pairs:
                found = view.get(scope, name)
                if not equals(found, value):
                    return Judgement(rule.name, False, f"{name} is {_told(found)}, {_told(value)} is wanted")
            return Judgement(rule.name, True, "all are equal")

        return compare
    matches = isinstance(wanted, TrueFilter)
    always = Judgement(rule.name, matches, "every message does" if matches else "no message does")
    return lambda view: always


def _judge_of_sql(rule: Rule, wanted: SqlFilter) -> Callable[[MessageView], Judgement]:
    condition, properties = sql().compile_with_properties(wanted.expression, wanted.parameters)
    actions = () if rule.action is None else rule.action.compiled()

    def evaluate(view: MessageView) -> Judgement:
        try:
            truth = condition(view)
            if truth:
                apply(actions, view, rule.name)
        except FilterError as error:
            return Judgement(rule.name, None, str(error))
        values = ", ".join(f"{p.written} is {_value_of(p, view)}" for p in properties)
        why = f"unknown: {values}" if truth is None else values or "always so"
        return Judgement(rule.name, truth is True, why)

    return evaluate


def _value_of(named: Property, view: MessageView) -> str:
    return "computed" if named == COMPUTED else _told(view.value(named))


def _told(value: Value) -> str:
    return "not set" if value is None else shown(value)
