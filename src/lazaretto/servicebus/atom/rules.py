"""Rules of subscriptions and of authorization as ATOM has them, each made from the other. Pure."""

from __future__ import annotations

import base64
import binascii
import decimal
import secrets
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from xml.etree.ElementTree import Element

from lazaretto.model.clock import to_datetime
from lazaretto.model.filters.rules import (
    DEFAULT_RULE,
    CorrelationFilter,
    FalseFilter,
    Filter,
    Rule,
    SqlAction,
    SqlFilter,
    TrueFilter,
)
from lazaretto.model.grants import RIGHTS, SigningRule, check_signing_rules
from lazaretto.model.sized import INT
from lazaretto.model.spans import read_decimal, read_duration, write_duration
from lazaretto.servicebus.atom.feeds import Refusal, description, element, moment, text_of, written
from lazaretto.servicebus.atom.settings import read_flag, write_flag

#: Elements of a correlation filter, by the fields that they stand for.
_FIELDS: Final = {
    "CorrelationId": "correlation_id",
    "MessageId": "message_id",
    "To": "to",
    "ReplyTo": "reply_to",
    "Label": "subject",
    "SessionId": "session_id",
    "ReplyToSessionId": "reply_to_session_id",
    "ContentType": "content_type",
}
_SCHEMA: Final = "http://www.w3.org/2001/XMLSchema"
_SERIALIZATION: Final = "http://schemas.microsoft.com/2003/10/Serialization/"
_LEVEL: Final = "<CompatibilityLevel>20</CompatibilityLevel>"
#: Kinds that XML's own schema has not.
_OF_SERIALIZATION: Final = {"guid", "duration", "char"}
#: Properties and parameters of a rule.
_MOST_VALUES: Final = 1_000
#: What XML has for numbers that have no digits, by what Python has.
#: Digits before or behind its point after which a decimal is written with an exponent.
_LONG: Final = 40
_UNBOUNDED: Final = {"inf": "INF", "-inf": "-INF", "nan": "NaN"}

_TYPE: Final = "SharedAccessAuthorizationRule"


def rule_of(description: Element, name: str = "") -> Rule:
    """Return the rule that an element describes. Raises Refusal, InvalidOption, FilterSyntaxError."""
    action = description.find("Action")
    action_ = None
    if action is not None and action.get("type") == "SqlRuleAction":
        action_ = SqlAction(text_of(action.find("SqlExpression")), *_values(action.find("Parameters")))
    elif action is not None and action.get("type") != "EmptyRuleAction":
        raise Refusal(400, f"expected an EmptyRuleAction or a SqlRuleAction, got {action.get('type')!r}")
    rule_name = name or text_of(description.find("Name")) or DEFAULT_RULE
    return Rule(rule_name, _filter_of(description.find("Filter")), action_)


def _filter_of(element: Element | None) -> Filter:
    kind = "TrueFilter" if element is None else element.get("type")
    if element is None or kind == "TrueFilter":
        return TrueFilter()
    if kind == "FalseFilter":
        return FalseFilter()
    if kind == "SqlFilter":
        return SqlFilter(text_of(element.find("SqlExpression")), *_values(element.find("Parameters")))
    if kind == "CorrelationFilter":
        fields = {ours: element.findtext(theirs) or None for theirs, ours in _FIELDS.items()}
        properties, written = _values(element.find("Properties"))
        return CorrelationFilter(**fields, properties=properties, written=written)
    raise Refusal(400, f"expected a filter of a kind that Service Bus has, got {kind!r}")


def _time(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


_READERS: Final[Mapping[str, Callable[[str], Any]]] = {
    "string": str,
    **dict.fromkeys(("byte", "unsignedByte", "short", "unsignedShort", "int", "unsignedInt"), int),
    **dict.fromkeys(("long", "unsignedLong"), int),
    **dict.fromkeys(("double", "float"), float),
    "boolean": read_flag,
    "dateTime": _time,
    "guid": uuid.UUID,
    "base64Binary": _bytes,
    "decimal": read_decimal,
    "duration": read_duration,
}


def _values(parent: Element | None) -> tuple[dict[str, Any], dict[str, str]]:
    """Return properties or parameters by name, and those that were written in another way than they are told.

    Raises Refusal.
    """
    values: dict[str, Any] = {}
    otherwise: dict[str, str] = {}
    for pair in [] if parent is None else parent:
        value = pair.find("Value")
        kind = "string" if value is None else value.get("type", "string")
        read = _READERS.get(kind)
        if read is None:
            raise Refusal(400, f"expected a value of one of {', '.join(_READERS)}, got a {kind}")
        text = "" if value is None else value.text or ""
        name = pair.findtext("Key") or ""
        try:
            values[name] = read(text)
        except (ValueError, binascii.Error):
            raise Refusal(400, f"expected a {kind}, got {text[:100]!r}") from None
        if len(values) > _MOST_VALUES:
            raise Refusal(400, f"expected at most {_MOST_VALUES} values, got more")
        if _written(values[name])[:2] != (kind, text):
            otherwise[name] = f"{kind} {text}"
    return values, otherwise


def described(rule: Rule, created: datetime) -> str:
    """Return the description of a rule in XML."""
    action = '<Action i:type="EmptyRuleAction"/>'
    if rule.action is not None:
        action = f'<Action i:type="SqlRuleAction">{_sql(rule.action.expression, rule.action)}</Action>'
    age = element("CreatedAt", moment(created))
    return description("RuleDescription", (_filter(rule.filter), action, age, element("Name", rule.name)))


def _filter(filter_: Filter) -> str:
    match filter_:
        case SqlFilter():
            inner = _sql(filter_.expression, filter_)
        case CorrelationFilter():
            fields = ((theirs, getattr(filter_, ours)) for theirs, ours in _FIELDS.items())
            inner = "".join(element(name, value) for name, value in fields if value is not None)
            inner += f"<Properties>{_pairs(filter_.properties, filter_.written)}</Properties>"
        case FalseFilter():
            inner = _sql("1=0", None)
        case TrueFilter():
            inner = _sql("1=1", None)
    return f'<Filter i:type="{type(filter_).__name__}">{inner}</Filter>'


def _sql(expression: str, part: SqlFilter | SqlAction | None) -> str:
    pairs = "" if part is None else _pairs(part.parameters, part.written)
    return f"{element('SqlExpression', expression)}{_LEVEL}<Parameters>{pairs}</Parameters>"


def _pairs(values: Mapping[str, Any], otherwise: Mapping[str, str]) -> str:
    pairs = []
    for name, value in values.items():
        kind, text, space = _written(value)
        if name in otherwise:
            kind, _, text = otherwise[name].partition(" ")
            space = _SERIALIZATION if kind in _OF_SERIALIZATION else _SCHEMA
        typed = f'<Value i:type="d6p1:{kind}" xmlns:d6p1="{space}">{written(text)}</Value>'
        pairs.append(f"<KeyValueOfstringanyType>{element('Key', name)}{typed}</KeyValueOfstringanyType>")
    return "".join(pairs)


def _written(value: Any) -> tuple[str, str, str]:
    """Return the kind of a value, its text, and the namespace of the kind."""
    match value:
        case bool():
            return "boolean", write_flag(value), _SCHEMA
        case int():
            return ("int" if value in INT else "long"), str(value), _SCHEMA
        case float():
            return "double", _UNBOUNDED.get(repr(value), repr(value)), _SCHEMA
        case datetime():
            return "dateTime", moment(value), _SCHEMA
        case uuid.UUID():
            return "guid", str(value), _SERIALIZATION
        case decimal.Decimal():
            return "decimal", f"{value:f}" if abs(value.adjusted()) < _LONG else str(value), _SCHEMA
        case timedelta():
            return "duration", write_duration(value), _SERIALIZATION
        case bytes():
            return "base64Binary", base64.b64encode(value).decode(), _SCHEMA
        case _:
            return "string", str(value), _SCHEMA


def rules_of(element: Element | None, before: Sequence[SigningRule] = ()) -> list[SigningRule] | None:
    """Return the rules in an element; None: there is no element. Raises Refusal, InvalidOption.

    A rule without keys keeps those that it has, or is given new ones.
    """
    if element is None:
        return None
    by_name = {rule.name: rule for rule in before}
    rules = [_rule(one, by_name) for one in element]
    check_signing_rules(rules)
    return rules


def _rule(element: Element, by_name: dict[str, SigningRule]) -> SigningRule:
    kind = element.get("type")
    if kind != _TYPE:
        raise Refusal(400, f"expected a {_TYPE}, got {kind!r}")
    name = text_of(element.find("KeyName"))
    rights_element = element.find("Rights")
    rights = {text_of(one) for one in (rights_element if rights_element is not None else ())}
    kept = by_name.get(name)
    return SigningRule(
        name=name,
        rights=tuple(one for one in RIGHTS if one in rights) if rights <= set(RIGHTS) else tuple(rights),
        primary=text_of(element.find("PrimaryKey")) or (_new_key() if kept is None else kept.primary),
        secondary=text_of(element.find("SecondaryKey")) or (_new_key() if kept is None else kept.secondary),
    )


def _new_key() -> str:
    return base64.b64encode(secrets.token_bytes(32)).decode()


def described_rules(rules: Sequence[SigningRule]) -> str:
    """Return rules in XML, with their keys: for who may manage the entity."""
    return f"<AuthorizationRules>{''.join(_described(rule) for rule in rules)}</AuthorizationRules>"


def _described(rule: SigningRule) -> str:
    rights = "".join(element("AccessRights", right) for right in rule.rights)
    parts = (
        element("ClaimType", "SharedAccessKey"),
        element("ClaimValue", "None"),
        f"<Rights>{rights}</Rights>",
        element("CreatedTime", moment(to_datetime(rule.created))),
        element("ModifiedTime", moment(to_datetime(rule.modified))),
        element("KeyName", rule.name),
        element("PrimaryKey", rule.primary),
        element("SecondaryKey", rule.secondary),
    )
    return f'<AuthorizationRule i:type="{_TYPE}">{"".join(parts)}</AuthorizationRule>'
