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
    filter_ = rule.filter
    if isinstance(filter_, SqlFilter):
        return _judge_of_sql(rule, filter_)
    if isinstance(filter_, CorrelationFilter):
        pairs = list(filter_.wanted().items())

        def compare(view: MessageView) -> Judgement:
            for (scope, name), value in pairs:
                property_value = view.get(scope, name)
                if not equals(property_value, value):
                    return Judgement(
                        rule.name, False, f"{name} is {_told(property_value)}, {_told(value)} is wanted"
                    )
            return Judgement(rule.name, True, "all are equal")

        return compare
    matches = isinstance(filter_, TrueFilter)
    always = Judgement(rule.name, matches, "every message does" if matches else "no message does")
    return lambda view: always


def _judge_of_sql(rule: Rule, filter_: SqlFilter) -> Callable[[MessageView], Judgement]:
    condition, properties = sql().compile_with_properties(filter_.expression, filter_.parameters)
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
