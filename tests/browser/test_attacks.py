"""What another site's page tries in a real browser, and what people meet who are unlucky."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Request, expect
from web.identity import CLIENT, SECRET, identity_provider

import lazaretto
from browser.conftest import EVIL, EVIL_ACTIVE, serving
from lazaretto import Broker, Message, QueueOptions
from lazaretto.commands import CreateLink, EndSessions, GrantRole, SetRedaction
from lazaretto.web import Access, Grant, Identity, Role
from lazaretto.web.oidc import OidcOptions, Provider

OpenPage = Callable[..., Page]

#: A page of another site, which tries to act as whoever looks at it, and to show the console in itself.
_ELSEWHERE = """<!doctype html><title>elsewhere</title>
<form id="f" method="post" target="out" action="{console}/do/set_status">
<input name="path" value="orders"><input name="status" value="disabled"></form>
<iframe name="out"></iframe><iframe id="framed" src="{console}/queues"></iframe>
<img src="{console}/do/set_status?path=orders&status=disabled">
<script>
document.getElementById("f").submit();
const body = new URLSearchParams({{path: "orders", status: "disabled"}});
window.tries = Promise.allSettled([
  fetch("{console}/do/set_status", {{method: "POST", mode: "no-cors", credentials: "include", body}}),
  fetch("{console}/api/v1/commands/set_status", {{method: "POST", mode: "no-cors", credentials: "include",
    body: '{{"path": "orders", "status": "disabled"}}'}}),
  fetch("{console}/api/v1/queues", {{credentials: "include"}}).then(answer => answer.text()),
]);
</script>"""


@pytest.fixture
def elsewhere(address: str) -> Iterator[str]:
    """The address of another site: another host, on this machine."""
    page = _ELSEWHERE.format(console=address).encode()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(page if self.path == "/" else b"")

        def log_message(self, *values: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def person(store: Path) -> Iterator[Callable[[Page], None]]:
    """Logs somebody in who may do everything."""
    with lazaretto.connect(store) as broker:

        def log_in(page: Page) -> None:
            page.goto(f"/login?code={broker.run(CreateLink(), actor='olga')['secret']}")

        yield log_in


def dead_letter(broker: Broker, queue: str, body: bytes, error: Exception) -> int:
    """Make a dead letter, and return its number."""
    broker.sender(queue).send(Message(body))
    with broker.receiver(queue) as receiver:
        (message,) = receiver.receive(1)
        receiver.dead_letter(message, reason="Odd", error=error)
        return message.sequence_number


def test_another_site_can_do_nothing_in_the_persons_name(
    chromium: Browser, address: str, store: Path, elsewhere: str, person: Callable[[Page], None]
) -> None:
    context = chromium.new_context(base_url=address)
    page = context.new_page()
    person(page)
    expect(page.locator(".who")).to_have_text("olga")
    page.goto(elsewhere)
    tries = page.evaluate(
        "window.tries.then(all => all.map(one => [one.status, one.value && one.value.type]))"
    )
    # The first two were sent, and what they were answered is hidden; the last is not even sent with a name.
    assert tries[2][0] == "rejected"
    framed = page.frames[1:]
    assert len(framed) == 2
    assert all("olga" not in frame.content() for frame in framed)
    context.close()
    with lazaretto.connect(store) as broker:
        assert broker.queue("orders").status.value == "active"


def test_what_was_typed_outlives_the_session(
    chromium: Browser, store: Path, person: Callable[[Page], None]
) -> None:
    """The session ends while somebody writes a note: the text is still there after they log in again."""
    note = "long thought \u00e9 'quoted' \"twice\" <b> & more"
    with serving(store, Access([])) as address:
        context = chromium.new_context(base_url=address)
        page = context.new_page()
        person(page)
        page.goto("/failures/2?queue=orders")
        page.get_by_label("Note").fill(note)
        with lazaretto.connect(store) as broker:
            broker.run(EndSessions(person="olga"), actor="ana")
        page.get_by_role("button", name="Save the note").click()
        expect(page.locator("h1")).to_have_text("Your session has ended")
        expect(page.locator("main")).to_contain_text(note)
        # Pressed too early, nothing is lost either.
        page.get_by_role("button", name="note cause").click()
        expect(page.locator("main")).to_contain_text(note)
        tab = context.new_page()
        person(tab)
        page.get_by_role("button", name="note cause").click()
        expect(page.locator("h1")).to_have_text("Send it again?")
        page.get_by_role("button", name="note cause").click()
        expect(page.locator("p.note")).to_have_text(note)
        context.close()


def test_a_page_that_keeps_a_form_is_for_this_site_only(open_page: OpenPage, store: Path) -> None:
    with serving(store, Access([])) as address:
        page = open_page()
        form: dict[str, str | float | bool] = {"path": "orders", "number": "1", "note:text": "forged"}
        for headers in {}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://evil.example"}:
            answer = page.request.post(
                f"{address}/do/note_cause", form=form, headers=headers, max_redirects=0
            )
            assert (answer.status in (303, 403), "forged" in answer.text()) == (True, False)


def test_an_edit_of_several_lines_stays_so(open_page: OpenPage, store: Path) -> None:
    edit = "SET body.amount = 5;\nSET body.currency = 'EUR'"
    page = open_page()
    page.goto("/dead-letters/5/edit?queue=orders")
    page.get_by_label("What to change").fill(edit)
    page.get_by_role("button", name="Show the difference").click()
    expect(page.get_by_label("What to change")).to_have_value(edit)
    page.get_by_label("Name").fill("two-lines")
    page.get_by_role("button", name="Plan a repair of this letter").click()
    expect(page.locator(".lead .state")).to_have_text("planned")
    with lazaretto.connect(store) as broker:
        assert broker.repair("two-lines").status().edit == edit


def test_a_double_click_acts_once(open_page: OpenPage, store: Path) -> None:
    page = open_page()
    page.goto("/failures/1?queue=orders")
    page.get_by_label("Note").fill("twice")
    with lazaretto.connect(store) as broker:
        before = len(broker.audit(action="note_cause", limit=1000))
        page.get_by_role("button", name="Save the note").dblclick()
        expect(page.locator("p.note")).to_have_text("twice")
        assert len(broker.audit(action="note_cause", limit=1000)) == before + 1


def test_the_clock_of_a_browser_does_not_count(open_page: OpenPage) -> None:
    page, other = open_page(), open_page()
    other.clock.install(time=datetime.now(UTC) + timedelta(days=1))
    ages = []
    for one in (page, other):
        one.goto("/failures?queue=orders")
        ages.append([text for text in one.locator("main time").all_inner_texts() if " d " in text])
    assert ages == [[], []]


def test_hostile_text_that_arrives_live_is_text(open_page: OpenPage, store: Path) -> None:
    page = open_page()
    page.goto("/failures?queue=billing")
    expect(page.locator("#live")).to_have_attribute("data-state", "live")
    with lazaretto.connect(store) as broker:
        broker.set_breaker("billing", "close")
        dead_letter(broker, "billing", EVIL.encode(), RuntimeError(EVIL + EVIL_ACTIVE))
    expect(page.locator("main")).to_contain_text("onerror=")
    assert page.evaluate("typeof window.pwned") == "undefined"
    assert page.locator("main img, main script, main [data-hx-post]").count() == 0


def test_redacted_fields_never_reach_the_browser(chromium: Browser, store: Path) -> None:
    """Not as a page is opened, as it is brought up to date, or as somebody types an edit that would tell."""
    secret, body = "4111-1111-1111-1111", b'{"card": "4111-1111-1111-1111", "n": 1}'
    with lazaretto.connect(store) as broker:
        broker.create_queue("cards", QueueOptions(breaker=None))
        broker.run(SetRedaction(field="body.card", queue="cards"))
        number = dead_letter(broker, "cards", body, ValueError(f"refused {secret}"))
    otto = Identity("otto", (Grant(Role.OPERATOR),))
    received: list[str] = []
    with serving(store, Access([], anonymous=otto)) as address:
        context = chromium.new_context(base_url=address)
        page = context.new_page()
        page.on("requestfinished", lambda request: received.append(_text_of(request)))
        page.goto(f"/dead-letters/{number}?queue=cards")
        expect(page.locator("main")).to_contain_text("«redacted»")
        page.goto("/failures?queue=cards")
        expect(page.locator("#live")).to_have_attribute("data-state", "live")
        with lazaretto.connect(store) as broker:
            dead_letter(broker, "cards", body, KeyError(f"unknown {secret}"))
        expect(page.locator("main")).to_contain_text("KeyError")
        page.goto(f"/dead-letters/{number}/edit?queue=cards")
        page.locator("#edit").fill("SET body.copy = body.card")
        expect(page.locator("#difference")).to_contain_text("neither names redacted fields")
        page.locator("#edit").fill("SET body.n = 2")
        expect(page.locator("#difference .diff")).to_contain_text("+ body.n: 2")
        shown = page.content()
        context.close()
    assert any("«redacted»" in one for one in received)
    assert not [one for one in [*received, shown] if secret in one]


def _text_of(request: Request) -> str:
    answer = request.response()
    is_text = answer is not None and "text/html" in answer.headers.get("content-type", "")
    return answer.text() if answer is not None and is_text else ""


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("long", b"x" * 1_000_000),
        ("lines", b"line\n" * 10_000),
        ("deep", b"[" * 100_000 + b"]" * 100_000),
        ("digits", b'{"n": ' + b"9" * 5_000 + b"}"),
        ("bytes", bytes(range(256)) * 100),
        ("nul", b"a\0b\x1b[31mc\x85d"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bodies_of_any_kind_are_shown(open_page: OpenPage, store: Path, name: str, body: bytes) -> None:
    with lazaretto.connect(store) as broker:
        queue = f"bodies/{name}"
        broker.create_queue(queue, QueueOptions(max_message_size=2_000_000))
        number = dead_letter(broker, queue, body, ValueError("x" * 4_000))
    page = open_page(390)
    answer = page.goto(f"/dead-letters/{number}?queue={queue}")
    assert answer is not None
    assert answer.status == 200
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") == 0
    shown = page.locator("pre.body").inner_text()
    assert shown
    assert not set("\0\x1b\x85") & set(shown)
    if name == "digits":
        assert "9" * 5_000 in shown


def test_a_login_at_a_provider(chromium: Browser, tmp_path: Path) -> None:
    """The way back begins on another site: the session's cookie comes along all the same."""
    with lazaretto.connect(tmp_path / "own.db") as broker, identity_provider() as identity:
        broker.run(GrantRole(person="group:oncall", role="viewer"))
        identity.asks = True
        identity.claims = {"email": "ana@example.com", "email_verified": True, "groups": ["oncall"]}
        provider = Provider(OidcOptions(identity.issuer, CLIENT, SECRET))
        with serving(tmp_path / "own.db", Access(provider=provider)) as address:
            page = chromium.new_page()
            page.goto(address)
            page.get_by_role("link", name="Log in at 127.0.0.1").click()
            page.get_by_role("link", name="Let me in").click()
            expect(page.get_by_role("link", name="ana@example.com")).to_be_visible()
            assert page.url == f"{address}/"
            page.get_by_role("button", name="Log out").click()
            expect(page.get_by_role("link", name="Log in at 127.0.0.1")).to_be_visible()
            page.close()
