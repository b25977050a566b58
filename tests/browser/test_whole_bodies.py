"""Letters whose bodies are no JSON, or that need another body as a whole, from the page that says trouble."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

import lazaretto
from browser.conftest import serving
from lazaretto import Message, PoisonPolicy, QueueOptions
from lazaretto.model.edits.edit import whole_body
from lazaretto.web import Access, Grant, Identity, Role

ONCE = QueueOptions(policy=PoisonPolicy(receive_retry_count=0), breaker=None)
#: By the queue that has it: a poison body.
BODIES = {
    "json": b'{"amount": 1.10,}',
    "text": b"kein JSON, nur <b>Text</b>\nin zwei Zeilen: it's\n",
    "lines": b"one\r\ntwo\r\n",
    "bytes": b"\x00\xff\x01poison",
    "file": b"anything",
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bodies") / "store.db"
    with lazaretto.connect(path) as broker:
        for queue, body in BODIES.items():
            broker.create_queue(queue, ONCE)
            broker.sender(queue).send(Message(body))
            with broker.receiver(queue) as receiver:
                receiver.abandon(receiver.receive(1), error=ValueError("cannot be read"))
    return path


@pytest.fixture(scope="module")
def address(store: Path) -> Iterator[str]:
    with serving(store, Access([], anonymous=Identity("ana", (Grant(Role.ADMIN),)))) as found:
        yield found


def _repaired(store: Path, queue: str) -> bytes:
    """Send what a repair of a queue's only letter planned, and return its body."""
    with lazaretto.connect(store) as broker:
        (planned,) = broker.repairs(queue)
        repair = broker.repair(planned.name)
        repair.apply()
        repair.run()
        with broker.receiver(queue) as receiver:
            (message,) = receiver.receive(1)
            receiver.complete(message)
            return message.body


def _open(page: Page, queue: str) -> None:
    """Go from the page that says trouble to the edit of the queue's letter."""
    page.goto("/")
    page.locator(".troubles").get_by_role("link", name=queue, exact=True).click()
    page.locator("tr[id^=c-] a.open").click()
    page.locator("tr[id=l-1] a.open").click()
    page.get_by_role("link", name="Edit…").click()
    expect(page.locator("#whole")).to_be_visible()


def _printed_edit(page: Page) -> str:
    """Return the edit of the command line beside the form that plans a repair."""
    return shlex.split(page.locator("#difference code.cli").inner_text())[-1]


@pytest.mark.parametrize(
    ("queue", "before", "typed", "after"),
    [
        ("json", '{"amount": 1.10,}', '{"amount": 1.10}', b'{"amount": 1.10}'),
        ("text", BODIES["text"].decode(), "\nit's\n\tanother <text>", b"\nit's\n\tanother <text>"),
        ("lines", "one\ntwo\n", "one\n2\n", b"one\r\n2\r\n"),
        ("bytes", "00 ff 01 70 6f 69 73 6f 6e", "00 fe\n01", b"\x00\xfe\x01"),
    ],
)
def test_a_body_is_written_anew(
    open_page: Callable[..., Page], store: Path, queue: str, before: str, typed: str, after: bytes
) -> None:
    page = open_page(390 if queue == "bytes" else 1024)
    _open(page, queue)
    expect(page.locator("#whole")).to_have_value(before)
    page.locator("#whole").fill(typed)
    page.get_by_role("button", name="Show what would change").click()
    expect(page.locator("pre.diff .plus").first).to_be_visible()
    edit = whole_body(after)
    assert _printed_edit(page) == (edit if edit.isprintable() else "@edit.txt")
    page.get_by_role("button", name="Plan a repair of this letter").click()
    expect(page.locator(".lead .state")).to_have_text("planned")
    assert _repaired(store, queue) == after


def test_a_file_replaces_a_body(open_page: Callable[..., Page], store: Path, tmp_path: Path) -> None:
    content = bytes(range(256)) * 40
    (tmp_path / "body.bin").write_bytes(content)
    page = open_page()
    _open(page, "file")
    page.locator("#file").set_input_files(tmp_path / "body.bin")
    expect(page.locator("pre.diff")).to_be_visible()
    assert _printed_edit(page) == "@edit.txt"
    page.get_by_role("button", name="Plan a repair of this letter").click()
    expect(page.locator(".lead .state")).to_have_text("planned")
    assert _repaired(store, "file") == content
