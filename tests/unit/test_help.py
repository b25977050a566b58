"""Whoever asks for help in a session or an editor gets it."""

from __future__ import annotations

import importlib
import inspect
import pydoc
import typing
from collections.abc import Iterator
from typing import Any

import pytest

ROOMS = ("lazaretto", "lazaretto.host", "lazaretto.isolation", "lazaretto.dialogs", "lazaretto.testing")


def names() -> list[tuple[str, str]]:
    return [(room, name) for room in ROOMS for name in importlib.import_module(room).__all__]


def functions_of(value: Any) -> Iterator[Any]:
    """What has annotations in a public value: itself, and its public methods and properties."""
    if not inspect.isclass(value):
        if inspect.isfunction(value):
            yield value
        return
    yield value
    for name, member in inspect.getmembers(value):
        if not name.startswith("_") or name == "__init__":
            found = member.fget if isinstance(member, property) else inspect.unwrap(member)
            if inspect.isfunction(found) and found.__module__.startswith("lazaretto"):
                yield found


@pytest.mark.parametrize("room", ROOMS)
def test_help_on_the_package(room: str) -> None:
    text = pydoc.render_doc(importlib.import_module(room))
    assert room in text


@pytest.mark.parametrize(("room", "name"), names())
def test_help_on_every_public_name(room: str, name: str) -> None:
    value = getattr(importlib.import_module(room), name)
    assert pydoc.render_doc(value)
    for function in functions_of(value):
        typing.get_type_hints(function)
