"""Pages of dead letters: in every order, both ways, searched in slices, continued by cursors."""

from __future__ import annotations

import pytest

from lazaretto import Broker, DeadLetterFilter, InvalidOption, ManualClock, Message
from lazaretto.engine.outcome import dead_letter_pages
from lazaretto.store.sql import message_reads

from .actions import create, set_aside

ORDERS = ["number", "-number", "time", "-time"]
FILTERS = {
    "all": None,
    "reason": DeadLetterFilter(reason="odd"),
    "text": DeadLetterFilter(text="SJU"),
    "where": DeadLetterFilter(where="body.to = 'SJU' AND body.n > 4"),
    "numbers": DeadLetterFilter(sequence_numbers=(3, 4, 9, 9, 77)),
    "id": DeadLetterFilter(message_id="id 7"),
    "cause": DeadLetterFilter(cause=1),
    "cause and text": DeadLetterFilter(cause=1, text="SJU"),
    "nothing": DeadLetterFilter(text="nowhere"),
}


@pytest.fixture
def letters(broker: Broker, clock: ManualClock) -> list[int]:
    """Twenty dead letters; those with higher numbers were set aside first."""
    create(broker)
    with broker.sender("q") as sender:
        numbers = sender.send(
            [
                Message(b'{"to": "%s", "n": %d}' % (b"SJU" if n % 3 else b"BOS", n), message_id=f"id {n}")
                for n in range(1, 21)
            ]
        )
    receiver = broker.receiver("q")
    for message in reversed(receiver.receive(20)):
        receiver.dead_letter(message, reason="odd" if message.sequence_number % 2 else "even")
        clock.advance(1)
    broker.triage("q")
    return numbers


def _walk(broker: Broker, which: DeadLetterFilter | None, order: str, limit: int) -> list[list[int]]:
    pages, cursor = [], None
    while True:
        page = broker.dead_letter_page("q", which, order=order, limit=limit, cursor=cursor)
        pages.append([letter.sequence_number for letter in page.letters])
        if page.next is None:
            break
        cursor = page.next
    back = []
    while page.previous is not None:
        page = broker.dead_letter_page("q", which, order=order, limit=limit, cursor=page.previous)
        back.append([letter.sequence_number for letter in page.letters])
    # The way back ends where the way forth began.
    assert [n for numbers in reversed(back) for n in numbers] == [
        n for numbers in pages[:-1] for n in numbers
    ]
    return pages


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("which", FILTERS.values(), ids=FILTERS.keys())
def test_both_ways_in_every_order(
    broker: Broker,
    letters: list[int],
    which: DeadLetterFilter | None,
    order: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dead_letter_pages, "_FIRST_SLICE", 2)
    by_number = sorted(letter.sequence_number for letter in broker.dead_letters("q", which))
    # What has a higher number was set aside earlier.
    expected = by_number if order in ("number", "-time") else by_number[::-1]
    found = [n for page in _walk(broker, which, order, 3) for n in page]
    assert found == expected
    assert [letter.sequence_number for letter in broker.dead_letters("q", which, order=order)] == expected


def test_the_filters_select_what_they_say(broker: Broker, letters: list[int]) -> None:
    def chosen(name: str) -> list[int]:
        return [letter.sequence_number for letter in broker.dead_letters("q", FILTERS[name])]

    assert chosen("reason") == letters[::2]
    assert chosen("text") == [n for n in letters if n % 3]
    assert chosen("where") == [n for n in letters if n % 3 and n > 4]
    assert (chosen("numbers"), chosen("id"), chosen("nothing")) == ([3, 4, 9], [7], [])


def test_a_preview_is_the_start_of_the_body(broker: Broker) -> None:
    create(broker)
    set_aside(broker, b"x" * 5_000, b"", b"y" * 199, reason="r")
    found = broker.dead_letter_page("q", order="number").letters
    assert [(letter.size, letter.preview) for letter in found] == [
        (5_000, b"x" * 200), (0, b""), (199, b"y" * 199),
    ]  # fmt: skip


def test_a_page_is_the_same_after_what_came_and_went(broker: Broker, letters: list[int]) -> None:
    first = broker.dead_letter_page("q", limit=4)
    assert [letter.sequence_number for letter in first.letters] == [20, 19, 18, 17]
    broker.purge("q", [17, 18, 15])
    set_aside(broker, b"new", reason="late")
    second = broker.dead_letter_page("q", limit=4, cursor=first.next)
    assert [letter.sequence_number for letter in second.letters] == [16, 14, 13, 12]
    newer = broker.dead_letter_page("q", limit=4, cursor=second.previous)
    assert [letter.sequence_number for letter in newer.letters] == [21, 20, 19]


def test_a_search_ends_after_its_time_and_goes_on(
    broker: Broker, letters: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letter_pages, "_FIRST_SLICE", 5)
    monkeypatch.setattr(dead_letter_pages, "_QUICK", 0.0)
    which, cursor, seen = DeadLetterFilter(text='"n": 2}'), None, []
    while True:
        page = broker.dead_letter_page("q", which, order="number", budget=0, cursor=cursor)
        seen.append(([letter.sequence_number for letter in page.letters], page.progress))
        cursor = page.next
        if cursor is None:
            break
    assert seen == [([2], 0.25), ([], 0.5), ([], 0.75), ([], 1.0)]


def test_progress_is_told(broker: Broker, letters: list[int]) -> None:
    told: list[float] = []
    list(broker.dead_letters("q", DeadLetterFilter(text="SJU"), on_progress=told.append))
    assert told == sorted(told)
    assert told[-1] == 1.0


@pytest.mark.parametrize("cursor", ["", "x", "!!", "AAAA", "é"])
def test_what_is_no_cursor(broker: Broker, letters: list[int], cursor: str) -> None:
    with pytest.raises(InvalidOption, match="cursor"):
        broker.dead_letter_page("q", cursor=cursor)


def test_a_cursor_of_another_listing(broker: Broker, letters: list[int]) -> None:
    cursor = broker.dead_letter_page("q", limit=4).next
    for changed in ({"order": "number"}, {"which": DeadLetterFilter(reason="odd")}):
        with pytest.raises(InvalidOption, match="another listing"):
            broker.dead_letter_page("q", cursor=cursor, **changed)


def test_bulk_operations_and_repairs_take_a_condition(broker: Broker, letters: list[int]) -> None:
    which = DeadLetterFilter(where="body.n <= 4")
    assert broker.plan_repair("q", which, canary=0).status().letters == 4
    assert sorted(broker.resubmit("q", which).resubmitted) == [1, 2, 3, 4]
    assert broker.purge("q", DeadLetterFilter(where="body.to.what IS NULL AND body.n > 18")) == [19, 20]


def test_a_condition_keeps_their_order_however_messages_are_found(
    broker: Broker, letters: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A server that passes statements on finds rows in any order: here the other way round.
    peeked = message_reads._peeked
    monkeypatch.setattr(message_reads, "_peeked", lambda rows: peeked(rows)[::-1])
    assert broker.purge("q", DeadLetterFilter(where="body.n > 17")) == [18, 19, 20]


def test_queues_by_pages(broker: Broker) -> None:
    broker.create_queues([*(f"Shop/{n}" for n in range(5)), "under_score", "x.y"])
    assert [queue.path for queue in broker.queues(name_contains="sHop", limit=2)] == ["Shop/0", "Shop/1"]
    assert [queue.path for queue in broker.queues(after="shop/1", name_contains="shop/", limit=2)] == [
        "Shop/2", "Shop/3",
    ]  # fmt: skip
    assert [queue.path for queue in broker.queues(name_contains="%")] == []
    assert [queue.path for queue in broker.queues(name_contains="_")] == ["under_score"]
    assert len(broker.queues()) == 8
