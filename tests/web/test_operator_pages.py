"""What the console tells an operator: events, why a repair stands still, and what a letter belongs to."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from patience import wait_until

from lazaretto import (
    Broker,
    DeadLetterFilter,
    ManualClock,
    Message,
    PoisonPolicy,
    QueueOptions,
    connect,
)
from lazaretto.broker.broker import store_of
from lazaretto.broker.claims import ClaimConsumer
from lazaretto.commands import Mark
from lazaretto.engine.outcome.causes import cause_days
from lazaretto.model.causes import TimeMark, mark_before
from lazaretto.model.entities import EntityPath
from lazaretto.web.console.render import STEP, bars_chart

from .conftest import Served

ONCE = QueueOptions(policy=PoisonPolicy(receive_retry_count=0), breaker=None)


@pytest.fixture
def pages(served: Served) -> httpx.Client:
    client = served.client("admin")
    client.base_url = httpx.URL(str(client.base_url).replace("/api/v1", ""))
    return client


def page(pages: httpx.Client, path: str, **parameters: str) -> str:
    answer = pages.get(path, params=parameters or None, headers={**pages.headers, "Accept": "text/html"})
    assert answer.status_code == 200, answer.text
    return answer.text


def fail(broker: Broker, error: BaseException, number: int = 1) -> None:
    with broker.receiver("orders") as receiver:
        for message in receiver.receive(number):
            receiver.abandon(message, error=error)


def test_the_workers_page_names_clients_and_their_queues(broker: Broker, pages: httpx.Client) -> None:
    broker.create_queue("orders")
    assert "Nobody takes messages." in page(pages, "/workers")
    pages.post("/api/v1/messages/receive?queue=orders").raise_for_status()
    wait_until(lambda: "HTTP client" in page(pages, "/workers"))
    shown = page(pages, "/workers")
    assert "admin at 127.0.0.1" in shown
    assert 'href="/queue?queue=orders"' in shown


def test_events_are_paged_and_filtered_in_the_store(broker: Broker, pages: httpx.Client) -> None:
    broker.create_queue("orders", ONCE)
    broker.create_queue("busy", ONCE)
    broker.sender("orders").send([Message(b"%d" % n) for n in range(60)])
    fail(broker, ValueError("bad"), 60)
    broker.sender("busy").send([Message(b"x")] * 700)
    with broker.receiver("busy") as receiver:
        receiver.dead_letter(receiver.receive(700))
    found: list[int] = []
    shown = page(pages, "/activity", lens="events", queue="orders", kind="dead_lettered")
    while True:
        found += [int(number) for number in re.findall(r'id="e-(\d+)"', shown)]
        following = re.search(r'rel="next" href="([^"]+)"', shown)
        if following is None:
            break
        shown = page(pages, following[1].replace("&amp;", "&"))
    mine = broker.events(queue="orders", kind="dead_lettered")
    assert found == [event.position for event in reversed(mine)]
    assert len(found) == 60
    assert 'id="e-' not in page(pages, "/activity", lens="events", queue="orders", kind="rejected")
    answer = pages.get("/api/v1/events", params={"before": found[1], "queue": "orders", "limit": 2}).json()
    assert [event["position"] for event in answer] == [p for p in found if p < found[1]][:2]


def test_a_failed_repair_needs_somebody_and_shows_what_failed(broker: Broker, pages: httpx.Client) -> None:
    broker.create_queue("orders", ONCE)
    broker.sender("orders").send(Message(b"{}"))
    fail(broker, ValueError("the old one"))
    cause = broker.triage("orders").causes[0].number
    repair = broker.plan_repair("orders", DeadLetterFilter(cause=cause), name="mend", canary=1)
    repair.canary()
    repair.run(until=lambda: repair.status().counts.waiting == 1)
    fail(broker, KeyError("the new one"))
    repair.run()
    assert repair.status().phase.value == "failed"
    (again,) = repair.letters(failed=True)
    assert again.sent_as is not None
    assert [letter.outcome for letter in repair.letters(failed=True)] == ["failed"]
    shown = page(pages, "/repairs/mend")
    assert f'href="/dead-letters/{again.sent_as}?queue=orders"' in shown
    assert shown.index("the old one") < shown.index("the new one")
    assert f'<a href="/failures/{cause}?queue=orders">cause {cause}</a>' in shown
    overview = page(pages, "/")
    assert 'href="/repairs/mend"' in overview.partition("Open repairs")[0]
    letter = page(pages, f"/dead-letters/{again.sent_as}", queue="orders")
    (own,) = [c.number for c in broker.triage("orders").causes if c.letters]
    assert f'href="/failures/{own}?queue=orders">Cause {own}</a>' in letter


def test_the_newest_stack_of_a_letter_is_on_top(broker: Broker, pages: httpx.Client) -> None:
    policy = PoisonPolicy(receive_retry_count=1)
    broker.create_queue("orders", QueueOptions(policy=policy, breaker=None))
    broker.sender("orders").send(Message(b"{}"))
    for text in ("first", "second"):
        try:
            raise ValueError(f"the {text} attempt")
        except ValueError as error:
            fail(broker, error)
    shown = page(pages, "/dead-letters/1", queue="orders")
    top = shown.partition("<h2>Body")[0]
    assert "the second attempt" in top.partition("<details open>")[2]
    assert "the first attempt" not in top


class TestTime:
    """Causes over weeks, and marks such as releases."""

    def test_a_cause_tells_after_which_mark_it_came(self, broker: Broker, pages: httpx.Client) -> None:
        broker.create_queue("orders", ONCE)
        broker.sender("orders").send([Message(b"1"), Message(b"2")])
        broker.run(Mark(text="release 41"), actor="ana")
        broker.run(Mark(text="release <42>"), actor="ana")
        fail(broker, ValueError("bad"))
        broker.run(Mark(text="release 43"), actor="ana")
        fail(broker, ValueError("bad"))
        number = broker.triage("orders").causes[0].number
        shown = page(pages, f"/failures/{number}", queue="orders")
        assert "First seen after <strong>release &lt;42&gt;</strong>" in shown
        assert shown.count('class="mark"') == 6
        assert "<title>release 43</title>" in shown
        assert "after release &lt;42&gt;" in page(pages, "/failures", queue="orders")

    def test_a_mark_is_made_on_the_page(self, broker: Broker, pages: httpx.Client) -> None:
        assert 'action="/do/mark"' in page(pages, "/activity")
        answer = pages.post("/do/mark", data={"text": "release 42", "back": "/activity"})
        assert answer.status_code == 303
        (entry,) = broker.audit(action="mark")
        assert entry.detail["text"] == "release 42"
        assert "release 42" in page(pages, "/activity")

    @pytest.mark.stores("sqlite")
    def test_days_are_those_of_four_weeks(self, tmp_path: Path) -> None:
        clock = ManualClock(datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp())
        with connect(tmp_path / "days.db", clock=clock) as broker:
            broker.create_queue("orders", ONCE)
            for number in (3, 1, 2):
                broker.sender("orders").send([Message(b"x")] * number)
                fail(broker, ValueError("bad"), number)
                clock.advance(7 * 86_400)
            (cause,) = broker.triage("orders").causes
            days = store_of(broker).read(
                lambda tx: cause_days(tx, EntityPath.parse("orders;poison"), cause.number)
            )
            assert sum(cause.hours) == 0
            assert [(27 - place, count) for place, count in enumerate(days) if count] == [
                (21, 3),
                (14, 1),
                (7, 2),
            ]


def test_letters_are_taken_out_of_a_repair(broker: Broker, pages: httpx.Client) -> None:
    broker.create_queue("orders", ONCE)
    broker.sender("orders").send([Message(b"1"), Message(b"2")])
    fail(broker, ValueError("bad"), 2)
    repair = broker.plan_repair("orders", DeadLetterFilter(), name="r", everything=True, canary=1)
    repair.canary()
    broker.run_repairs(until=lambda: repair.status().counts.waiting > 0)
    fail(broker, ValueError("bad again"))
    broker.run_repairs(until=lambda: repair.status().phase.value == "failed")
    shown = page(pages, "/repairs/r")
    assert "Take out of the repair" in shown
    # Either of the two was tried: the other one is a dead letter still.
    (other,) = {1, 2} & {letter.sequence_number for letter in broker.dead_letters("orders")}
    answer = pages.post(
        "/do/exclude_letters",
        data={"name": "r", "sequence_numbers:list": str(3 - other), "back": "/repairs/r"},
    )
    assert answer.status_code == 303
    broker.run_repairs(until=lambda: repair.status().phase.value == "passed")
    assert "taken out by" in page(pages, "/repairs/r")


def test_marks_are_found_by_time() -> None:
    start = datetime(2026, 3, 1, tzinfo=UTC)
    marks = [TimeMark(start + timedelta(days=day), f"release {day}", "ana") for day in (3, 1, 2)]
    assert mark_before(marks, start) is None
    assert mark_before(marks, start + timedelta(days=1)) == marks[1]
    assert mark_before(marks, start + timedelta(days=9)) == marks[0]
    now = start + timedelta(hours=36)
    (line,) = bars_chart([0, 1], now, 24 * 60, marks[1:2]).lines
    assert (line.x, line.label) == (STEP, "release 1")
    assert bars_chart([0], now, 60, marks).lines == ()


def test_a_pipeline_has_its_page(broker: Broker, pages: httpx.Client) -> None:
    broker.create_queue("loads")
    broker.sender("loads").send([Message(b"{}")] * 5)
    consumer = ClaimConsumer(store_of(broker), "loads", "loader")
    consumer.attach()
    number = consumer.take(0, max_rows=2)
    assert number is not None
    consumer.settle([number], [])
    assert consumer.take(number, max_rows=1) is not None
    assert "/pipeline?queue=loads&amp;consumer=loader" in page(pages, "/workers")
    shown = page(pages, "/pipeline", queue="loads", consumer="loader")
    assert "at work" in shown
    assert "Claim 1: 2 messages, settled" in shown
    assert pages.get("/pipeline", params={"queue": "loads", "consumer": "other"}).status_code == 404
