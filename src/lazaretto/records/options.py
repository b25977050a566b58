"""Options of queues, topics and rules from JSON, under the names that JSON shows them by."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from lazaretto.errors import InvalidOption
from lazaretto.filters.rules import (
    CorrelationFilter,
    FalseFilter,
    Filter,
    Rule,
    SqlAction,
    SqlFilter,
    TrueFilter,
)
from lazaretto.model.breaker import BreakerPolicy
from lazaretto.model.checks import refuse_unknown, shown
from lazaretto.model.policy import Backoff, PoisonPolicy

T = TypeVar("T")

#: Options that are objects of options themselves.
_NESTED: Final[Mapping[str, type[Any]]] = {
    "policy": PoisonPolicy,
    "dead_letter_policy": PoisonPolicy,
    "breaker": BreakerPolicy,
    "retry_cycle_delay": Backoff,
}
_FILTERS: Final[Mapping[str, type[Any]]] = {
    "true": TrueFilter,
    "false": FalseFilter,
    "correlation": CorrelationFilter,
    "sql": SqlFilter,
}


def options_from(kind: type[T], given: Mapping[str, Any]) -> T:
    """Return options from JSON. Raises InvalidOption."""
    return kind(**{name: _value(name, value, None) for name, value in given.items()})


def changes_from(kind: type[Any], given: Mapping[str, Any], current: Any) -> dict[str, Any]:
    """Return changed options; of an object within them, only what is given changes. Raises InvalidOption."""
    refuse_unknown(given, kind.__dataclass_fields__, kind.__name__)
    return {name: _value(name, value, getattr(current, name)) for name, value in given.items()}


def _value(name: str, value: Any, current: Any) -> Any:
    nested = _NESTED.get(name)
    if nested is None or not isinstance(value, dict):
        return value
    found = {key: _value(key, part, getattr(current, key, None)) for key, part in value.items()}
    refuse_unknown(found, nested.__dataclass_fields__, nested.__name__)
    return dataclasses.replace(current, **found) if isinstance(current, nested) else nested(**found)


def rule_from(given: Mapping[str, Any]) -> Rule:
    """Return a rule from JSON. Raises InvalidOption, FilterSyntaxError."""
    refuse_unknown(given, ("name", "filter", "action"), "rules")
    action = given.get("action")
    told: dict[str, Any] = {}
    if action is not None:
        if not isinstance(action, dict):
            raise InvalidOption(f"expected action to be an object or null, got {shown(action)}")
        told["action"] = SqlAction(**action)
    if "filter" in given:
        told["filter"] = filter_from(given["filter"])
    if "name" in given:
        told["name"] = given["name"]
    return Rule(**told)


def filter_from(given: Any) -> Filter:
    """Return a filter from JSON, which names its kind. Raises InvalidOption, FilterSyntaxError."""
    kind = given.get("kind") if isinstance(given, dict) else None
    made = _FILTERS.get(kind) if isinstance(kind, str) else None
    if made is None:
        raise InvalidOption(f"expected a filter with a kind of {', '.join(_FILTERS)}, got {shown(given)}")
    found: Filter = made(**{name: value for name, value in given.items() if name != "kind"})
    return found
