"""What is kept of an error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lazaretto.model.failure import LONGEST_STACK, LONGEST_TEXT, Failure, failure_of, shorten


class TestShorten:
    """Text of bounded length, cut in the middle."""

    @given(st.text(max_size=500), st.integers(80, 300))
    def test_bounded_and_storable(self, text: str, longest: int) -> None:
        short = shorten(text, longest)
        assert len(short) <= longest
        short.encode()

    def test_beginning_and_end_stay_and_the_cut_says_how_much(self) -> None:
        short = shorten("a" * 5000 + "b" * 5000, 200)
        assert short.startswith("a" * 70)
        assert short.endswith("b" * 70)
        assert "… 9800 characters left out …" in short

    def test_short_text_is_as_it_was(self) -> None:
        assert shorten("x" * 200, 200) == "x" * 200

    def test_a_lone_surrogate_is_spelt_out(self) -> None:
        assert shorten("a\ud800b", 50) == "a\\ud800b"


class TestExceptions:
    """Type, message and stack of an exception."""

    def test_a_raised_exception(self) -> None:
        try:
            raise ValueError("no such customer")
        except ValueError as error:
            failure = failure_of(error)
        assert failure is not None
        assert (failure.type, failure.message) == ("ValueError", "no such customer")
        assert failure.stack is not None
        assert "test_a_raised_exception" in failure.stack
        assert failure.stack.endswith("ValueError: no such customer\n")

    def test_the_type_names_its_module(self) -> None:
        class CustomError(Exception):
            pass

        failure = failure_of(CustomError())
        assert failure is not None
        assert failure.type.startswith(f"{__name__}.")
        assert failure.type.endswith(".CustomError")

    def test_a_megabyte_of_traceback_is_bounded(self) -> None:
        failure = failure_of(ValueError("x" * 1_000_000))
        assert failure is not None
        assert len(failure.message or "") == LONGEST_TEXT
        assert len(failure.stack or "") == LONGEST_STACK
        assert "characters left out" in (failure.message or "")

    def test_an_exception_that_cannot_be_shown(self) -> None:
        class BrokenError(Exception):
            def __str__(self) -> str:
                raise RuntimeError("worse")

        failure = failure_of(BrokenError())
        assert failure is not None
        assert failure.message == "(no text: RuntimeError while asking for it)"

    def test_the_cause_is_in_the_stack(self) -> None:
        try:
            try:
                raise KeyError("inner")
            except KeyError as error:
                raise ValueError("outer") from error
        except ValueError as error:
            failure = failure_of(error)
        assert failure is not None
        assert "KeyError: 'inner'" in (failure.stack or "")


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("KeyError: customer", "KeyError", "customer"),
        ("shop.orders.NoStock: item 7: none", "shop.orders.NoStock", "item 7: none"),
        ("it did not work", "Error", "it did not work"),
        ("at 10: 30 it failed", "Error", "at 10: 30 it failed"),
        ("", "Error", ""),
    ],
)
def test_an_error_given_as_text(text: str, kind: str, message: str) -> None:
    assert failure_of(text) == Failure(kind, message)


def test_no_error() -> None:
    assert failure_of(None) is None
