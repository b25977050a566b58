"""Later changes to queues and topics: how parts of options are merged. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from lazaretto.model.breaker import BreakerPolicy
from lazaretto.model.checks import refuse_unknown
from lazaretto.model.policy import Backoff, Growth, PoisonPolicy

#: Options that are objects of options themselves.
NESTED: Final[Mapping[str, type[Any]]] = {
    "policy": PoisonPolicy,
    "dead_letter_policy": PoisonPolicy,
    "breaker": BreakerPolicy,
    "retry_cycle_delay": Backoff,
}


class Parts(dict[str, Any]):
    """Some options of an object of options, such as a policy: the others stay as they are then.

    Of annotations: some texts by name, None for those that go.
    """


def parts_of(kind: type[Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return changes from JSON: of an object of options, only the parts given. Raises InvalidOption."""
    refuse_unknown(options, kind.__dataclass_fields__, kind.__name__)
    return {
        name: Parts(parts_of(NESTED[name], value)) if name in NESTED and isinstance(value, dict) else value
        for name, value in options.items()
    }


def merged(changes: Mapping[str, Any], current: object) -> dict[str, Any]:
    """Return changes with the parts of objects merged into those that are there. Raises InvalidOption."""
    return {
        name: _merged(name, value, getattr(current, name, None)) if isinstance(value, Parts) else value
        for name, value in changes.items()
    }


def _merged(name: str, parts: Parts, current: Any) -> Any:
    if name == "annotations":
        return {key: one for key, one in {**(current or {}), **parts}.items() if one is not None}
    kind = NESTED[name]
    if isinstance(current, kind):
        return dataclasses.replace(current, **merged(parts, current))
    if name == "retry_cycle_delay" and current is not None:
        if parts.keys() <= {"initial"}:
            return parts.get("initial", current)
        return Backoff(**{"initial": current, "growth": Growth.CONSTANT, **parts})
    if name == "dead_letter_policy" and "on_poison" in parts:
        return kind(**{"on_invalid": parts["on_poison"], **merged(parts, None)})
    return kind(**merged(parts, None))
