"""`lazaretto access`, and the link and proxies of `lazaretto serve`, as a person uses them."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import httpx
import pytest
from cli_program import Program, set_aside

import lazaretto


@pytest.fixture
def program(tmp_path: Path) -> Program:
    path = tmp_path / "store.db"
    with lazaretto.connect(path) as broker:
        broker.create_queue("shop/orders")
    return Program(path)


def test_from_a_grant_to_its_end(program: Program) -> None:
    program.ok("access", "grant", "ana", "operator", "--queue", "shop/*")
    granted = program.ok("access", "grant", "group:ops", "admin", "--json").json
    assert granted["grants"] == [{"role": "admin", "pattern": "*"}]
    people = program.ok("access", "person", "list", "--csv").out.splitlines()
    assert [line.partition(",20")[0] for line in people] == [
        "person,roles,since", "ana,operator on shop/*", "group:ops,admin",
    ]  # fmt: skip
    secret = program.ok("access", "token", "create", "ana", "--for", "laptop", "--expires", "90d").out.strip()
    made = program.ok("access", "token", "create", "ana", "--json").json
    assert secret.startswith("lzt_")
    (first, second) = program.ok("access", "token", "list", "--person", "ana", "--json").json
    assert {first["id"], second["id"]} == {made["id"], secret.split("_")[1]}
    assert secret not in program.ok("audit", "--json").out
    program.fails(2, "usage", "access", "token", "revoke", made["id"])
    program.ok("access", "token", "revoke", made["id"], "--yes")
    program.fails(1, "token_not_found", "access", "token", "revoke", made["id"], "--yes")
    program.ok("access", "withdraw", "ana", "operator", "--queue", "shop/*")
    program.fails(1, "not_allowed", "access", "withdraw", "ana", "operator")
    program.fails(1, "person_not_found", "access", "token", "create", "bob")
    program.fails(2, "usage", "access", "grant", "ana", "god")
    removed = program.ok("access", "person", "remove", "ana", "--yes", "--json").json
    assert removed == {"person": "ana", "secrets": 1}
    assert program.ok("access", "session", "end", "ana", "--json").json == {"person": "ana", "sessions": 0}
    actions = {entry["action"] for entry in program.ok("audit", "--json").json if not entry["queue"]}
    assert actions == {
        f"access: {verb}" for verb in ("grant", "withdraw", "token", "revoke", "remove", "end sessions")
    }


def test_a_server_runs_the_repairs_that_are_applied(program: Program) -> None:
    """A repair that is applied over HTTP is sent without another process; no request names a function."""
    with program.broker() as broker:
        set_aside(broker, "orders", [b"no 1", b"no 2", b"no 3"])
    with program.start("serve", "--http", "0", "--json", "--no-login") as server:
        try:
            assert server.stdout is not None
            told = json.loads(server.stdout.readline())
            with httpx.Client(base_url=told["url"]) as client:
                plan = {"path": "orders", "name": "mend", "everything": True, "canary": 0, "in_flight": None}
                refused = client.post("/commands/plan_repair", json={**plan, "edit": "os:system"})
                assert refused.json()["code"] == "invalid_option"
                assert client.post("/commands/plan_repair", json=plan).status_code == 200
                assert client.post("/commands/apply_repair", json={"name": "mend"}).status_code == 200
                with program.broker() as broker:
                    messages = broker.receiver("orders").receive(3, max_wait=120)
                    while len(messages) < 3:
                        more = broker.receiver("orders").receive(3, max_wait=120)
                        assert more
                        messages += more
            server.send_signal(signal.SIGTERM)
            assert server.wait(120) == 0
        finally:
            server.kill()


def test_the_links_of_a_server(program: Program) -> None:
    """The server's own link, and one from another process."""
    options = ["--http", "0", "--json", "--proxy", "127.0.0.1", "--origin", "https://queues.example.com"]
    options += ["--user-header", "X-Forwarded-User"]
    options += ["--log-format", "json", "--log-level", "info"]
    with program.start("serve", *options) as server:
        try:
            assert server.stdout is not None
            told = json.loads(server.stdout.readline())
            assert told["login_url"].startswith("https://queues.example.com/login?code=lzl_")
            address = f"http://127.0.0.1:{told['http_port']}"
            program.ok("access", "grant", "ana", "viewer")
            link = program.ok("access", "link", "ana", "--url", address).out.strip()
            with httpx.Client(base_url=address) as client:
                for url in (link, told["login_url"].replace("https://queues.example.com", address)):
                    answer = client.get(url, headers={"Host": "queues.example.com"})
                    assert answer.status_code == 303, answer.text
                    assert "__Host-lazaretto=lzs_" in answer.headers["set-cookie"]
                answer = client.get("/api/v1/overview", headers={"X-Forwarded-User": "ana"})
                assert answer.status_code == 200
            sessions = program.ok("access", "session", "list", "--json").json
            assert {one["label"] for one in sessions} == {"127.0.0.1"}
            assert len(sessions) == 2
            server.send_signal(signal.SIGTERM)
            out, err = server.communicate(timeout=120)
            assert (server.returncode, out) == (0, b"")
            (request,) = [json.loads(line) for line in err.splitlines()]
            about = ("level", "event", "actor", "origin", "method", "route", "status")
            assert tuple(request[name] for name in about) == (
                "INFO", "request", "ana", "127.0.0.1", "GET", "/overview", 200,
            )  # fmt: skip
        finally:
            server.kill()


@pytest.mark.parametrize(
    "options",
    [
        ("--proxy", "everywhere"),
        ("--proxy", "127.0.0.1", "--user-header", "a b"),
        ("--proxy", "127.0.0.1", "--groups-header", "X-Forwarded-Groups"),
        ("--user-header", "X-Forwarded-User"),
        ("--origin", "queues.example.com"),
        ("--origin", "https://queues.example.com/path?query"),
        ("--host", "0.0.0.0"),
        ("--host", "192.0.2.1", "--no-login"),
        ("--colour", "crimson"),
        ("--name", "x" * 31),
        ("--read-only", "--amqp", "0"),
        ("--oidc-client", "lazaretto"),
        ("--oidc", "http://id.example.com", "--oidc-client", "lazaretto"),
        ("--host", "0.0.0.0", "--origin", "https://queues.example.com", "--no-login"),
    ],
    ids=[
        "network",
        "header",
        "groups-of-nobody",
        "header-of-nobody",
        "no-scheme",
        "path",
        "every-address",
        "another-open",
        "colour",
        "long-name",
        "amqp",
        "no-issuer",
        "issuer",
        "every-address-open",
    ],
)
def test_what_a_server_refuses(program: Program, options: tuple[str, ...]) -> None:
    result = program("serve", "--http", "0", *options)
    assert result.code == 2
    assert result.err.startswith("error[")


def test_four_eyes(program: Program) -> None:
    assert program.ok("access", "four-eyes").out == "any number\n"
    assert program.ok("access", "four-eyes", "100", "--json").json == {"letters": 100}
    assert program.ok("access", "four-eyes").out == "100 letters\n"
    assert program.ok("access", "four-eyes", "none").out == "any number\n"
    program.fails(2, "usage", "access", "four-eyes", "many")


def test_a_server_below_a_path(program: Program) -> None:
    """A proxy gives it a part of its host: every link and address begins with that path."""
    options = ["--http", "0", "--json", "--origin", "http://ops.example.com/our/queues"]
    with program.start("serve", *options) as server:
        try:
            assert server.stdout is not None
            told = json.loads(server.stdout.readline())
            assert told["url"].endswith("/our/queues/api/v1")
            assert told["login_url"].startswith("http://ops.example.com/our/queues/login?code=")
            address = f"http://127.0.0.1:{told['http_port']}"
            with httpx.Client(base_url=address, headers={"Host": "ops.example.com"}) as client:
                assert client.get("/healthz").status_code == 404
                assert client.get("/our/queues/healthz").status_code == 200
                answer = client.get(told["login_url"].removeprefix("http://ops.example.com"))
                assert (answer.status_code, answer.headers["location"]) == (303, "/our/queues/")
                page = client.get("/our/queues/").text
                links = re.findall(r'(?:href|src|action)="(/[^"]*)"', page)
                assert len(links) > 10
                assert [link for link in links if not link.startswith("/our/queues/")] == []
                style = next(link for link in links if link.endswith(".css"))
                assert client.get(style).status_code == 200
        finally:
            server.kill()


def test_a_server_that_only_shows(program: Program) -> None:
    """Its pages have its name, and its owner changes nothing."""
    options = ["--http", "0", "--json", "--no-login", "--read-only", "--name", "prod", "--colour", "red"]
    with program.start("serve", *options) as server:
        try:
            assert server.stdout is not None
            told = json.loads(server.stdout.readline())
            with httpx.Client(base_url=f"http://127.0.0.1:{told['http_port']}") as client:
                page = client.get("/").text
                assert "· prod · Lazaretto</title>" in page
                assert 'class="sign-red"' in page
                answer = client.put("/api/v1/queues/another", json={})
                assert (answer.status_code, answer.json()["code"]) == (403, "server_read_only")
            server.send_signal(signal.SIGTERM)
            assert server.wait(120) == 0
        finally:
            server.kill()


def test_another_address(program: Program) -> None:
    """It is served there, under its own name and the one that was given."""
    options = ["--http", "0", "--json", "--host", "127.0.0.2", "--origin", "http://queues.example.com"]
    with program.start("serve", *options) as server:
        try:
            assert server.stdout is not None
            told = json.loads(server.stdout.readline())
            assert told["url"] == f"http://127.0.0.2:{told['http_port']}/api/v1"
            headers = {"Authorization": f"Bearer {Path(told['token_file']).read_text().strip()}"}
            with httpx.Client(base_url=told["url"], headers=headers) as client:
                assert client.get("/queues").status_code == 200
                for name, status in (("queues.example.com", 200), ("evil.example.com", 421)):
                    assert client.get("/queues", headers={"Host": name}).status_code == status
        finally:
            server.kill()
