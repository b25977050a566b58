"""A store with everything that a console shows, served; and a browser that fails on what it must not meet."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

import lazaretto
from browser.chromium import find_chromium
from lazaretto import DeadLetterFilter, Message, PoisonPolicy, QueueOptions, Rule, SqlFilter, aio
from lazaretto.broker.claims import ClaimConsumer
from lazaretto.commands import CreateToken, GrantRole
from lazaretto.web import Access, Grant, Identity, Role, open_web

#: A machine that does other work, too, may be slow.
PATIENCE = 120_000
expect.set_options(timeout=PATIENCE)

#: What must be shown, and must do nothing: it breaks out of elements and attributes, and turns text round.
EVIL = (
    "</pre></title></textarea>'\"><img src=x onerror='pwned=1'><script>pwned=1</script>{{7*7}}\u202egnp.exe"
)
#: The same where a text ends at a quote, and for scripts that look at attributes.
EVIL_ACTIVE = "<div hx-get='/evil' hx-trigger='load' data-hx-post='/evil'></div>\u2028\u0007"


def _talk(broker: lazaretto.Broker) -> None:
    """Begin dialogs of which a poison message holds one."""
    for side in ("shop", "bank"):
        broker.dialogs.create_service(side, f"{side}-messages", ["DEFAULT"], failures=1)
    for poisoned in (True, False):
        with broker.dialogs.transaction() as transaction:
            talk = transaction.begin_dialog("shop", "bank")
            transaction.send(talk, body=EVIL.encode())
        if poisoned:
            with (
                contextlib.suppress(ValueError),
                broker.dialogs.transaction("bank-messages") as transaction,
            ):
                transaction.receive(max_messages=1)
                raise ValueError(EVIL)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with causes, hostile texts, a halted queue, an open breaker and a repair."""
    path = tmp_path_factory.mktemp("console") / "shop.db"
    once = PoisonPolicy(receive_retry_count=0, max_retry_cycles=0)
    with lazaretto.connect(path) as broker:
        broker.create_queue("orders", QueueOptions(policy=once, breaker=None))
        halting = PoisonPolicy(receive_retry_count=0, max_retry_cycles=0, on_poison="fault")
        broker.create_queue("ledger", QueueOptions(policy=halting, breaker=None))
        broker.create_queue("billing")
        broker.create_topic("sales")
        broker.create_subscription("sales", "all")
        sender = broker.sender("orders")
        kinds: list[tuple[Exception, str]] = [
            (ValueError("negative amount"), '{"amount": -1.10, "big": 12345678901234567890}'),
            (KeyError("currency"), '{"amount": 1.10}'),
            (RuntimeError(EVIL + EVIL_ACTIVE), EVIL + EVIL_ACTIVE),
        ]
        for error, body in kinds:
            sender.send(
                [
                    Message(
                        body.encode(), message_id=f"{number}{EVIL}", subject=EVIL, correlation_id=EVIL,
                        content_type=EVIL, properties={EVIL: EVIL, "half": "\U0001f3f4"},
                    )
                    for number in range(3)
                ]
            )  # fmt: skip
            with broker.receiver("orders") as receiver:
                for message in receiver.receive(3):
                    if isinstance(error, RuntimeError):
                        receiver.dead_letter(message, reason=EVIL, description=EVIL, error=error)
                    else:
                        receiver.abandon(message, error=error)
        sender.send([Message(b'{"amount": 2.50}') for _ in range(5)] + [Message(EVIL.encode(), subject=EVIL)])
        broker.sender("ledger").send([Message(EVIL.encode()), Message(b"after")])
        with broker.receiver("ledger") as receiver:
            receiver.abandon(receiver.receive(1), error=ValueError(EVIL))
        broker.set_breaker("billing", "open", actor=EVIL)
        _talk(broker)
        broker.sender("sales").send(
            [Message(b"{}", subject=EVIL, properties={"amount": n}) for n in range(5)]
        )
        broker.add_rule("sales", "all", Rule(EVIL[:50], SqlFilter("subject = 'x' OR amount > 2")))
        broker.run(GrantRole(person="vera", role="viewer"), actor=EVIL)
        broker.run(CreateToken(person="vera", label=EVIL[:100]), actor=EVIL)
        broker.create_queue("loads")
        broker.sender("loads").send([Message(b"{}")] * 3)
        consumer = ClaimConsumer(broker._store, "loads", "loader", lease=86_400)
        consumer.attach()
        consumer.take(0, max_rows=2)
        number = broker.triage("orders").causes[0].number
        broker.note_cause("orders", number, EVIL, actor=EVIL)
        edit = "SET body.amount = 1"
        broker.plan_repair("orders", DeadLetterFilter(cause=number), name="repair-1", edit=edit, actor=EVIL)
    return path


@pytest.fixture(scope="module")
def address(store: Path) -> Iterator[str]:
    """Where the console of the store is."""
    viewer = Identity("vera", (Grant(Role.VIEWER), Grant(Role.CLIENT)))
    access = Access([("token-of-vera", viewer)], anonymous=Identity("ana", (Grant(Role.ADMIN),)))
    with serving(store, access) as found:
        yield found


@contextlib.contextmanager
def serving(store: Path, access: Access) -> Iterator[str]:
    """Serve the console of a store, and yield its address."""
    started, ports, ended = threading.Event(), list[int](), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        async with await aio.connect(store) as broker, open_web(broker, access, port=0) as server:
            ports.append(server.port)
            loops.append(asyncio.get_running_loop())
            started.set()
            await ended.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert started.wait(120)
    yield f"http://localhost:{ports[0]}"
    loops[0].call_soon_threadsafe(ended.set)
    thread.join(120)
    assert not thread.is_alive()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """A browser without a window. Its loop runs in this thread: no other module could run one meanwhile."""
    with sync_playwright() as playwright:
        found = find_chromium(playwright)
        browser = playwright.chromium.launch(
            executable_path=found.program,
            env={**os.environ, **found.environment},
            chromium_sandbox=os.geteuid() != 0 and not found.environment,
            args=["--disable-dev-shm-usage"],
        )
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium: Browser, address: str) -> Iterator[Callable[..., Page]]:
    """Makes pages, and fails if one met an error, a breach of its policy, or another host."""
    met: list[str] = []
    contexts = []

    def make(width: int = 1024, scheme: Literal["light", "dark"] = "light") -> Page:
        context = chromium.new_context(
            viewport={"width": width, "height": 800}, color_scheme=scheme, base_url=address
        )
        contexts.append(context)
        context.set_default_timeout(PATIENCE)
        page = context.new_page()
        page.on("console", lambda message: met.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: met.append(str(error)))
        page.on(
            "request", lambda request: None if request.url.startswith(address) else met.append(request.url)
        )
        page.on("response", lambda answer: met.append(answer.url) if answer.status >= 500 else None)
        return page

    yield make
    for context in contexts:
        context.close()
    assert met == []
