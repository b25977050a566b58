"""Values pickled for other processes."""

from __future__ import annotations

import pickle
from types import CodeType

import pytest

from lazaretto.isolation.pickling import pickle_value


def nested() -> list[str]:
    """Return the files that a local function, and one in it, say they are from."""

    def outer() -> list[CodeType]:
        inner = lambda: 1 / 0  # noqa: E731
        return [inner.__code__]

    function = pickle.loads(pickle_value(outer))
    assert function is not outer
    return [function.__code__.co_filename, *(code.co_filename for code in function())]


def test_functions_keep_the_names_of_their_files() -> None:
    assert nested() == [__file__, __file__]


def test_a_copy_of_a_copy_has_the_same_bytes() -> None:
    first = pickle_value(lambda: 1 / 0)
    assert pickle_value(pickle.loads(first)) == pickle_value(pickle.loads(first))


def test_what_cannot_be_pickled_raises() -> None:
    with pytest.raises(TypeError, match="cannot pickle"):
        pickle_value(number for number in range(3))
