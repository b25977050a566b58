"""The pictures of docs/console.md: `python -m tests.browser.pictures` draws them anew."""

from __future__ import annotations

import json
import logging
import os
import random
import sys
import time
import urllib.parse
from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.sync_api import Browser, sync_playwright

import lazaretto
from lazaretto import DeadLetterFilter, ManualClock, Message, PoisonPolicy, QueueOptions
from lazaretto.commands import Mark

FOLDER = Path(__file__).parents[2] / "docs" / "pictures"
#: Each picture: its screen, the width and scheme it is looked at in, and its height.
PICTURES = {
    "overview": ("/", 1024, "light", 560),
    "failures": ("/failures?queue=shop/orders&explain=1", 1024, "light", 560),
    "cause": ("/failures/{cause}?queue=shop/orders&explain=1", 1024, "light", 1000),
    "letter": ("/dead-letters/{letter}?queue=shop/orders", 1024, "light", 900),
    "edit": ("/dead-letters/{letter}/edit?queue=shop/orders&edit={edit}", 1024, "light", 640),
    "repair": ("/repairs/add-currency", 1024, "dark", 720),
    "form": (
        "/do/create_queue?path=shop/returns&lock_duration=5m&policy.receive_retry_count=3"
        "&policy.max_retry_cycles=2",
        1024,
        "light",
        640,
    ),
    "phone": ("/failures?queue=shop/orders", 390, "dark", 780),
}
_EDIT = "SET body.currency = 'CHF'"
#: How many messages come in an hour.
_AN_HOUR = 150


def _book(order: dict[str, object]) -> None:
    """Fail as the handler of a shop would."""
    if order["country"] == "CH" and order["channel"] == "app":
        raise KeyError("currency")
    if not order["items"]:
        raise ValueError(f"order {order['id']} has no items")
    if order["weight"] is None:
        raise TypeError("unsupported operand type(s) for *: 'NoneType' and 'float'")


def fill(path: Path) -> dict[str, str]:
    """Make a store of a shop that has had a bad day, and return what the addresses of its screens name."""
    clock = ManualClock(time.time() - 24 * 3600)
    marks = {2: "release 41", 15: "release 42"}
    chance = random.Random(7)
    number, letter = 0, 0
    with lazaretto.connect(path, clock=clock) as broker:
        policy = PoisonPolicy(receive_retry_count=0, max_retry_cycles=0)
        for name in ("shop/orders", "shop/invoices", "shop/mails"):
            broker.create_queue(name, QueueOptions(policy=policy, breaker=None))
        sender, receiver = broker.sender("shop/orders"), broker.receiver("shop/orders")
        for hour in range(24):
            if hour in marks:
                broker.run(Mark(text=marks[hour]), actor="ana")
            messages = []
            for _ in range(_AN_HOUR):
                number += 1
                order = {
                    "id": number,
                    "country": chance.choice(["DE", "FR", "PT", "CH" if hour >= 15 else "AT"]),
                    "channel": chance.choice(["web", "app"]),
                    "items": [] if chance.random() < 0.02 else ["lamp", "desk"][: chance.randint(1, 2)],
                    "weight": None if hour in (3, 4) and chance.random() < 0.2 else chance.randint(1, 30),
                    "total": round(chance.random() * 200, 2),
                }
                body = json.dumps(order).encode()
                messages.append(Message(body, message_id=f"order-{number}", properties={"shop": "main"}))
            sender.send(messages)
            clock.advance(1800)
            for message in receiver.receive(_AN_HOUR):
                try:
                    _book(json.loads(message.body))
                except Exception as error:
                    receiver.dead_letter(message, reason="HandlerFailed", error=error)
                    letter = letter or (message.sequence_number if isinstance(error, KeyError) else 0)
                else:
                    receiver.complete(message)
            clock.advance(1800)
        broker.sender("shop/invoices").send([Message(b"{}") for _ in range(12)])
        broker.sender("shop/mails").send([Message(b"{}") for _ in range(3)])
        cause = broker.triage("shop/orders").causes[0].number
        note = "the app of Switzerland sends no currency; fixed in 4.2"
        broker.note_cause("shop/orders", cause, note, actor="ana")
        broker.plan_repair(
            "shop/orders", DeadLetterFilter(cause=cause), name="add-currency", edit=_EDIT, actor="ana"
        )
    return {"letter": str(letter), "cause": str(cause), "edit": urllib.parse.quote(_EDIT)}


def draw(browser: Browser, address: str, names: dict[str, str], folder: Path) -> None:
    """Draw all pictures of a served store into a folder."""
    for name, (screen, width, scheme, height) in PICTURES.items():
        dark = scheme == "dark"
        context = browser.new_context(
            viewport={"width": width, "height": height}, base_url=address,
            color_scheme="dark" if dark else "light",
        )  # fmt: skip
        page = context.new_page()
        answer = page.goto(screen.format(**names))
        assert answer is not None
        assert answer.status == 200, screen
        page.screenshot(path=folder / f"{name}.png")
        context.close()


def main() -> None:
    """Draw the pictures of the documentation."""
    logging.disable(logging.CRITICAL)
    from browser.chromium import find_chromium
    from browser.conftest import serving
    from lazaretto.web import Access, Grant, Identity, Role

    FOLDER.mkdir(exist_ok=True)
    access = Access([], anonymous=Identity("ana", (Grant(Role.ADMIN),)))
    with TemporaryDirectory() as folder, sync_playwright() as playwright:
        store = Path(folder) / "shop.db"
        names = fill(store)
        found = find_chromium(playwright)
        browser = playwright.chromium.launch(
            executable_path=found.program,
            # The fonts of this machine: those of a fetched browser lack some signs.
            env={**os.environ, **found.environment, "FONTCONFIG_FILE": "/etc/fonts/fonts.conf"},
            chromium_sandbox=os.geteuid() != 0 and not found.environment, args=["--disable-dev-shm-usage"],
        )  # fmt: skip
        with serving(store, access) as address:
            draw(browser, address, names, FOLDER)
        browser.close()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    main()
