"""Rules as they are stored: as bytes."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import msgspec

from lazaretto.model.filters.rules import (
    CompiledRules,
    CorrelationFilter,
    FalseFilter,
    Filter,
    Rule,
    SqlAction,
    SqlFilter,
    TrueFilter,
)
from lazaretto.model.filters.values import Value
from lazaretto.model.headers import Headers, decode_headers, encode_headers

#: Name, kind of filter, its text, its values, and the action's text and values, if there is one.
_Stored = tuple[str, str, str, bytes, str | None, bytes | None]
_decode = msgspec.msgpack.Decoder(list[_Stored]).decode
_decode_written = msgspec.msgpack.Decoder(dict[str, str]).decode


def encode_rules(rules: Sequence[Rule]) -> bytes:
    """Return rules as bytes."""
    return msgspec.msgpack.encode([_stored(rule) for rule in rules])


def _stored(rule: Rule) -> _Stored:
    kind, text, values = "true", "", {}
    written = {} if isinstance(rule.filter, TrueFilter | FalseFilter) else rule.filter.written
    match rule.filter:
        case FalseFilter():
            kind = "false"
        case SqlFilter(expression=expression, parameters=parameters):
            kind, text, values = "sql", expression, dict(parameters)
        case CorrelationFilter():
            system = {n: v for (scope, n), v in rule.filter.wanted().items() if scope == "sys"}
            kind, text, values = (
                "correlation",
                msgspec.json.encode(system).decode(),
                dict(rule.filter.properties),
            )
    action = rule.action
    return (
        rule.name, kind, text, _pack(values, written),
        None if action is None else action.expression,
        None if action is None else _pack(dict(action.parameters), action.written),
    )  # fmt: skip


def _pack(values: dict[str, Value], written: Mapping[str, str]) -> bytes:
    # Values are those of a message's properties, which have an encoding that keeps their kinds.
    more = msgspec.msgpack.encode(written) if written else None
    return encode_headers(Headers(properties=values, amqp=more))


def _unpack(packed: bytes) -> tuple[dict[str, Value], dict[str, str]]:
    headers = decode_headers(packed)
    return headers.properties, {} if headers.amqp is None else _decode_written(headers.amqp)


def decode_rules(stored: bytes | None) -> tuple[Rule, ...]:
    """Return the rules that `encode_rules` made bytes of."""
    return tuple(map(_restored, _decode(stored))) if stored else ()


def _restored(stored: _Stored) -> Rule:
    name, kind, text, values, action, parameters = stored
    made: Filter = TrueFilter()
    kinds, written = _unpack(values)
    if kind == "false":
        made = FalseFilter()
    elif kind == "sql":
        made = SqlFilter(text, kinds, written)
    elif kind == "correlation":
        made = CorrelationFilter(**msgspec.json.decode(text), properties=kinds, written=written)
    return Rule(name, made, None if action is None else SqlAction(action, *_unpack(parameters or b"\x80")))


@functools.lru_cache(4096)
def compiled(stored: bytes | None) -> CompiledRules:
    """Return stored rules ready to be asked."""
    return CompiledRules(decode_rules(stored))
