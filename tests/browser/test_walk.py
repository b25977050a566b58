"""An operator's walk: from the page that says trouble to the repaired letters, without the command line."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from patience import PATIENCE, wait_until
from playwright.sync_api import Page, expect

import lazaretto
from browser.conftest import serving
from lazaretto import Broker, ManualClock, Message, PoisonPolicy, QueueOptions
from lazaretto.web import Access, Grant, Identity, Role

ONCE = QueueOptions(policy=PoisonPolicy(receive_retry_count=0), breaker=None)
#: By the queue that has it: a poison body, what an operator types, and the body that is received then.
BODIES = {
    "json": (b'{"amount": "1"}', '{"amount": 1}', b'{"amount": 1}'),
    "text": (b"amount=one", "amount=1", b"amount=1"),
    "bytes": (b"\x00\xff\x01", "00 fe 01", b"\x00\xfe\x01"),
}


def fail(broker: Broker, queue: str, number: int) -> None:
    with broker.receiver(queue) as receiver:
        for message in receiver.receive(number):
            receiver.abandon(message, error=ValueError("cannot be read"))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("walk") / "store.db"
    with lazaretto.connect(path) as broker:
        for queue, (body, *_) in BODIES.items():
            broker.create_queue(queue, ONCE)
            broker.sender(queue).send(Message(body))
            fail(broker, queue, 1)
        broker.create_queue("canary", ONCE)
        broker.create_queue("backlog")
        broker.sender("canary").send([Message(b"%d" % number) for number in range(6)])
        fail(broker, "canary", 6)
    with lazaretto.connect(path, clock=ManualClock(time.time() - 3600)) as an_hour_ago:
        an_hour_ago.sender("backlog").send([Message(b"x")] * 3)
    return path


@pytest.fixture(scope="module")
def address(store: Path) -> Iterator[str]:
    with serving(store, Access([], anonymous=Identity("ana", (Grant(Role.ADMIN),)))) as found:
        yield found


@pytest.fixture(scope="module", autouse=True)
def runner(store: Path) -> Iterator[None]:
    """A process that runs repairs, as `serve` does."""
    ended = threading.Event()

    def run() -> None:
        with lazaretto.connect(store) as broker:
            broker.run_repairs(until=ended.is_set)

    thread = threading.Thread(target=run)
    thread.start()
    yield
    ended.set()
    thread.join(PATIENCE)
    assert not thread.is_alive()


def _open_cause(page: Page, queue: str) -> None:
    page.goto("/")
    page.locator(".troubles").get_by_role("link", name=queue, exact=True).click()
    page.locator("tr[id^=c-] a.open").first.click()


@pytest.mark.parametrize("queue", BODIES)
def test_a_letter_is_repaired(open_page: Callable[..., Page], store: Path, queue: str) -> None:
    _, typed, after = BODIES[queue]
    page = open_page(390 if queue == "text" else 1024, "dark" if queue == "text" else "light")
    _open_cause(page, queue)
    page.locator("tr[id^=l-] a.open").click()
    page.get_by_role("link", name="Edit…").click()
    if queue == "json":
        page.get_by_text("Write the whole body").click()
    page.locator("#whole").fill(typed)
    page.get_by_role("button", name="Show what would change").click()
    page.get_by_role("button", name="Plan a repair of this letter").click()
    page.get_by_role("button", name="Send all 1 that are left").click()
    with lazaretto.connect(store) as broker, broker.receiver(queue) as receiver:
        (message,) = receiver.receive(1, max_wait=PATIENCE)
        assert message.body == after
        receiver.complete(message)
    page.reload()
    expect(page.locator(".numbers")).to_contain_text("processed")


def test_a_failed_repair_goes_on_without_the_bad_letter(open_page: Callable[..., Page], store: Path) -> None:
    page = open_page()
    _open_cause(page, "canary")
    page.get_by_label("Letters to try first").fill("2")
    page.locator("#repair input[name=name]").fill("walk")
    page.get_by_role("button", name="Plan a repair of 6 letters").click()
    page.get_by_role("button", name="Send 2 letters as a test").click()
    with lazaretto.connect(store) as broker, broker.receiver("canary") as receiver:
        messages = receiver.receive(2, max_wait=PATIENCE)
        messages += receiver.receive(1, max_wait=PATIENCE) if len(messages) < 2 else []
        receiver.complete(messages[0])
        receiver.abandon(messages[1], error=ValueError("still bad"))
    expect(page.locator(".lead .state")).to_have_text("failed")
    page.goto("/")
    page.get_by_role("link", name="repair walk").click()
    expect(page.locator("main")).to_contain_text("still bad")
    page.get_by_role("button", name="Take out of the repair").first.click()
    expect(page.locator(".lead .state")).to_have_text("passed")
    page.get_by_role("button", name="Send all 4 that are left").click()
    with lazaretto.connect(store) as broker, broker.receiver("canary") as receiver:
        waiting = 4
        while waiting:
            messages = receiver.receive(waiting, max_wait=PATIENCE)
            assert messages
            receiver.complete(messages)
            waiting -= len(messages)
    expect(page.locator(".lead .state")).to_have_text("done")


def test_a_whole_cause_is_set_aside_and_comes_back(open_page: Callable[..., Page], store: Path) -> None:
    with lazaretto.connect(store) as broker:
        broker.create_queue("aside", ONCE)
        broker.sender("aside").send([Message(b"%d" % number) for number in range(3)])
        fail(broker, "aside", 3)
    page = open_page()
    _open_cause(page, "aside")
    page.get_by_text("Set aside…").click()
    page.get_by_role("button", name="Set aside 3").click()
    expect(page.locator("main")).to_contain_text("No dead letters in aside")
    page.get_by_role("link", name="Set aside").click()
    expect(page.locator("h1")).to_have_text("3 letters are set aside")
    page.get_by_role("button", name="Restore all 3").click()
    expect(page.locator("h1")).to_have_text("0 letters are set aside")
    with lazaretto.connect(store) as broker:
        assert broker.queue("aside").counts.dead_letter == 3


def test_a_queue_without_a_consumer(open_page: Callable[..., Page], store: Path) -> None:
    """Somebody creates a queue and sends to it; nobody takes it, and the page says who could."""
    page = open_page()
    page.goto("/queues")
    page.get_by_role("link", name="Create a queue…").click()
    page.get_by_label("path").fill("lonely")
    page.get_by_label("lock duration", exact=True).fill("2m")
    expect(page.locator(".review")).to_contain_text("2m")
    page.get_by_role("button", name="Create a queue").click()
    expect(page.locator("h1")).to_have_text("lonely")
    page.get_by_role("link", name="Send a message…").click()
    page.locator("#f-body").fill('{"n": 1}')
    page.locator("#f-properties").fill("shop=main")
    page.get_by_role("button", name="Send a message to a queue or topic").click()
    expect(page.locator(".done")).to_contain_text("send message")
    with lazaretto.connect(store) as broker:
        assert broker.queue("lonely").options.lock_duration == 120
        (message,) = broker.peek("lonely")
        assert (message.body, message.properties) == (b'{"n": 1}', {"shop": "main"})


def test_a_backlog_that_nobody_takes_is_a_trouble(open_page: Callable[..., Page], store: Path) -> None:
    """The first page says so, and two clicks tell who takes messages: nobody, and then somebody."""
    page = open_page()
    page.goto("/")
    trouble = page.locator(".troubles li").filter(has=page.get_by_role("link", name="backlog", exact=True))
    expect(trouble).to_contain_text("unattended")
    expect(trouble).to_contain_text("messages wait in backlog, and nobody has taken one for 5 minutes.")
    trouble.get_by_role("link", name="backlog").click()
    expect(page.locator("h1")).to_have_text("backlog")
    page.get_by_role("link", name="Who takes messages").click()
    expect(page.locator("main")).to_contain_text("Nobody takes messages of backlog.")
    with lazaretto.connect(store) as broker, broker.receiver("backlog") as receiver:
        receiver.complete(receiver.receive())
        wait_until(lambda: any(one.queue == "backlog" for each in broker.workers() for one in each.takers))
        page.reload()
        expect(page.locator("main")).to_contain_text("receiver")
    page.goto("/")
    expect(trouble).to_have_count(0)
