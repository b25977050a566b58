"""The tables of states: every state is reached, and every one but the last has a way on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lazaretto.servicebus.amqp.states import CONNECTION, LINK, SESSION

PAGE = Path(__file__).parents[2] / "docs" / "amqp.md"
TABLES: dict[str, Mapping[tuple[Any, Any], Any]] = {
    "connection": CONNECTION,
    "session": SESSION,
    "link": LINK,
}


@pytest.mark.parametrize("name", TABLES)
def test_every_state_is_reached_and_left(name: str) -> None:
    table = TABLES[name]
    (first, _), *_ = table
    kind: Any = type(first)
    states = set(kind)
    reached = {first}
    while more := {then for (before, _), then in table.items() if before in reached} - reached:
        reached |= more
    assert reached == states
    assert {state.value for state in states - {before for before, _ in table}} <= {"closed", "ended"}


def diagram(table: Mapping[tuple[Any, Any], Any]) -> str:
    """Return a table of states as a Mermaid diagram."""
    begin = next(iter(table))[0]
    rows = [f"    {before.value} --> {then.value}: {event.value}" for (before, event), then in table.items()]
    return "\n".join(["stateDiagram-v2", f"    [*] --> {begin.value}", *rows])


@pytest.mark.parametrize("name", TABLES)
def test_the_page_shows_the_table(name: str) -> None:
    assert f"```mermaid\n{diagram(TABLES[name])}\n```" in PAGE.read_text("utf-8")
