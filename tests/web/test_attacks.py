"""What strangers and hostile content try over HTTP: slow bodies, forged cursors, texts that break out."""

from __future__ import annotations

import csv
import gzip
import io
import json
import logging
import socket
import threading
import time
import urllib.parse
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from lazaretto import Broker, Message
from lazaretto.commands import CreateLink, CreateToken, GrantRole, PlanRepair
from lazaretto.web import bounded

from .conftest import Served

pytestmark = pytest.mark.stores("sqlite")

#: What breaks out of elements, attributes, headers, terminals and cells.
HOSTILE = [
    "<script>pwned=1</script>",
    "'\"><img src=x onerror='pwned=1'>",
    "</pre></title></textarea></script>",
    "{{7*7}}{% raw %}",
    "javascript:pwned=1",
    "\u202egnp.exe",
    "a\r\nSet-Cookie: x=1",
    "a\u2028\u200b\u0007",
    "=cmd|' /C calc'!A0",
    "a" * 200_000,
    "[" * 100_000,
    "9" * 5_000,
]


@pytest.fixture
def dead(broker: Broker) -> Broker:
    """A dead letter of each hostile text, in every field that takes it."""
    sender, receiver = broker.sender("q"), broker.receiver("q")
    for text in HOSTILE:
        sender.send(
            Message(
                text.encode(), message_id=text[:100], subject=text[:100], properties={text[:60]: text[:900]}
            )
        )
        message = receiver.receive(1)
        error = ValueError(text)
        receiver.dead_letter(message, reason=text[:200], description=text[:4000], error=error)
    return broker


@pytest.fixture
def site(served: Served) -> Iterator[httpx.Client]:
    """The console, as the administrator sees it."""
    headers = {"Authorization": "Bearer token-of-admin"}
    with httpx.Client(base_url=f"http://127.0.0.1:{served.port}", headers=headers, timeout=120) as client:
        yield client


def raw(served: Served, request: bytes) -> bytes:
    """Send bytes, and return the answer up to its end or the connection's."""
    with socket.create_connection(("127.0.0.1", served.port), timeout=120) as client:
        client.sendall(request)
        client.shutdown(socket.SHUT_WR)
        parts = []
        while part := client.recv(65_536):
            parts.append(part)
    return b"".join(parts)


class TestContent:
    def test_pages_and_answers_hold_it_as_text(self, dead: Broker, site: httpx.Client) -> None:
        """In pages, in the API, in errors that name it."""
        pages = ["/", "/failures?queue=q", "/activity", "/activity?lens=events", "/search?q=pwned"]
        pages += [f"/dead-letters/{number}?queue=q" for number in range(1, len(HOSTILE) + 1)]
        pages += [f"/failures/{number}?queue=q" for number in range(1, len(dead.triage("q").causes) + 1)]
        for hostile in HOSTILE[:-3]:
            named = urllib.parse.quote(hostile)
            pages += [
                f"/queue?queue={named}",
                f"/failures?queue={named}",
                f"/search?q={named}",
                f"/nothing/{named}",
            ]
            pages += [f"/dialogs/{named.replace('/', '%2F')}", f"/dead-letters/1/edit?queue=q&edit={named}"]
        for page in pages:
            answer = site.get(page)
            assert answer.status_code in (200, 404, 422), (page, answer.status_code)
            for bare in ("<script>pwned", "<img src=x", "\u202e", "\u0007", "</pre></title>"):
                is_page = answer.headers["content-type"].startswith("text/html")
                assert not is_page or bare not in answer.text, (page, bare)
            assert answer.headers["x-content-type-options"] == "nosniff", page
            assert "x=1" not in answer.headers.get("set-cookie", ""), page
            assert len(answer.content) < 600_000, page

    def test_errors_in_a_browser_are_no_pages(self, dead: Broker, site: httpx.Client) -> None:
        for path in (
            "/api/v1/queues/<script>",
            "/api/v1/dead-letters?queue=q&where=<script>",
            "/api/v1/<script>",
        ):
            answer = site.get(path)
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.headers["content-security-policy"].startswith("default-src 'none'")
            assert answer.headers["x-content-type-options"] == "nosniff"

    def test_lines_keep_it_and_cells_are_no_formulas(self, dead: Broker, api: httpx.Client) -> None:
        given = {"queue": "q"}
        lines = api.get("/dead-letters/export", params=given).text.split("\n")
        assert [json.loads(line)["reason"] for line in lines if line] == [text[:200] for text in HOSTILE]
        answer = api.get("/dead-letters/export", params={**given, "format": "csv"})
        assert answer.headers["content-disposition"] == 'attachment; filename="dead-letters.csv"'
        rows = list(csv.reader(io.StringIO(answer.text, newline="")))
        assert len(rows) == len(HOSTILE) + 1
        assert not [cell for row in rows for cell in row if cell.startswith(("=", "+", "-", "@", "\t", "\r"))]


class TestRequests:
    @pytest.mark.parametrize(
        "name",
        ["../site.py", "..%2fsite.py", "%2e%2e/site.py", "..\\site.py", "console.css%00", "/etc/passwd",
         "%2fetc%2fpasswd", "console.css", "....//site.py"],
    )  # fmt: skip
    def test_files_of_the_server(self, broker: Broker, served: Served, name: str) -> None:
        request = f"GET /static/{name} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        answer = raw(served, request.encode())
        assert answer.startswith((b"HTTP/1.1 404", b"HTTP/1.1 400")), answer[:200]
        assert b"import" not in answer and b"root:" not in answer

    @pytest.mark.parametrize(
        "line", [b"/login?next=https://evil.com", b"//evil.com/", b"/%5cevil.com", b"/%0d%0aX: y"]
    )
    def test_nobody_is_led_to_another_site(self, broker: Broker, served: Served, line: bytes) -> None:
        answer = raw(served, b"GET " + line + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        head = answer.partition(b"\r\n\r\n")[0].lower()
        assert b"evil.com" not in head and b"\r\nx: y" not in head

    def test_a_slow_body(self, broker: Broker, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
        """Who sends a body byte by byte is told so and holds up nobody."""
        monkeypatch.setattr(bounded, "_PATIENCE", 0.5)
        with socket.create_connection(("127.0.0.1", served.port), timeout=120) as client:
            client.sendall(
                b"POST /api/v1/messages?queue=q HTTP/1.1\r\nHost: localhost\r\n"
                b"Authorization: Bearer token-of-admin\r\nContent-Length: 100\r\n\r\n{"
            )
            assert served.client("admin").get("/queues").status_code == 200
            assert client.recv(65_536).startswith(b"HTTP/1.1 408")
        assert broker.peek("q") == []

    def test_a_body_that_is_packed_is_taken_as_it_is(self, broker: Broker, api: httpx.Client) -> None:
        packed = gzip.compress(b'{"body": "' + b"x" * 10_000_000 + b'"}')
        answer = api.post(
            "/messages", params={"queue": "q"}, content=packed, headers={"Content-Encoding": "gzip"}
        )
        assert answer.status_code in (400, 415)
        assert broker.peek("q") == []

    def test_bodies_without_a_length(self, broker: Broker, site: httpx.Client) -> None:
        def endless() -> Iterator[bytes]:
            for _ in range(2_000):
                yield b"path=q&" * 100

        for path in ("/do/set_status", "/login", "/api/v1/commands/set_status"):
            headers = {"Sec-Fetch-Site": "same-origin"}
            answer = site.post(path, content=endless(), headers=headers)
            assert answer.status_code == 413, path

    def test_too_many_fields(self, broker: Broker, site: httpx.Client) -> None:
        form = "&".join(f"f{number}=1" for number in range(10_000))
        answer = site.post("/do/set_status", content=form.encode())
        assert answer.status_code == 400

    def test_connections_that_say_nothing(self, broker: Broker, served: Served) -> None:
        idle = [socket.create_connection(("127.0.0.1", served.port), timeout=120) for _ in range(200)]
        try:
            for one in idle[::2]:
                one.sendall(b"GET /api/v1/queues HTTP/1.1\r\nHost: loc")
            assert served.client("admin").get("/queues").status_code == 200
        finally:
            for one in idle:
                one.close()

    @pytest.mark.parametrize("forge", ["other", "cut", "flipped", "long", "sql"])
    def test_forged_cursors(self, dead: Broker, api: httpx.Client, forge: str) -> None:
        page = api.get("/dead-letters", params={"queue": "q", "limit": 2}).json()
        cursor = page["next"]
        given = {"queue": "q", "limit": "2"}
        match forge:
            case "other":
                given |= {"reason": "x"}
            case "cut":
                cursor = cursor[:-2]
            case "flipped":
                cursor = cursor[:-1] + ("A" if cursor[-1] != "A" else "B")
            case "long":
                cursor *= 1_000
            case "sql":
                cursor = "1 OR 1=1; DROP TABLE lazaretto_queues"
        answer = api.get("/dead-letters", params={**given, "cursor": cursor})
        # At worst a page of the same queue, as anybody who may list it gets.
        assert answer.status_code in (200, 422), answer.text
        if answer.status_code == 200:
            assert all(letter["queue"] == "q" for letter in answer.json()["letters"])
        assert dead.check() == []

    @pytest.mark.parametrize(
        "where", ["1=1; DROP TABLE lazaretto_queues", "(" * 5_000, "subject LIKE '" + "%a" * 2_000 + "'",
                  "body.x ~ '(a+)+$'", "subject = '" + "x" * 60_000 + "'"],
        ids=["statement", "deep", "like", "regex", "long"],
    )  # fmt: skip
    def test_conditions_are_bounded(self, dead: Broker, api: httpx.Client, where: str) -> None:
        began = time.monotonic()
        answer = api.get("/dead-letters", params={"queue": "q", "where": where})
        assert answer.status_code in (200, 400, 414, 422), answer.text
        assert time.monotonic() - began < 60
        assert dead.check() == []


class TestSecrets:
    def test_tokens_are_in_no_log_and_no_answer(
        self, broker: Broker, served: Served, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        broker.run(GrantRole(person="ana", role="admin"), actor="me")
        token = broker.run(CreateToken(person="ana"), actor="me")["secret"]
        link = broker.run(CreateLink(), actor="ana")["secret"]
        with httpx.Client(base_url=f"http://127.0.0.1:{served.port}") as client:
            headers = {"Authorization": f"Bearer {token}"}
            shown = [client.get("/api/v1/queues", headers=headers).text]
            shown += [
                client.get(path, headers=headers).text for path in ("/access", "/activity", "/api/v1/audit")
            ]
            login = client.get(f"/login?code={link}")
            assert login.status_code == 303
            cookie = login.cookies[next(iter(login.cookies))]
            shown += [client.get("/api/v1/queues", params={"x": "1"}).text]
        for secret in (token, link, cookie):
            assert all(secret not in text for text in shown)
            # The client's own log has the link; uvicorn's is off, and only listened to because of caplog.
            others = ("httpx", "httpcore", "uvicorn.access")
            said = [record for record in caplog.records if not record.name.startswith(others)]
            assert [one for one in said if secret in f"{one.getMessage()} {one.__dict__}"] == []
            assert all(secret not in str(entry) for entry in broker.audit(limit=100))

    def test_a_key_is_one_persons(self, broker: Broker, served: Served) -> None:
        body, headers = {"path": "new"}, {"Idempotency-Key": "k"}
        first = served.client("admin").post("/commands/create_queue", json=body, headers=headers)
        again = served.client("admin").post("/commands/create_queue", json=body, headers=headers)
        assert (first.status_code, again.status_code, first.json()) == (200, 200, again.json())
        other = served.client("admin").post("/commands/create_queue", json={"path": "more"}, headers=headers)
        assert (other.status_code, other.json()["code"]) == (422, "idempotency_conflict")
        # Another person's key of the same name is another key.
        theirs = served.client("shop").post(
            "/commands/create_queue", json={"path": "shop/x"}, headers=headers
        )
        assert theirs.status_code == 200

    def test_two_at_once_apply_a_repair_once(self, dead: Broker, api: httpx.Client) -> None:
        dead.run(PlanRepair(path="q", name="mend", everything=True, in_flight=None), actor="me")
        answers: list[httpx.Response] = []

        def ask() -> None:
            answers.append(api.post("/commands/apply_repair", json={"name": "mend"}))

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        codes = sorted(answer.status_code for answer in answers)
        assert codes[0] == 200
        assert set(codes[1:]) <= {200, 409}
        dead.repair("mend").run()
        assert dead.queue("q").counts.active == len(HOSTILE)
        assert dead.queue("q").counts.dead_letter == 0


def test_one_who_does_not_read_holds_up_nobody(broker: Broker, served: Served) -> None:
    """A stream whose client takes nothing: others get their events at once."""
    with socket.create_connection(("127.0.0.1", served.port), timeout=120) as stuck:
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stuck.sendall(
            b"GET /api/v1/events/stream?after=0 HTTP/1.1\r\nHost: localhost\r\n"
            b"Authorization: Bearer token-of-admin\r\n\r\n"
        )
        client = served.client("admin")
        with client.stream("GET", "/events/stream", params={"after": 0}) as other:
            lines = other.iter_lines()
            for number in range(300):
                broker.create_queue(f"q{number}/{'x' * 200}")
            wanted: Any = f"q299/{'x' * 200}"
            assert any(wanted in line for line in lines)
