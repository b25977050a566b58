"""Rules and values of properties as JSON has them, and back."""

from __future__ import annotations

import base64
import dataclasses
import decimal
import uuid
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from lazaretto.errors import InvalidOption
from lazaretto.model.checks import refuse_unknown, shown
from lazaretto.model.clock import iso
from lazaretto.model.filters.rules import (
    CorrelationFilter,
    FalseFilter,
    Filter,
    Rule,
    SqlAction,
    SqlFilter,
    TrueFilter,
)
from lazaretto.model.spans import read_decimal, read_duration, write_duration

_FILTERS: Final[Mapping[str, type[Any]]] = {
    "true": TrueFilter,
    "false": FalseFilter,
    "correlation": CorrelationFilter,
    "sql": SqlFilter,
}
#: The fields of filters and actions that have values of properties.
_VALUES: Final = ("properties", "parameters")


def property_record(value: Any) -> Any:
    """Return a property's value so that `property_value` gives it back with its type."""
    match value:
        case datetime():
            return {"datetime": iso(value)}
        case bytes():
            return {"base64": base64.b64encode(value).decode()}
        case uuid.UUID():
            return {"uuid": str(value)}
        case decimal.Decimal():
            return {"decimal": str(value)}
        case timedelta():
            return {"duration": write_duration(value)}
    return value


def property_value(value: Any) -> Any:
    """Return the property that JSON spells so. Raises ValueError."""
    if not isinstance(value, dict):
        return value
    match list(value.items()):
        case [("base64", str(text))]:
            return base64.b64decode(text, validate=True)
        case [("uuid", str(text))]:
            return uuid.UUID(text)
        case [("datetime", str(text))]:
            return datetime.fromisoformat(text)
        case [("decimal", str(text))]:
            return read_decimal(text)
        case [("duration", str(text))]:
            return read_duration(text)
    raise ValueError(
        'expected a text, number, true, false, null, {"base64": …}, {"uuid": …}, {"datetime": …}, '
        '{"decimal": …} or {"duration": …}'
    )


def rule_record(rule: Rule) -> dict[str, Any]:
    """Return a rule so that `rule_from` gives it back."""
    action = None if rule.action is None else _fields(rule.action)
    return {"name": rule.name, "filter": filter_record(rule.filter), "action": action}


def filter_record(condition: Filter) -> dict[str, Any]:
    """Return a filter with its kind; what is not set is left out."""
    kind = type(condition).__name__.removesuffix("Filter").lower()
    return {"kind": kind} | {
        name: part for name, part in _fields(condition).items() if part not in (None, {})
    }


def rule_from(record: Mapping[str, Any]) -> Rule:
    """Return a rule from JSON. Raises InvalidOption, FilterSyntaxError."""
    refuse_unknown(record, ("name", "filter", "action"), "rules")
    action = record.get("action")
    fields: dict[str, Any] = {}
    if action is not None:
        if not isinstance(action, dict):
            raise InvalidOption(f"expected action to be an object or null, got {shown(action)}")
        fields["action"] = SqlAction(**_given(action))
    if "filter" in record:
        fields["filter"] = filter_from(record["filter"])
    if "name" in record:
        fields["name"] = record["name"]
    return Rule(**fields)


def filter_from(record: Any) -> Filter:
    """Return a filter from JSON, which names its kind. Raises InvalidOption, FilterSyntaxError."""
    kind = record.get("kind") if isinstance(record, dict) else None
    made = _FILTERS.get(kind) if isinstance(kind, str) else None
    if made is None:
        raise InvalidOption(f"expected a filter with a kind of {', '.join(_FILTERS)}, got {shown(record)}")
    filter_: Filter = made(**_given({name: value for name, value in record.items() if name != "kind"}))
    return filter_


def _fields(value: Any) -> dict[str, Any]:
    fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return {
        name: {key: property_record(one) for key, one in part.items()} if name in _VALUES else part
        for name, part in fields.items()
        if name != "written" or part
    }


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    values = dict(fields)
    for name in _VALUES:
        if isinstance(values.get(name), dict):
            try:
                values[name] = {key: property_value(one) for key, one in values[name].items()}
            except ValueError as error:
                raise InvalidOption(f"{name}: {error}") from None
    return values
