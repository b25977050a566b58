"""`lazaretto serve` with several stores, as a person uses it."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import httpx
import pytest
from cli_program import Program, set_aside

import lazaretto


@pytest.fixture
def program(tmp_path: Path) -> Program:
    with lazaretto.connect(tmp_path / "store.db") as broker:
        broker.create_queue("of-store")
    with lazaretto.connect(tmp_path / "test.db") as broker:
        set_aside(broker, "of-test", [b"one"])
    return Program(tmp_path / "store.db")


def test_stores_beside_each_other(program: Program, tmp_path: Path) -> None:
    other = tmp_path / "test.db"
    with program.start(
        "serve", "--http", "0", "--json", "--name", "prod", "--also", f"test:green={other}"
    ) as server:
        try:
            assert server.stdout is not None
            told = json.loads(server.stdout.readline())
            address = f"http://127.0.0.1:{told['http_port']}"
            with httpx.Client(base_url=address) as browser:
                # One browser has a session in each.
                for link in (told["login_url"], told["login_urls"]["test"]):
                    answer = browser.get(link.replace("localhost", "127.0.0.1"))
                    assert answer.status_code == 303, answer.text
                assert len({cookie.name for cookie in browser.cookies.jar}) == 2
                first, second = browser.get("/queues").text, browser.get("/test/queues").text
                assert "of-store" in first
                assert "of-test" not in first
                assert "of-test" in second
                assert "of-store" not in second
                assert '<a href="/test/">test</a>' in first
                assert '<a href="/">prod</a>' in second
                assert 'class="sign-green"' in second
            headers = {"Authorization": f"Bearer {Path(told['token_file']).read_text().strip()}"}
            with httpx.Client(base_url=address, headers=headers) as api:
                assert api.get("/test/api/v1/dead-letters?queue=of-test").json()["letters"]
                assert api.get("/api/v1/dead-letters?queue=of-test").status_code == 404
                assert api.get("/test/readyz").text == "ready\n"
                # What was applied in the other store is sent too.
                plan = {"path": "of-test", "name": "mend", "everything": True, "canary": 0}
                assert api.post("/test/api/v1/commands/plan_repair", json=plan).status_code == 200
                ran = api.post("/test/api/v1/commands/apply_repair", json={"name": "mend"})
                assert ran.status_code == 200
            with lazaretto.connect(other) as broker:
                assert broker.receiver("of-test").receive(1, max_wait=120)
            server.send_signal(signal.SIGTERM)
            assert server.wait(120) == 0
        finally:
            server.kill()


@pytest.mark.parametrize(
    "given",
    ["test", "=test.db", "a/b=test.db", "queues=test.db", "api=test.db", "x:crimson=test.db", "x=no.db"],
)
def test_what_is_refused(program: Program, tmp_path: Path, given: str) -> None:
    given = given.replace("test.db", str(tmp_path / "test.db"))
    ran = program("serve", "--http", "0", "--no-login", "--also", given)
    assert ran.code != 0
    assert ran.err.startswith("error["), ran.err
    assert ran.err.count("\n") == 1


HANDLERS = """
import json
from lazaretto import Message
from lazaretto.host import handler

@handler("sales")
def book(message, context):
    amount = json.loads(message.body)["amount"]
    context.send("receipts", Message(b"paid"))
    assert amount > 0, f"no sale of {amount}"

def look(message):
    print(message.body)
"""


def test_letters_are_tried_in_the_console(program: Program, tmp_path: Path) -> None:
    """On the handlers that the server was given, as edits leave them; nothing is settled or sent."""
    (tmp_path / "shop.py").write_text(HANDLERS)
    store = tmp_path / "test.db"
    with lazaretto.connect(store) as broker:
        broker.create_queue("receipts")
        for queue in ("paid", "sales"):
            set_aside(broker, queue, [b'{"amount": -5}'])
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    program.environment |= {"LAZARETTO_STORE": str(store), "PYTHONPATH": path}
    words = ("--handler", "shop:book", "--handler", "shop:look")
    with program.start("serve", "--http", "0", "--no-login", "--json", *words) as server:
        try:
            assert server.stdout is not None
            told = json.loads(server.stdout.readline())
            with httpx.Client(base_url=f"http://127.0.0.1:{told['http_port']}", timeout=120) as browser:
                form = {"queue": "sales", "number": "1", "handler": "shop:book"}
                shown = browser.post("/try", data=form).text
                assert "would fail" in shown
                assert "AssertionError</strong>: no sale of -5" in shown
                edited = browser.post("/try", data={**form, "edit": "SET body.amount = 7"}).text
                assert "would succeed" in edited
                assert "it would send 1 to receipts" in edited
                refused = browser.post("/try", data={**form, "edit": "SET body.amount = nonsense("})
                assert refused.status_code == 422
                # A handler is for its queue, and a function for any; others are not run.
                page = browser.get("/dead-letters/1/edit?queue=paid").text
                assert "<option>shop:look</option>" in page
                assert "shop:book" not in page
                for wrong in (
                    {"handler": "os:getcwd"}, {"queue": "paid"}, {"number": "²"},
                    {"edit": "os:getcwd"},
                ):  # fmt: skip
                    assert browser.post("/try", data={**form, **wrong}).status_code == 422, wrong
                assert browser.post("/try", data={**form, "number": "999"}).status_code == 404
                cross = {"Sec-Fetch-Site": "cross-site"}
                assert browser.post("/try", data=form, headers=cross).status_code == 403
            with lazaretto.connect(store) as broker:
                assert broker.queue("receipts").counts.active == 0
                assert broker.queue("sales").counts.dead_letter == 1
            server.send_signal(signal.SIGTERM)
            assert server.wait(120) == 0
        finally:
            server.kill()


def test_a_handler_that_is_none(program: Program) -> None:
    ran = program("serve", "--http", "0", "--no-login", "--handler", "nowhere:book")
    assert ran.code != 0
    assert ran.err.startswith("error["), ran.err
