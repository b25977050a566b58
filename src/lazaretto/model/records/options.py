"""Options of queues and topics from JSON, under the names that JSON shows them by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from lazaretto.model.entity_changes import merged, parts_of

T = TypeVar("T")


def options_from(kind: type[T], given: Mapping[str, Any]) -> T:
    """Return options from JSON. Raises InvalidOption."""
    return kind(**merged(parts_of(kind, given), None))


def changes_from(kind: type[Any], given: Mapping[str, Any], current: Any) -> dict[str, Any]:
    """Return changed options; of an object within them, only what is given changes. Raises InvalidOption."""
    return merged(parts_of(kind, given), current)
