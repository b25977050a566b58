"""The console in a browser: its screens at every width, hostile text, keys, actions, and what is live."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

import axe_playwright_python
import pytest
from playwright.sync_api import Browser, Page, expect

import lazaretto
from browser.conftest import EVIL
from lazaretto import Message
from lazaretto.commands import CreateLink
from lazaretto.web import answers
from lazaretto.web.console.site import SCREENS

OpenPage = Callable[..., Page]
Form = dict[str, str | float | bool]

#: What finds faults of accessibility.
AXE = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text("utf-8")

SCHEMES: Final[tuple[Literal["light", "dark"], ...]] = ("light", "dark")

_BACKGROUND = "getComputedStyle(document.documentElement).backgroundColor"

#: An address of every screen.
ADDRESSES = [
    "/",
    "/failures",
    "/failures?queue=orders",
    "/failures/1?queue=orders",
    "/failures/3?queue=orders",
    "/dead-letters/1?queue=orders",
    "/dead-letters/7?queue=orders",
    "/dead-letters/1/edit?queue=orders&edit=SET+body.amount+%3D+5",
    "/repairs",
    "/repairs/repair-1",
    "/queues",
    "/queue?queue=ledger",
    "/queue?queue=orders",
    "/do/update_queue?path=orders&lock_duration=90",
    "/do/create_queue?path=new&policy.receive_retry_count=many",
    "/do/create_subscription?topic=sales",
    "/do/send_message?path=orders",
    "/do/delete_queue?path=orders",
    "/do/move_dead_letters?path=orders&sequence_numbers=1",
    "/sessions?queue=bank-messages",
    "/set-aside?queue=orders",
    "/activity",
    "/activity?lens=events",
    "/activity?repair=repair-1",
    "/queue?queue=loads&state=locked",
    "/queue?queue=orders&state=deferred",
    "/topics",
    "/workers",
    "/search?q=amount",
    "/keys",
    "/messages/10?queue=orders",
    "/messages/1?queue=ledger",
    "/rules?topic=sales&subscription=all&filter=amount+%3E+1&properties=amount%3D3",
    "/rules?topic=sales&subscription=all&filter=amount+%3E+%3E",
    "/claims?queue=loads",
    "/pipeline?queue=loads&consumer=loader",
    "/dialogs",
    "/dialogs/DIALOG",
    "/access",
    "/?which=severe",
    "/dead-letters/7?queue=orders&as=hex",
    "/search?q=queue:orders+error:RuntimeError+prop.half%3Dx",
    "/docs",
    "/problems/message_lock_lost",
]


@pytest.fixture(scope="module")
def addresses(store: Path) -> list[str]:
    """An address of every screen, with a dialog of this store."""
    with lazaretto.connect(store) as broker:
        (held,) = broker.dialogs.conversations(held=True)
    return [address.replace("DIALOG", held.dialog) for address in ADDRESSES]


def test_every_screen_is_looked_at() -> None:
    looked = {address.partition("?")[0] for address in ADDRESSES}
    filled = {
        "{code}": "message_lock_lost",
        "{number:int}": "1",
        "{name}": "repair-1",
        "{dialog}": "DIALOG",
        "{command}": "update_queue",
        "/messages/1": "/messages/10",
    }
    patterns = set(SCREENS)
    for part, value in filled.items():
        patterns = {path.replace(part, value) for path in patterns}
    assert patterns <= looked


@pytest.mark.parametrize("width", [390, 1024, 1600])
def test_screens_fit_and_hostile_text_is_text(open_page: OpenPage, addresses: list[str], width: int) -> None:
    page = open_page(width)
    for address in addresses:
        answer = page.goto(address)
        assert answer is not None
        assert answer.status == 200, address
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)
            assert page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches") == (scheme == "dark")
            assert page.evaluate("document.documentElement.scrollWidth - innerWidth") == 0, address
            assert page.evaluate("typeof window.pwned") == "undefined", address
            assert page.locator("main img, main script, main [data-hx-post]").count() == 0, address
            text = page.locator("body").inner_text()
            assert not set("\u202e\u2028\u0007") & set(text), address
            if width == 390:
                small = page.evaluate(
                    "[...document.querySelectorAll("
                    "'main button, main input:not([type=hidden]), main .button')]"
                    ".filter(e => e.offsetParent && e.getBoundingClientRect().height < 24)"
                    ".map(e => e.outerHTML)"
                )
                assert small == [], address


@pytest.mark.parametrize("scheme", SCHEMES)
def test_screens_are_accessible(open_page: OpenPage, addresses: list[str], scheme: str) -> None:
    page = open_page(1024, scheme)
    wrong = []
    for address in addresses:
        page.goto(address)
        page.evaluate(AXE)
        found = page.evaluate("axe.run({runOnly: ['wcag2a', 'wcag2aa', 'wcag21aa', 'wcag22aa']})")
        wrong += [(address, one["id"], one["nodes"][0]["html"]) for one in found["violations"]]
    assert wrong == []


@pytest.mark.parametrize(
    ("path", "status", "heading"),
    [
        ("/login", 200, "Log in"),
        ("/login?code=wrong", 401, "Log in"),
        ("/nothing/here", 404, "That did not work"),
        ("/queue?queue=none", 404, "That did not work"),
    ],
)
def test_pages_without_a_screen_look_like_the_others(
    chromium: Browser, address: str, path: str, status: int, heading: str
) -> None:
    with chromium.new_context(
        viewport={"width": 390, "height": 800}, color_scheme="dark", base_url=address
    ) as context:
        page = context.new_page()
        answer = page.goto(path)
        assert answer is not None
        assert answer.status == status
        expect(page.get_by_role("heading", level=1)).to_have_text(heading)
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") == 0
        drawn = page.evaluate(_BACKGROUND)
        page.evaluate(AXE)
        found = page.evaluate("axe.run({runOnly: ['wcag2a', 'wcag2aa', 'wcag21aa', 'wcag22aa']})")
        assert found["violations"] == []
        page.goto("/queues")
        assert page.evaluate(_BACKGROUND) == drawn


def test_who_may_not_act_is_told_so_and_refused(open_page: OpenPage, address: str) -> None:
    page = open_page()
    page.set_extra_http_headers({"Authorization": "Bearer token-of-vera"})
    page.goto("/failures/1?queue=orders")
    expect(page.locator(".who")).to_have_text("vera")
    for name in "Save the note", "Mark as known", "Plan a repair of 3 letters":
        expect(page.get_by_role("button", name=name)).to_be_disabled()
    form: Form = {"path": "orders", "number": "1", "note:text": "no"}
    headers = {"Authorization": "Bearer token-of-vera"}
    assert page.request.post(f"{address}/do/note_cause", form=form, headers=headers).status == 403
    assert page.request.get(f"{address}/activity", headers={"Authorization": "Bearer wrong"}).url.endswith(
        "/login"
    )


def test_a_person_logs_in_by_a_link_acts_and_logs_out(open_page: OpenPage, store: Path, address: str) -> None:
    with lazaretto.connect(store) as broker:
        made = broker.run(CreateLink(), actor="olga")
    page = open_page()
    page.goto(f"/login?code={made['secret']}")
    page.goto("/failures/3?queue=orders")
    page.get_by_label("Note").fill("by a session")
    page.get_by_role("button", name="Save the note").click()
    expect(page.locator("p.note")).to_have_text("by a session")
    # A form without the session's token is refused.
    form: Form = {"path": "orders", "number": "3", "note:text": "forged"}
    headers = {"Sec-Fetch-Site": "same-origin"}
    assert page.request.post(f"{address}/do/note_cause", form=form, headers=headers).status == 403
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()


def test_hostile_text_is_shown_as_it_is_spelled(open_page: OpenPage) -> None:
    page = open_page()
    page.goto("/dead-letters/7?queue=orders")
    shown = EVIL.replace("\u202e", "\\u202e")
    for place in ("pre.body", "h1", "table.facts"):
        assert shown[:60] in page.locator(place).first.inner_text()
    assert shown in page.locator("table.facts").first.inner_text()


def test_a_body_is_indented_and_no_digit_changes(open_page: OpenPage) -> None:
    page = open_page()
    page.goto("/dead-letters/1?queue=orders")
    text = page.locator("pre.body").inner_text()
    assert text == '{\n  "amount": -1.10,\n  "big": 12345678901234567890\n}'


def test_the_keyboard_leads_from_the_overview_to_a_letter(open_page: OpenPage) -> None:
    page = open_page()
    page.goto("/")
    page.keyboard.press("g")
    page.keyboard.press("f")
    expect(page.locator("h1")).to_have_text("Failures")
    page.keyboard.press("j")
    expect(page.locator("main a.open").first).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="What they share")).to_be_visible()
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox").first).to_be_focused()
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    expect(page.locator("h1")).to_have_text("Keys")


def test_keys_go_through_a_list_and_choose_letters(open_page: OpenPage) -> None:
    page = open_page()
    page.goto("/failures/1?queue=orders")
    page.keyboard.press("j")
    page.keyboard.press("x")
    page.keyboard.press("j")
    page.keyboard.press("x")
    expect(page.get_by_role("button", name="Plan a repair of the chosen 2")).to_be_visible()
    page.keyboard.press("x")
    expect(page.get_by_role("button", name="Plan a repair of the chosen 1")).to_be_visible()
    page.locator("main tbody a.open").first.click()
    heading = page.locator(".crumbs")
    first = heading.inner_text()
    page.keyboard.press("n")
    expect(heading).not_to_have_text(first)
    page.keyboard.press("p")
    expect(heading).to_have_text(first)
    expect(page.locator(".beside a[rel=prev][href]")).to_have_count(0)
    page.keyboard.press("r")
    expect(page.get_by_role("button", name="Resubmit")).to_be_focused()
    page.keyboard.press("e")
    expect(page.get_by_label("What to change")).to_be_visible()


def test_times_are_told_exactly(open_page: OpenPage) -> None:
    page = open_page()
    page.goto("/dead-letters/1?queue=orders")
    time = page.locator(".lead time")
    age, exact = time.inner_text(), time.get_attribute("datetime")
    assert exact is not None
    page.keyboard.press("u")
    expect(time).to_have_text(f"{exact[:10]} {exact[11:19]} UTC")
    page.reload()
    expect(time).to_contain_text("UTC")
    page.keyboard.press("u")
    expect(time).not_to_contain_text("UTC")
    page.keyboard.press("u")
    expect(time).to_contain_text(age.split()[-1])


def test_keys_can_be_switched_off(open_page: OpenPage) -> None:
    page = open_page()
    page.goto("/keys")
    page.get_by_label("Keys do something").uncheck()
    page.keyboard.press("Tab")
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox").first).not_to_be_focused()
    page.reload()
    page.get_by_label("Keys do something").check()
    page.keyboard.press("Tab")
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox").first).to_be_focused()


def test_chosen_letters_become_a_plan(open_page: OpenPage, store: Path) -> None:
    page = open_page()
    page.goto("/failures/2?queue=orders")
    boxes = page.locator("main tbody input[type=checkbox]")
    boxes.nth(0).check()
    boxes.nth(1).check()
    page.get_by_role("button", name="Plan a repair of the chosen 2").click()
    expect(page.locator(".lead .state")).to_have_text("planned")
    expect(page.locator(".lead strong")).to_have_text("2")
    with lazaretto.connect(store) as broker:
        assert broker.repairs("orders", limit=1)[0].which.keys() == {"numbers"}


def test_a_queue_is_held_from_the_page_of_a_cause(open_page: OpenPage, store: Path) -> None:
    page = open_page(390)
    page.goto("/failures/2?queue=orders")
    page.get_by_text("Pause the queue…").click()
    page.get_by_role("button", name="Disable receiving").click()
    expect(page.locator("main")).to_contain_text("orders hands out nothing until somebody enables receiving")
    with lazaretto.connect(store) as broker:
        assert broker.queue("orders").status is lazaretto.QueueStatus.RECEIVE_DISABLED
    page.locator(".done").get_by_role("button", name="Undo").click()
    expect(page.locator("main")).to_contain_text("Other messages are handed out")


def test_which_queues_the_overview_shows(open_page: OpenPage) -> None:
    page = open_page()
    page.goto("/")
    expect(page.locator(".flows dt")).to_have_text(["sent", "completed", "failed attempts", "dead letters"])
    expect(page.locator("tr[id='q-loads']")).to_have_count(1)
    page.get_by_role("link", name="stand still").click()
    expect(page.locator("tr[id='q-ledger']")).to_have_count(1)
    expect(page.locator("tr[id='q-loads'], tr[id='q-orders']")).to_have_count(0)


def test_a_search_with_conditions(open_page: OpenPage) -> None:
    page = open_page()
    page.goto("/")
    page.keyboard.press("/")
    page.keyboard.type("queue:orders error:ValueError body.amount=-1.1")
    page.keyboard.press("Enter")
    expect(page.locator("main tbody a.open")).to_have_text(["3", "2", "1"])
    page.goto("/search?q=colour:red")
    expect(page.locator("main")).to_contain_text("unknown condition 'colour:'")


def test_a_body_as_it_is_and_as_a_file(open_page: OpenPage, address: str) -> None:
    page = open_page()
    page.goto("/dead-letters/2?queue=orders")
    page.get_by_role("link", name="raw").click()
    expect(page.locator("pre.body")).to_have_text('{"amount": -1.10, "big": 12345678901234567890}')
    page.get_by_role("link", name="hex").click()
    expect(page.locator("pre.body")).to_contain_text("7b 22 61 6d")
    answer = page.request.get(f"{address}/api/v1/dead-letters/2/body?queue=orders")
    assert answer.body() == b'{"amount": -1.10, "big": 12345678901234567890}'
    assert answer.headers["content-disposition"] == 'attachment; filename="2.bin"'
    assert "sandbox" in answer.headers["content-security-policy"]


def test_a_note_is_made_and_taken_back(open_page: OpenPage, store: Path) -> None:
    page = open_page()
    page.goto("/failures/2?queue=orders")
    page.get_by_label("Note").fill("ticket 811 <b>")
    page.get_by_role("button", name="Save the note").click()
    expect(page.locator(".done")).to_contain_text("Done:")
    expect(page.locator("p.note")).to_have_text("ticket 811 <b>")
    with lazaretto.connect(store) as broker:
        entry = broker.audit(limit=1)[0]
        assert (entry.actor, entry.action) == ("ana", "note_cause")
    page.locator(".done").get_by_role("button", name="Undo").click()
    expect(page.locator("p.note")).to_have_count(0)


def test_a_list_of_causes_finds_out_what_they_share(open_page: OpenPage) -> None:
    page = open_page()
    page.goto("/failures?queue=orders&explain=1")
    assert page.url.endswith("/failures?queue=orders")
    expect(page.locator(".causes")).to_contain_text("amount")
    expect(page.get_by_role("link", name="Find out what they share")).to_have_count(0)


def test_a_letter_that_is_sent_back_tells_its_life(open_page: OpenPage) -> None:
    page = open_page()
    page.goto("/dead-letters/5?queue=orders")
    life = page.locator("table.rows")
    expect(life).to_contain_text("sent")
    expect(life).to_contain_text("attempt 1")
    expect(life).to_contain_text("dead-lettered: MaxDeliveryCountExceeded")
    page.get_by_role("button", name="Resubmit").click()
    expect(page.locator(".lead .state")).to_have_text("resubmitted")
    expect(life).to_contain_text("sent back")
    expect(page.locator("main")).to_contain_text("It became message")
    expect(page.get_by_role("button", name="Resubmit")).to_have_count(0)


def test_an_edit_shows_its_difference_and_becomes_a_repair(open_page: OpenPage) -> None:
    page = open_page()
    page.goto("/dead-letters/4/edit?queue=orders")
    page.get_by_label("What to change").fill("SET body.currency = 'EUR'")
    expect(page.locator("#difference .plus")).to_contain_text('"EUR"')
    page.get_by_role("button", name="Plan a repair of this letter").click()
    expect(page.locator("main")).to_contain_text("SET body.currency = 'EUR'")
    expect(page.locator(".lead .state")).to_have_text("planned")
    page.goto("/dead-letters/4/edit?queue=orders&edit=os:getcwd")
    expect(page.locator("#difference .wrong")).to_contain_text("functions are for the command line")


def test_settings_show_the_difference_before_they_are_saved(open_page: OpenPage, store: Path) -> None:
    page = open_page()
    page.goto("/do/update_queue?path=billing")
    page.get_by_label("lock duration", exact=True).fill("90")
    page.get_by_role("button", name="Show what would change").click()
    expect(page.locator(".review")).to_contain_text("90")
    page.get_by_role("button", name="Save 1 change").click()
    expect(page.locator(".done")).to_contain_text("update")
    with lazaretto.connect(store) as broker:
        assert broker.queue("billing").options.lock_duration == 90


def test_a_page_follows_the_store(open_page: OpenPage, store: Path) -> None:
    page = open_page()
    page.goto("/failures?queue=orders")
    expect(page.locator("#live")).to_have_attribute("data-state", "live")
    before = page.locator("h1").inner_text()
    with lazaretto.connect(store) as broker:
        broker.sender("orders").send(Message(b"{}"))
        with broker.receiver("orders") as receiver:
            receiver.dead_letter(receiver.receive(10), reason="Live")
    expect(page.locator("h1")).not_to_have_text(before)


def test_ages_go_on_on_a_page_that_is_not_drawn_again(
    open_page: OpenPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "_minute", lambda: 0)
    page, statuses = open_page(), list[int]()
    page.clock.install()
    page.goto("/queue?queue=ledger")
    halted = page.locator(".halted time")
    page.on("response", lambda answer: statuses.append(answer.status) if "ledger" in answer.url else None)
    page.clock.fast_forward("03:00:00")
    expect(halted).to_have_text("3 h ago")
    page.keyboard.press("u")
    expect(halted).to_contain_text("UTC")
    page.clock.fast_forward("02:00:00")
    page.clock.run_for(1000)
    page.keyboard.press("u")
    page.keyboard.press("u")
    expect(halted).to_have_text("5 h ago")
    assert statuses
    assert set(statuses) == {304}


def test_a_page_says_when_its_server_is_gone(chromium: Browser, address: str) -> None:
    with chromium.new_context(base_url=address) as context:
        page = context.new_page()
        page.clock.install()
        page.goto("/queues")
        expect(page.locator("#live")).to_have_attribute("data-state", "live")
        page.route("**/*", lambda route: route.abort())
        page.clock.fast_forward(11_000)
        expect(page.locator("#live")).to_have_attribute("data-state", "lost")
        expect(page.locator("#live-word")).to_contain_text("; as of ")
        page.unroute("**/*")
        page.clock.fast_forward(11_000)
        expect(page.locator("#live")).to_have_attribute("data-state", "live")


def test_nothing_typed_is_lost_while_the_server_is_away(chromium: Browser, address: str, store: Path) -> None:
    with chromium.new_context(base_url=address) as context:
        page = context.new_page()
        page.clock.install()
        page.goto("/failures/2?queue=orders")
        expect(page.locator("#live")).to_have_attribute("data-state", "live")
        note, save = page.get_by_label("Note"), page.get_by_role("button", name="Save the note")
        note.fill("half a thought")
        page.route("**/*", lambda route: route.abort())
        save.click()
        expect(page.locator("#live")).to_have_attribute("data-state", "lost")
        expect(save).to_be_disabled()
        expect(note).to_have_value("half a thought")
        page.unroute("**/*")
        page.clock.fast_forward(11_000)
        expect(save).to_be_enabled()
        expect(note).to_have_value("half a thought")
        save.click()
        expect(page.locator(".done")).to_contain_text("note cause")
    with lazaretto.connect(store) as broker:
        assert broker.cause("orders", 2).note == "half a thought"


def test_an_action_asked_for_by_another_site_is_refused(open_page: OpenPage, address: str) -> None:
    page = open_page()
    form: Form = {"path": "orders", "number": "1", "note": "no"}
    for headers in {"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://evil.example"}:
        answer = page.request.post(f"{address}/do/note_cause", form=form, headers=headers)
        assert answer.status == 403
    answer = page.request.get(f"{address}/", headers={"Host": "evil.example"})
    assert answer.status == 421


@pytest.mark.parametrize(
    "back", ["//evil.example/", "https://evil.example/", "/\\evil.example", "javascript:1"]
)
def test_an_action_never_leads_to_another_site(open_page: OpenPage, address: str, back: str) -> None:
    page = open_page()
    form: Form = {"path": "orders", "number": "2", "note:text": "x", "back": back}
    answer = page.request.post(f"{address}/do/note_cause", form=form, max_redirects=0)
    assert answer.status == 303
    assert answer.headers["location"].startswith("/?did=")


def test_a_held_dialog_is_resumed(open_page: OpenPage, store: Path) -> None:
    page = open_page()
    page.goto("/dialogs")
    page.get_by_role("heading", name="Held by a poison message").wait_for()
    page.locator("main a.open").first.click()
    expect(page.locator("main")).to_contain_text("A verdict on message 1")
    page.get_by_label("Verdict").select_option("move")
    page.get_by_role("button", name="Resume").click()
    expect(page.locator(".done")).to_contain_text("resume")
    with lazaretto.connect(store) as broker:
        assert list(broker.dialogs.conversations(held=True)) == []


def test_a_rule_is_tested_added_and_removed(open_page: OpenPage, store: Path) -> None:
    page = open_page()
    page.goto("/topics")
    page.get_by_role("link", name="Change or test rules").click()
    page.get_by_label("Condition in SQL, if any").fill("amount >= 3")
    page.get_by_label("Its properties, each as name=value in a line").fill("amount=7")
    page.get_by_role("button", name="Test", exact=True).click()
    expect(page.locator("#test")).to_contain_text("The condition matches 2 of 5 messages that wait")
    expect(page.locator("#test table")).to_contain_text("amount is 7")
    page.get_by_label("Name", exact=True).fill("large")
    expect(page.get_by_label("Condition", exact=True)).to_have_value("amount >= 3")
    page.get_by_role("button", name="Add the rule").click()
    row = page.locator("tr", has_text="large").filter(has_text="Remove")
    expect(row).to_contain_text("2 of 5")
    row.locator("summary").click()
    row.get_by_role("button", name="Remove large").click()
    expect(page.locator("tr", has_text="large")).to_have_count(0)
    page.goto("/rules?topic=sales&subscription=all&filter=amount+%3E+%3E")
    expect(page.locator("#test .wrong")).to_be_visible()


def test_a_claim_is_revoked(open_page: OpenPage, store: Path) -> None:
    page = open_page()
    page.goto("/claims?queue=loads")
    page.locator("summary", has_text="Revoke").click()
    page.get_by_role("button", name="Revoke claim 1").click()
    expect(page.locator("tbody .state")).to_have_text("revoked")
    with lazaretto.connect(store) as broker:
        assert broker.queue("loads").counts.active == 3


def test_a_role_is_granted_and_a_token_is_shown_once(open_page: OpenPage, store: Path) -> None:
    page = open_page()
    page.goto("/")
    page.get_by_role("link", name="ana").click()
    grant = page.locator("section", has_text="Grant a role")
    grant.get_by_label("Person, or group:NAME").fill("rosa")
    grant.get_by_label("Role").select_option("operator")
    grant.get_by_role("button", name="Grant").click()
    expect(page.locator("tr", has_text="rosa")).to_contain_text("operator")
    token = page.locator("section", has_text="Make a token")
    token.get_by_label("For", exact=True).fill("rosa")
    token.get_by_role("button", name="Make it").click()
    secret = page.locator("pre").inner_text()
    page.get_by_role("link", name="Back").click()
    assert secret not in page.content()
    page.set_extra_http_headers({"Authorization": f"Bearer {secret}"})
    page.goto("/access")
    expect(page.locator(".who")).to_have_text("rosa")
    # Who else may do what is not shown to an operator.
    expect(page.get_by_role("heading", name="People and groups")).to_have_count(0)


def test_what_is_shown_only_once_stays(open_page: OpenPage, store: Path) -> None:
    """The page answers a form, and asking for it again would answer with an error."""
    page = open_page()
    page.clock.install()
    page.goto("/access")
    token = page.locator("section", has_text="Make a token")
    token.get_by_label("For", exact=True).fill("vera")
    token.get_by_role("button", name="Make it").click()
    secret = page.locator("pre").inner_text()
    page.clock.fast_forward(11_000)
    with lazaretto.connect(store) as broker:
        broker.create_queue("news")
    page.clock.run_for(2_000)
    expect(page.locator("#live")).to_have_attribute("data-state", "off")
    assert page.locator("pre").inner_text() == secret


def test_causes_are_merged_and_split(open_page: OpenPage, store: Path) -> None:
    page = open_page()
    page.goto("/failures/1?queue=orders")
    page.get_by_text("Merge and split").click()
    page.get_by_label("With").select_option(index=0)
    page.get_by_role("button", name="Merge").click()
    expect(page.locator(".done")).to_contain_text("merge")
    page.get_by_text("Merge and split").click()
    page.get_by_label("Those with the fingerprint").select_option(index=1)
    page.get_by_role("button", name="Split").click()
    expect(page.locator(".done")).to_contain_text("split")
