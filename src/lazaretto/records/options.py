"""Options of queues and topics from JSON, under the names that JSON shows them by."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from lazaretto.model.breaker import BreakerPolicy
from lazaretto.model.checks import refuse_unknown
from lazaretto.model.policy import Backoff, PoisonPolicy

T = TypeVar("T")

#: Options that are objects of options themselves.
_NESTED: Final[Mapping[str, type[Any]]] = {
    "policy": PoisonPolicy,
    "dead_letter_policy": PoisonPolicy,
    "breaker": BreakerPolicy,
    "retry_cycle_delay": Backoff,
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
