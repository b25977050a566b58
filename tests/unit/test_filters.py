"""Service Bus's SQL for filters and actions: what is true of a message, false, unknown, and an error."""

from __future__ import annotations

import math
import uuid
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lazaretto import FilterError, FilterSyntaxError, InvalidOption
from lazaretto.model.filters.rules import (
    CompiledRules,
    CorrelationFilter,
    FalseFilter,
    Rule,
    SqlAction,
    SqlFilter,
    TrueFilter,
    judge_of,
)
from lazaretto.model.filters.sql import LONGEST, compile_action, compile_filter
from lazaretto.model.filters.view import MessageView
from lazaretto.model.headers import Headers

ID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
PROPERTIES: dict[str, Any] = {
    "amount": 150, "Price": 9.5, "region": "EU", "name": "Anna's lamp", "paid": True, "open": False,
    "nothing": None, "big": (1 << 63) - 1, "least": -(1 << 63), "zero": 0, "negative": -7, "raw": b"\xff",
    "id": ID, "when": NOON, "x y": 3, "odd]name": 4, "quo\"te": 5, "percent": "50%", "under": "a_b",
    "empty": "", "lines": "one\ntwo", "Größe": 42, "and1": 1, "not_a": 2, "nan": math.nan, "like": "l",
    "cost": Decimal("12.50"), "tenth": Decimal("0.1"), "vast": Decimal("9E+6111"),
    "took": timedelta(seconds=90),
}  # fmt: skip
MESSAGE = MessageView(
    Headers(session_id="s-1", subject="order", correlation_id="c-9", to="shop", properties=PROPERTIES,
            time_to_live=60_000_000),
    "m-1",
    enqueued=1_767_268_800_000_000,
    size=512,
)  # fmt: skip
UNKNOWN = None
ERROR = "error"
PARAMETERS = {"limit": 100, "@Region": "EU", "noon": NOON, "who": ID, "none": None, "flag": True,
              "span": timedelta(minutes=1, seconds=30), "dear": Decimal("12.5")}  # fmt: skip

TABLE: list[tuple[str, bool | str | None]] = [
    # Constants and comparisons.
    ("1=1", True), ("1=2", False), ("1 <> 2", True), ("1 != 1", False), ("2 > 1", True),
    ("2 >= 2", True), ("1 < 1", False), ("1 <= 1", True), ("1.5 > 1", True), ("1.0 = 1", True),
    (".5 < 1", True), ("1e3 = 1000", True), ("1.5E-1 = 0.15", True), ("2. = 2", True),
    ("TRUE = TRUE", True), ("TRUE = FALSE", False), ("true <> False", True), ("'a' = 'a'", True),
    ("'a' = 'A'", False), ("'a' < 'b'", True), ("'B' < 'a'", True), ("'it''s' = 'it''s'", True),
    ("'' = empty", True), ("9223372036854775807 = big", True),
    ("-9223372036854775807 - 1 = least", True),
    # Decimals compare by value, whatever their digits; durations have an order.
    ("cost = 12.5", True), ("cost = @dear", True), ("cost > 12", True), ("cost < 13", True),
    ("tenth = 0.1", True), ("tenth <> 1", True), ("cost IN (12, 12.5)", True), ("cost IN (@dear)", True),
    ("amount IN (@dear)", False), ("cost + 1 = 13.5", True), ("cost * 2 = 25", True),
    ("cost + price = 22", True), ("-cost < 0", True), ("cost % 5 = 2.5", True), ("cost / 0 = 1", ERROR),
    ("vast > nan", False), ("vast * vast > 1", ERROR), ("cost = '12.5'", ERROR),
    ("TYPE(cost) = 'number'", True), ("took = @span", True), ("took >= @span", True),
    ("took > @noon", ERROR), ("took + 1 = 2", ERROR), ("TYPE(took) = 'duration'", True),
    # Properties, their names and scopes.
    ("amount = 150", True), ("AMOUNT = 150", True), ("user.amount = 150", True),
    ("USER.Amount > 149", True), ("price = 9.5", True), ("amount > price", True), ("[x y] = 3", True),
    ("\"x y\" = 3", True), ("user.[x y] = 3", True), ("[odd]]name] = 4", True),
    ("\"quo\"\"te\" = 5", True), ("Größe = 42", True), ("and1 = 1", True), ("not_a = 2", True),
    ("[like] = 'l'", True), ("[amount] = 150", True), ("sys.Label = 'order'", True),
    ("sys.Subject = 'order'", True), ("sys.subject = 'other'", False),
    ("sys.CorrelationId = 'c-9'", True), ("sys.correlation_id = 'c-9'", True), ("sys.To = 'shop'", True),
    ("sys.MessageId = 'm-1'", True), ("sys.SessionId = 's-1'", True), ("sys.ReplyTo = 'x'", UNKNOWN),
    ("sys.ReplyTo IS NULL", True), ("sys.TimeToLive = 60", True), ("sys.Size > 500", True),
    ("sys.EnqueuedTimeUtc = @noon", True), ("sys.ContentType IS NOT NULL", False),
    ("property('amount') = 150", True), ("p('AMOUNT') = 150", True), ("p('re' + 'gion') = 'EU'", True),
    ("property('missing') = 1", UNKNOWN), ("p(amount) = 1", UNKNOWN), ("property(region) = 1", UNKNOWN),
    # What is missing is unknown.
    ("missing = 1", UNKNOWN), ("missing <> 1", UNKNOWN), ("nothing = 1", UNKNOWN),
    ("missing = missing", UNKNOWN), ("missing IS NULL", True), ("missing IS NOT NULL", False),
    ("amount IS NULL", False), ("amount IS NOT NULL", True), ("nothing IS NULL", True),
    ("EXISTS(nothing)", True), ("EXISTS(amount)", True), ("exists ( missing )", False),
    ("NOT EXISTS(missing)", True), ("EXISTS(sys.Label)", True), ("EXISTS(sys.ReplyTo)", False),
    ("EXISTS(user.amount)", True), ("missing + 1 = 2", UNKNOWN), ("-missing = 1", UNKNOWN),
    ("missing LIKE 'a'", UNKNOWN), ("region LIKE missing", UNKNOWN), ("missing IN (1, 2)", UNKNOWN),
    ("missing NOT IN (1)", UNKNOWN), ("missing > 'a'", UNKNOWN),
    # Three values in AND, OR and NOT.
    ("NOT 1=1", False), ("NOT 1=2", True), ("NOT missing=1", UNKNOWN), ("NOT NOT 1=1", True),
    ("1=1 AND 1=1", True), ("1=1 AND 1=2", False), ("1=1 AND missing=1", UNKNOWN),
    ("1=2 AND missing=1", False), ("missing=1 AND 1=2", False), ("missing=1 AND missing=2", UNKNOWN),
    ("1=2 OR 1=1", True), ("1=2 OR 1=2", False), ("1=1 OR missing=1", True), ("missing=1 OR 1=1", True),
    ("1=2 OR missing=1", UNKNOWN), ("missing=1 OR missing=2", UNKNOWN), ("1=1 or 1=2 and 1=2", True),
    ("(1=1 OR 1=2) AND 1=2", False), ("NOT 1=2 AND 1=1", True), ("NOT (1=2 AND 1=1)", True),
    ("1=1 AND 2=2 AND 3=3 AND 4=5", False), ("1=2 OR 2=3 OR 3=4 OR 5=5", True), ("((((1=1))))", True),
    ("NOT (missing=1 OR 1=1)", False), ("NOT (missing=1 AND 1=2)", True),
    # Lists.
    ("region IN ('EU','US')", True), ("region IN ('US')", False), ("region NOT IN ('US')", True),
    ("amount IN (1, 150)", True), ("amount IN (150.0)", True), ("amount NOT IN (150)", False),
    ("amount IN (1, missing)", UNKNOWN), ("amount IN (150, missing)", True),
    ("amount NOT IN (1, missing)", UNKNOWN), ("amount IN (100 + 50)", True),
    ("region IN (@region)", True), ("paid IN (TRUE)", True), ("amount IN ('EU')", ERROR),
    ("amount IN (1, 'EU')", ERROR), ("amount IN (150, 'EU')", True),
    # Patterns.
    ("region LIKE 'EU'", True), ("region LIKE 'eu'", False), ("region LIKE 'E%'", True),
    ("region LIKE '%U'", True), ("region LIKE '%'", True), ("empty LIKE '%'", True),
    ("empty LIKE '_'", False), ("region LIKE '_U'", True), ("region LIKE '__'", True),
    ("region LIKE '___'", False), ("region LIKE 'E_%'", True), ("region LIKE '%E%U%'", True),
    ("region NOT LIKE 'U%'", True), ("name LIKE '%''s lamp'", True),
    ("percent LIKE '50!%' ESCAPE '!'", True), ("region LIKE 'E!%' ESCAPE '!'", False),
    ("under LIKE 'a\\_b' ESCAPE '\\'", True), ("region LIKE 'E\\_' ESCAPE '\\'", False),
    ("lines LIKE 'one%two'", True), ("lines LIKE 'one_two'", True), ("name LIKE 'A%a%a%p'", True),
    ("name LIKE 'A%p%a%'", False), ("name LIKE 'A%a%l%p'", True), ("region LIKE '.*'", False),
    ("region LIKE '%EU%EU%'", False), ("region LIKE 'EU!' ESCAPE '!'", ERROR),
    ("amount LIKE '1%'", ERROR), ("region LIKE 5", ERROR), ("region LIKE 'a' ESCAPE region", ERROR),
    # Numbers.
    ("1 + 2 * 3 = 7", True), ("(1 + 2) * 3 = 9", True), ("10 - 4 - 3 = 3", True), ("7 / 2 = 3", True),
    ("-7 / 2 = -3", True), ("negative % 3 = -1", True), ("7 % -3 = 1", True), ("7.0 / 2 = 3.5", True),
    ("5.5 % 2 = 1.5", True), ("+5 = 5", True), ("- -5 = 5", True), ("-amount = -150", True),
    ("amount - 1 = 149", True), ("amount / zero = 1", ERROR), ("amount % zero = 1", ERROR),
    ("1.0 / 0 > 9e300", True), ("-1.0 / 0 < 0", True), ("nan = nan", False), ("nan <> nan", True),
    ("big + 1 > 0", ERROR), ("least - 1 < 0", ERROR), ("big * 2 > 0", ERROR), ("-least > 0", ERROR),
    ("big + 1.0 > 0", True), ("'a' + 'b' = 'ab'", True), ("region + '-1' = 'EU-1'", True),
    # Kinds that do not go together.
    ("amount = '150'", ERROR), ("region > 5", ERROR), ("region = TRUE", ERROR), ("paid = 1", ERROR),
    ("paid = TRUE", True), ("open = FALSE", True), ("paid > FALSE", ERROR), ("raw = raw", True),
    ("raw > raw", ERROR), ("id = @who", True), ("id <> @who", False), ("id > @who", ERROR),
    ("id = 'x'", ERROR), ("when = @noon", True), ("when <= @noon", True), ("when > 5", ERROR),
    ("amount + 'a' = 1", ERROR), ("region * 2 = 1", ERROR), ("-region = 1", ERROR),
    ("paid + 1 = 2", ERROR), ("+region = 'EU'", ERROR), ("newid() = newid()", False),
    # Parameters.
    ("amount > @limit", True), ("amount > @LIMIT", True), ("@flag = TRUE", True), ("@none = 1", UNKNOWN),
    # Spaces and case of words.
    ("amount\n>\t100\nAnD region iN('EU')", True), ("amount>100AND region='EU'", ERROR + " syntax"),
    ("not amount is null", True), ("amount Is NoT nUlL", True), ("region not like 'x' escape '!'", True),
]  # fmt: skip


def judge(text: str) -> bool | str | None:
    try:
        condition = compile_filter(text, PARAMETERS)
    except FilterSyntaxError:
        return "error syntax"
    try:
        return condition(MESSAGE)
    except FilterError:
        return ERROR


@pytest.mark.parametrize(("text", "expected"), TABLE, ids=[text for text, _ in TABLE])
def test_what_an_expression_says_of_a_message(text: str, expected: bool | str | None) -> None:
    assert (
        judge(text) is expected if expected is None or isinstance(expected, bool) else judge(text) == expected
    )


def test_the_table_is_large_enough() -> None:
    assert len({text for text, _ in TABLE}) == len(TABLE) >= 150


@pytest.mark.parametrize(
    ("text", "line", "column", "told"),
    [
        ("", 0, 0, "text of 1 to 1024 characters"),
        ("a AND", 1, 6, "expected EXISTS(…) or NOT or a value, got the end"),
        ("a =", 1, 4, "got the end"),
        ("a = 1\nAND b >", 2, 8, "got the end"),
        ("a == 1", 1, 4, "got '='"),
        ("a = 1 b", 1, 7, "got 'b'"),
        ("a = 'x", 1, 5, "got"),
        ("(a = 1", 1, 7, "')'"),
        ("a = 1)", 1, 6, "got ')'"),
        ("a = #", 1, 5, "got '#'"),
        ("a = 12x", 1, 5, "got"),
        ("a", 1, 1, "expected a condition, got a value"),
        ("a = 1 AND b", 1, 11, "expected a condition"),
        ("(a = 1) + 1 = 2", 1, 2, "expected a value, got a condition"),
        ("(a = 1) = TRUE", 1, 2, "expected a value"),
        ("NOT a", 1, 5, "expected a condition"),
        ("5 IS NULL", 1, 1, "expected a property before IS NULL"),
        ("a IN ()", 1, 7, "a value"),
        ("a LIKE", 1, 7, "a value"),
        ("a LIKE 'x' ESCAPE '!!'", 1, 19, "one character"),
        ("sys.Nothing = 1", 1, 5, "there is no system property 'Nothing'"),
        ("sys.Lable = 'x'", 1, 5, "did you mean 'label'"),
        ("other.x = 1", 1, 1, "expected the scope sys, user or body, got other"),
        ("a > @nowhere", 1, 5, "the parameter @nowhere has no value"),
        ("a = 9223372036854775808", 1, 5, "at most 64 bits"),
        ("EXISTS(5)", 1, 8, "a property"),
        ("(" * 80 + "1=1" + ")" * 80, 1, 81, "at most 60 levels of nesting"),
        ("NOT " * 90 + "1=1", 1, 361, "levels of nesting"),
        ("-" * 900 + "a=1", 1, 901, "levels of nesting"),
        ("(" * 1000, 1, 1001, "got the end"),
        ("a = '" + "x" * LONGEST + "'", 0, 0, "text of 1 to 1024 characters"),
    ],
)  # fmt: skip
def test_a_syntax_error_says_where_and_what_was_expected(
    text: str, line: int, column: int, told: str
) -> None:
    with pytest.raises(FilterSyntaxError) as caught:
        compile_filter(text)
    assert told in str(caught.value)
    assert (caught.value.line, caught.value.column) == (line, column)


def test_a_parameter_must_have_a_value_that_messages_can_have() -> None:
    with pytest.raises(FilterSyntaxError, match="of the unsupported type list"):
        compile_filter("a = @b", {"b": []})


_words = st.sampled_from([
    "a", "sys.Label", "user.b", "[x y]", "'text'", "5", "-3", "2.5", "TRUE", "@limit", "AND", "OR",
    "NOT", "(", ")", "=", "<>", ">", "LIKE", "'%a_'", "ESCAPE", "'!'", "IN", "(1,'x')", "IS", "NULL",
    "EXISTS(a)", "+", "-", "*", "/", "%", "newid()", "p('a')", ",", ".", "missing",
])  # fmt: skip
_values = st.one_of(
    st.none(), st.booleans(), st.integers(-(1 << 63), (1 << 63) - 1), st.floats(), st.text(max_size=30),
    st.binary(max_size=8), st.uuids(), st.datetimes(timezones=st.just(UTC)),
)  # fmt: skip


@given(st.one_of(st.lists(_words, max_size=25).map(" ".join), st.text(max_size=60)), _values, _values)
@settings(max_examples=600, deadline=None)
def test_nothing_but_its_own_errors_comes_of_any_expression_on_any_message(
    text: str, first: Any, second: Any
) -> None:
    view = MessageView(Headers(subject="s", properties={"a": first, "b": second, "x y": 1}), "m")
    for make in (compile_filter, compile_action):
        try:
            made = make(text, {"limit": second})
        except FilterSyntaxError:
            continue
        try:
            if callable(made):
                assert made(view) in (True, False, None)
        except FilterError:
            continue


@given(st.text(alphabet="ab%_!", max_size=12), st.text(alphabet="ab\n", max_size=10))
@settings(max_examples=500, deadline=None)
def test_patterns_match_as_a_plain_search_would(pattern: str, text: str) -> None:
    def matches(p: str, t: str) -> bool:
        if not p:
            return not t
        if p[0] == "%":
            return any(matches(p[1:], t[n:]) for n in range(len(t) + 1))
        return bool(t) and (p[0] in ("_", t[0])) and matches(p[1:], t[1:])

    condition = compile_filter("t LIKE @p", {"p": pattern})
    assert condition(MessageView(Headers(properties={"t": text}))) is matches(pattern, text)


def test_no_pattern_takes_long() -> None:
    view = MessageView(Headers(properties={"t": "a" * 30_000}))
    assert compile_filter(f"t LIKE '{'%a' * 200}%b'")(view) is False
    assert compile_filter(f"t LIKE '{'%_a' * 200}%b'")(view) is False


class TestCorrelation:
    def test_all_must_be_equal_in_value_and_kind(self) -> None:
        def matches(**wanted: Any) -> bool:
            rules = CompiledRules([Rule("r", CorrelationFilter(**wanted))])
            return bool(rules.copies(MESSAGE))

        assert matches(subject="order")
        assert matches(subject="order", correlation_id="c-9", properties={"AMOUNT": 150})
        assert not matches(subject="Order")
        assert not matches(subject="order", properties={"amount": 151})
        assert not matches(properties={"amount": 150.0})
        assert not matches(properties={"paid": 1})
        assert not matches(properties={"missing": "x"})
        assert matches(message_id="m-1", session_id="s-1", to="shop", properties={"id": ID, "when": NOON})
        assert not matches(reply_to="x")

    @pytest.mark.parametrize("wanted", [{}, {"properties": {}}, {"subject": 5}, {"properties": {"a": []}}])
    def test_what_it_refuses(self, wanted: dict[str, Any]) -> None:
        with pytest.raises(InvalidOption):
            CorrelationFilter(**wanted)


class TestRules:
    def copies(self, *rules: Rule) -> list[tuple[str, dict[str, Any] | None]]:
        found = CompiledRules(rules).copies(MESSAGE)
        return [(c.rule, None if c.changed is None else dict(c.changed.headers.properties)) for c in found]

    def test_rules_without_action_make_one_copy(self) -> None:
        no, yes = Rule("no", FalseFilter()), SqlFilter("amount > 100")
        assert self.copies(no, Rule("a", TrueFilter()), Rule("b", yes)) == [("a", None)]
        assert self.copies(no) == []

    def test_each_with_an_action_makes_its_own(self) -> None:
        found = self.copies(
            Rule("plain"),
            Rule("a", SqlFilter("amount > 100"), SqlAction("SET tier = 'gold'")),
            Rule("b", SqlFilter("amount > 1000"), SqlAction("SET tier = 'platinum'")),
            Rule("c", TrueFilter(), SqlAction("REMOVE amount; SET price = price * 2; SET twice = price")),
        )
        assert [name for name, _ in found] == ["plain", "a", "c"]
        assert found[0][1] is None
        assert found[1][1] == {**PROPERTIES, "tier": "gold", "RuleName": "a"}
        changed = found[2][1]
        assert changed is not None
        assert "amount" not in changed
        assert (changed["Price"], changed["twice"], changed["RuleName"]) == (19.0, 19.0, "c")
        assert MESSAGE.user["amount"] == 150

    def test_system_properties_can_be_set(self) -> None:
        text = "SET sys.Label = 'new-' + sys.Label; SET sys.MessageId = 'm-2'; SET sys.ReplyTo = @to"
        action = SqlAction(text, {"to": "back"})
        (copy,) = CompiledRules([Rule("r", TrueFilter(), action)]).copies(MESSAGE)
        assert copy.changed is not None
        assert copy.changed.message_id == "m-2"
        assert (copy.changed.headers.subject, copy.changed.headers.reply_to) == ("new-order", "back")
        assert MESSAGE.headers.subject == "order"

    @pytest.mark.parametrize(
        ("action", "told"),
        [
            ("SET sys.SequenceNumber = 5", "no system property"),
            ("SET sys.Size = 5", "cannot be set"),
            ("SET sys.EnqueuedTimeUtc = 5", "cannot be set"),
            ("REMOVE sys.Label", "cannot be removed"),
            ("SET a", "a comparison"),
            ("SET a > 5", "expected '=', got '>'"),
            ("SET a = ", "a value"),
            ("SET a = b = c", "got '='"),
            ("DELETE a", "got"),
            ("SETa = 5", "got"),
            (";".join(["SET a = 1"] * 33), "at most 32 parts"),
            ("SET a = (b = c)", "expected a value"),
        ],
    )
    def test_actions_that_are_wrong(self, action: str, told: str) -> None:
        with pytest.raises(FilterSyntaxError) as caught:
            SqlAction(action)
        assert told in str(caught.value)

    @pytest.mark.parametrize(
        "action", ["SET sys.Label = amount", "SET sys.MessageId = ''", "SET a = amount / zero"]
    )
    def test_actions_that_fail_on_a_message(self, action: str) -> None:
        with pytest.raises(FilterError):
            CompiledRules([Rule("r", TrueFilter(), SqlAction(action))]).copies(MESSAGE)

    @pytest.mark.parametrize("fields", [
        ("", TrueFilter()), ("x" * 51,), ("r", "1=1"),
        ("r", TrueFilter(), "SET a = 1"), (5,),
    ])  # fmt: skip
    def test_rules_that_are_wrong(self, fields: tuple[Any, ...]) -> None:
        with pytest.raises(InvalidOption):
            Rule(*fields)


@pytest.mark.parametrize(
    ("condition", "why"),
    [
        ("p('Amount') = 150", "Amount is 150"),
        ("amount = 1 OR property('amount') = 1", "amount is 150"),
        ("p('a' + 'mount') > 1", "p(…) is computed"),
        ("1 = 1", "always so"),
    ],
)
def test_why_a_rule_matches(condition: str, why: str) -> None:
    """A property is one that is named however it is named."""
    view = MessageView(Headers(properties={"amount": 150}))
    assert judge_of(Rule("r", SqlFilter(condition)))(view).why == why
