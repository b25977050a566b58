"""What the console tells an operator: events, why a repair stands still, and what a letter belongs to."""

from __future__ import annotations

import re

import httpx
import pytest

from lazaretto import Broker, DeadLetterFilter, Message, PoisonPolicy, QueueOptions

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
