"""`lazaretto serve` with several stores, as a person uses it."""

from __future__ import annotations

import json
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
            headers = {"Authorization": f"Bearer {told['token']}"}
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
                assert broker.receiver("of-test").receive(1, max_wait=20)
            server.send_signal(signal.SIGTERM)
            assert server.wait(10) == 0
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
