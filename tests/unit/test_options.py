"""The checks shared by all options."""

from __future__ import annotations

import dataclasses
from datetime import timedelta

import pytest

from lazaretto.errors import InvalidOption
from lazaretto.model.checks import (
    flag,
    member,
    refuse_unknown,
    seconds,
    shown,
    suggestion,
    text,
    whole,
)
from lazaretto.model.options import option_set


def test_a_long_value_is_cut_to_what_one_can_read() -> None:
    assert shown("x" * 10) == repr("x" * 10)
    assert len(shown("x" * 10_000)) < 120
    assert "str, 10002 characters" in shown("x" * 10_000)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("ordres", "; did you mean 'orders'?"), ("zzz", "; there are: orders, shop")],
)
def test_suggestions(name: str, expected: str) -> None:
    assert suggestion(name, ["shop", "orders"]) == expected


def test_of_many_names_some_are_told() -> None:
    told = suggestion("q5", [f"q{n:04}" for n in range(5_000)])
    assert told.startswith("; there are: q0000, q0001, ")
    assert told.endswith(", q0099 and 4900 others")


def test_the_first_unknown_name_is_refused() -> None:
    refuse_unknown(["a"], ["a", "b"], "x")
    with pytest.raises(InvalidOption, match="unknown option 'c' of x"):
        refuse_unknown(["a", "c", "d"], ["a", "b"], "x")


def test_an_option_set_keeps_positional_and_named_arguments() -> None:
    @option_set
    @dataclasses.dataclass
    class Pair:
        left: int = 0
        right: int = 0

    assert Pair(1, right=2) == Pair(left=1, right=2)
    with pytest.raises(InvalidOption, match=r"'rihgt' of Pair; did you mean 'right'\?"):
        Pair(rihgt=1)  # type: ignore[call-arg]


@pytest.mark.parametrize("value", [True, 1.0, "1", None, 0, 11])
def test_not_a_whole_number(value: object) -> None:
    with pytest.raises(InvalidOption, match="expected n to be an integer from 1 to 10, got"):
        whole("n", value, 1, 10)


@pytest.mark.parametrize("value", [1, 0, "true", None])
def test_not_a_flag(value: object) -> None:
    with pytest.raises(InvalidOption, match="expected f to be True or False, got"):
        flag("f", value)


@pytest.mark.parametrize(("value", "number"), [(0, 0.0), (1.5, 1.5), (timedelta(minutes=2), 120.0)])
def test_durations(value: object, number: float) -> None:
    assert seconds("d", value) == number


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), True, "5", None, timedelta(seconds=-1)])
def test_not_a_duration(value: object) -> None:
    with pytest.raises(InvalidOption, match="expected d to be a duration from 0 to"):
        seconds("d", value)


@pytest.mark.parametrize("value", ["", "xxxx", 5, None])
def test_not_a_text(value: object) -> None:
    with pytest.raises(InvalidOption, match="expected t to be text of 1 to 3 characters, got"):
        text("t", value, 3)


def test_a_member_by_name_or_itself() -> None:
    choices = {"one": 1001, "two": 1002}
    assert member("m", "one", choices) == 1001
    assert member("m", choices["two"], choices) == 1002
    with pytest.raises(InvalidOption, match="expected m to be one of one, two, got 'three'"):
        member("m", "three", choices)
