"""The table of a conversation's states, and the names of its streams."""

from __future__ import annotations

from pathlib import Path

import pytest

from lazaretto.errors import InvalidOption
from lazaretto.model.conversations import (
    TRANSITIONS,
    ConversationEvent,
    ConversationState,
    Stream,
    after,
    at_time,
    check_group,
    diagram,
    far_end,
    new_group,
    new_handle,
    place_of_stream,
    priority_bounds,
    stream_of,
)

DOCS = Path(__file__).parents[2] / "docs" / "dialogs.md"
S, E = ConversationState, ConversationEvent


def test_the_page_shows_the_table() -> None:
    assert f"```mermaid\n{diagram()}\n```" in DOCS.read_text("utf-8")


def test_every_state_but_the_last_can_be_left_for_good() -> None:
    reached = {S.STARTED_OUTBOUND}
    while more := {state for (before, _), state in TRANSITIONS.items() if before in reached} - reached:
        reached |= more
    assert reached == set(S)
    for state in set(S) - {S.CLOSED}:
        ways = {state}
        while more := {then for (before, _), then in TRANSITIONS.items() if before in ways} - ways:
            ways |= more
        assert S.CLOSED in ways


@pytest.mark.parametrize("state", [S.DISCONNECTED_INBOUND, S.DISCONNECTED_OUTBOUND, S.ERROR, S.CLOSED])
def test_nothing_is_sent_on_what_is_over(state: ConversationState) -> None:
    assert after(state, E.SEND) is None


def test_a_lifetime_ends_what_is_open() -> None:
    assert at_time(S.CONVERSING, 10, 9) is S.CONVERSING
    assert at_time(S.CONVERSING, 10, 10) is S.ERROR
    assert at_time(S.CONVERSING, None, 10) is S.CONVERSING
    assert at_time(S.DISCONNECTED_INBOUND, 10, 11) is S.DISCONNECTED_INBOUND


@pytest.mark.parametrize("priority", range(1, 11))
def test_streams_of_a_priority_stand_together(priority: int) -> None:
    handle = new_handle()
    low, high = priority_bounds(priority)
    for stream in Stream:
        name = stream_of(priority, handle, stream)
        assert low < name < high
        assert place_of_stream(name) == (priority, handle, stream)
        assert len(name) == 36


def test_ends_know_each_other() -> None:
    handle = new_handle()
    assert far_end(handle) != handle
    assert far_end(far_end(handle)) == handle


@pytest.mark.parametrize("group", ["", "x" * 32, "0" * 31, None, 1])
def test_groups_that_are_none(group: object) -> None:
    assert check_group(new_group())
    with pytest.raises(InvalidOption):
        check_group(group)
