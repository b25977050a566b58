"""Which failures are the same failure."""

from __future__ import annotations

from lazaretto.model.failure import Failure, failure_of
from lazaretto.model.fingerprint import fingerprint


def _failure(function: object, *arguments: object) -> Failure:
    try:
        function(*arguments)  # type: ignore[operator]
    except Exception as error:
        found = failure_of(error)
        assert found is not None
        return found
    raise AssertionError


def _print(failure: Failure) -> str:
    return fingerprint(failure.type, failure.stack)


def one(text: str) -> None:
    if text:
        raise ValueError(text)
    raise KeyError(text)


def other(text: str) -> None:
    raise ValueError(text)


def test_messages_and_lines_do_not_count() -> None:
    assert _print(_failure(one, "a")) == _print(_failure(one, "b"))


def test_types_and_places_count() -> None:
    assert len({_print(_failure(one, "a")), _print(_failure(one, "")), _print(_failure(other, "a"))}) == 3


def test_the_innermost_function_counts_whoever_calls_it() -> None:
    def through() -> None:
        other("x")

    assert _print(_failure(through)) == _print(_failure(other, "y"))


def test_an_error_without_a_stack_is_known_by_its_type() -> None:
    assert fingerprint("WorkerCrashed", None) == fingerprint("WorkerCrashed", "")
    assert fingerprint("WorkerCrashed", None) != fingerprint("HandlerTimeout", None)


def test_the_fault_handler_puts_the_innermost_first() -> None:
    stack = (
        "Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call first):\n"
        '  File "/usr/lib/ctypes.py", line {} in string_at\n  File "/app/handler.py", line 9 in handle\n'
    )
    first, second = (fingerprint("WorkerCrashed", stack.format(line)) for line in (5, 6))
    assert first == second != fingerprint("WorkerCrashed", stack.replace("string_at", "memmove"))
