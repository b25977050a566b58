"""Filters on fields of the body: what is there, what is missing, and bodies that are no JSON."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lazaretto import FilterError, FilterSyntaxError
from lazaretto.model.filters.body import LONGEST_BODY
from lazaretto.model.filters.sql import compile_action, compile_filter
from lazaretto.model.filters.values import print_path, print_value
from lazaretto.model.filters.view import MessageView
from lazaretto.model.headers import Headers

BODY = {
    "a": 5, "b": {"c": {"d": "x"}, "in": 1}, "items": [{"sku": "S1"}, 7, [8]], "nothing": None, "yes": True,
    "text": " é ", "zip": "01234", "odd name": 1, "x]y": 2, "ratio": 1.5, "huge": 10**400, "big": 10**19,
    "A": 6, "empty": "", "none": [],
}  # fmt: skip


def view(body: bytes, /, **properties: Any) -> MessageView:
    return MessageView(Headers(properties=properties), "m", size=len(body), body=lambda: body)


MESSAGE = view(json.dumps(BODY).encode(), a=9, body="b")
TABLE: list[tuple[str, bool | str | None]] = [
    ("body.a = 5", True), ("BODY.a = 5", True), ("body.A = 6", True), ("a = 9", True),
    ("user.a = 9", True), ("body.b.c.d = 'x'", True), ("body.b.in = 1", True),
    ("body.[odd name] = 1", True), ("body.\"odd name\" = 1", True), ("body.[x]]y] = 2", True),
    ("body.items[0].sku = 'S1'", True), ("body.items[1] > 6", True), ("body.items[2][0] = 8", True),
    ("body.items[3] IS NULL", True), ("body.items.[0] IS NULL", True), ("body.yes = TRUE", True),
    ("body.ratio > body.a", False), ("body.missing = 1", None), ("body.missing <> 1", None),
    ("body.missing IS NULL", True), ("body.nothing IS NULL", True), ("body.nothing = 1", None),
    ("body.a.b IS NULL", True), ("EXISTS(body.nothing)", True), ("EXISTS(body.missing)", False),
    ("EXISTS(body.b.c)", True), ("NOT body.missing = 1", None), ("body.a IN (4, 5)", True),
    ("body.a NOT IN (4, 5)", False), ("body.b.c.d LIKE '_'", True), ("body.a + 1 = 6", True),
    ("body = 'b'", True), ("type(body.a) = 'number'", True), ("TYPE(body.b) = 'object'", True),
    ("type(body.items) = 'array'", True), ("type(body.nothing) = 'null'", True),
    ("type(body.missing) = 'null'", None), ("type(body.yes) = 'boolean'", True),
    ("type(a) = 'number'", True), ("type(sys.MessageId) = 'string'", True),
    ("length(body.items) = 3", True), ("length(body.none) < 1", True),
    ("length(body.zip) = 5", True), ("length(body.a) = 1", None),
    ("trim(body.text) <> body.text", True), ("is_ascii(body.text) = FALSE", True),
    ("is_ascii(body.zip) = TRUE", True), ("is_numeric(body.zip) = TRUE", True),
    ("is_numeric(body.a) = TRUE", None), ("is_numeric(body.empty) = FALSE", True),
    ("body.huge > 1e300", True), ("body.big > 9223372036854775807", True),
    ("body.huge + 1.0 > 0", True), ("body.items = 'x'", "error"),
    ("body.items = body.items", "error"), ("body.a = 'x'", "error"), ("body.b > 1", "error"),
    ("body.items[999999999] IS NULL", True),
]  # fmt: skip


@pytest.mark.parametrize(("text", "wanted"), TABLE)
def test_fields_of_the_body_have_their_values(text: str, wanted: bool | str | None) -> None:
    condition = compile_filter(text)
    if wanted == "error":
        with pytest.raises(FilterError):
            condition(MESSAGE)
    else:
        assert condition(MESSAGE) is wanted


@pytest.mark.parametrize(
    "text",
    ["user.a.b = 1", "sys.To[0] = 'x'", "a[0] = 1", "type(1) = 'number'", "body.a. = 1", "body.a[-1] = 1"],
)
def test_only_the_body_has_paths(text: str) -> None:
    with pytest.raises(FilterSyntaxError):
        compile_filter(text)


@pytest.mark.parametrize("text", ["SET body.a = 1", "REMOVE body.a"])
def test_an_action_cannot_change_the_body(text: str) -> None:
    with pytest.raises(FilterSyntaxError, match="cannot change the body"):
        compile_action(text)


def test_an_action_reads_the_body() -> None:
    (action,) = compile_action("SET kind = body.b.c.d")
    assert action.value is not None
    assert action.value(MESSAGE) == "x"


@pytest.mark.parametrize(
    "body",
    [
        b"", b"no JSON", b"\xff\xfe", b'{"a": 1', b"{" * 100_000, b"[" * 500_000, b'{"a":' * 100_000,
        b'{"a": "' + b"x" * LONGEST_BODY + b'"}', b"9" * 100_000, b'{"a": NaN}',
    ],
)  # fmt: skip
def test_what_is_no_json_is_unknown_and_costs_little(body: bytes) -> None:
    condition = compile_filter("body.a = 1")
    start = time.process_time()
    assert condition(view(body)) is None
    assert time.process_time() - start < 0.2


def test_the_body_is_fetched_once_and_only_if_asked_for() -> None:
    fetched = []

    def fetch() -> bytes:
        fetched.append(1)
        return b'{"a": 1, "b": 2}'

    seen = MessageView(Headers(properties={"x": 1}), "m", body=fetch)
    assert compile_filter("x = 1")(seen)
    assert fetched == []
    assert compile_filter("body.a = 1 AND body.b = 2")(seen.with_headers(seen.headers, "n"))
    assert compile_filter("body.c IS NULL")(seen)
    assert fetched == [1]


_KEYS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
_STEPS = st.one_of(_KEYS, st.integers(0, 3))
_SCALARS = st.one_of(
    st.text(st.characters(codec="utf-8"), max_size=20), st.booleans(), st.integers(-(1 << 63), (1 << 63) - 1),
    st.floats(allow_nan=False, allow_infinity=False),
)  # fmt: skip


@given(_KEYS, st.lists(_STEPS, max_size=5), _SCALARS)
@settings(max_examples=300, deadline=None)
def test_what_is_printed_is_read_back_as_it_is(first: str, rest: list[str | int], value: Any) -> None:
    path = (first, *rest)
    body: Any = value
    for step in reversed(path):
        body = {step: body} if isinstance(step, str) else [None] * step + [body]
    text = f"{print_path(path)} = {print_value(value)}"
    seen = view(json.dumps(body).encode())
    assert compile_filter(text)(seen) is True, text
    assert compile_filter(f"{print_path(path)} IN ({print_value(value)})")(seen) is True
    assert compile_filter(text)(view(b"{}")) is None


_JSON = st.recursive(
    st.one_of(st.none(), _SCALARS),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(_KEYS, inner)),
    max_leaves=8,
)
_PATHS = st.sampled_from(["body.a", "body.b.a", "body.a[0]", "body.[x y]", "sys.Size", "p"])
_CONDITIONS = st.sampled_from([
    "{0} = 1", "{0} < 'm'", "{0} IN (1, 'x')", "{0} IS NULL", "EXISTS({0})", "type({0}) = 'string'",
    "length({0}) > 0", "trim({0}) = {0}", "is_ascii({0}) = TRUE", "is_numeric({0}) = FALSE", "{0} LIKE '%a%'",
    "{0} + 1 > 0", "{0} = {0}",
])  # fmt: skip


@given(
    st.one_of(
        st.dictionaries(st.sampled_from(["a", "b", "x y"]), _JSON).map(lambda v: json.dumps(v).encode()),
        st.binary(),
    ),
    _PATHS,
    _CONDITIONS,
)
@settings(max_examples=500, deadline=None)
def test_nothing_but_a_filter_error_comes_of_any_body(body: bytes, path: str, condition: str) -> None:
    with contextlib.suppress(FilterError):
        assert compile_filter(condition.format(path))(view(body)) in (True, False, None)
