"""What the HTTP API refuses: strangers, other sites' pages, wrong types, too much."""

from __future__ import annotations

import socket
from typing import Any

import httpx
import pytest

from lazaretto import Broker
from lazaretto.errors import LazarettoError
from lazaretto.model.grants import Permission
from lazaretto.web.access import ROLES, Role
from lazaretto.web.answers import STATUSES
from lazaretto.web.routes import ROUTES, Route

from . import openapi_file
from .conftest import Served

ROLE_NAMES = ("viewer", "client", "operator", "admin")

pytestmark = pytest.mark.stores("sqlite")


def path_of(route: Route, entity: str) -> tuple[str, dict[str, Any]]:
    """Return a path and parameters of a route that are about an entity."""
    path = route.path
    for name in route.path_types:
        value = {"path": entity, "number": "1", "name": "n", "dialog": "ab"}[name]
        path = path.replace(f"{{{name}:path}}", value).replace(f"{{{name}}}", value)
    fields = () if route.query is None else route.query.__struct_fields__
    given = {"queue": entity, "topic": entity, "subscription": "s", "session": "s"}
    wanted = {name: value for name, value in given.items() if name in fields}
    return path, wanted


def names_entity(route: Route) -> bool:
    fields = () if route.query is None else route.query.__struct_fields__
    return "path" in route.path_types or bool({"queue", "topic"} & set(fields))


class TestWho:
    """Every route demands a permission."""

    def test_nobody(self, broker: Broker, served: Served) -> None:
        client = served.client(None)
        for route in ROUTES:
            path, wanted = path_of(route, "q")
            answer = client.request(route.method, path, params=wanted)
            assert answer.status_code == 401, route.name
            assert answer.headers["www-authenticate"] == "Bearer"

    @pytest.mark.parametrize(
        "header", ["Bearer wrong", "Bearer", "Basic dTpw", "", "Bearer token-of-admin x"]
    )
    def test_a_wrong_token(self, broker: Broker, served: Served, header: str) -> None:
        answer = served.client(None).get("/queues", headers={"Authorization": header})
        assert answer.status_code == 401
        assert "token-of" not in answer.text

    @pytest.mark.parametrize("role", ROLE_NAMES)
    def test_each_role_on_each_route(self, broker: Broker, served: Served, role: str) -> None:
        client = served.client(role)
        for route in ROUTES:
            if route.path.endswith("/stream"):
                continue
            path, wanted = path_of(route, "nothing-here")
            answer = client.request(route.method, path, params=wanted, content=b"[]")
            allowed = route.permission in ROLES[Role(role)]
            assert (answer.status_code != 403) == allowed, (route.name, answer.text)

    def test_a_grant_for_some_queues(self, broker: Broker, served: Served) -> None:
        for path in ("shop/orders", "shop2", "other"):
            broker.create_queue(path)
        client = served.client("shop")
        for route in ROUTES:
            if route.path.endswith("/stream"):
                continue
            for entity in ("shop2", "other", "Other", "shop/../other", "shop", "other/$deadletterqueue"):
                path, wanted = path_of(route, entity)
                if not names_entity(route) and not route.path_types:
                    wanted = {}
                answer = client.request(route.method, path, params=wanted, content=b"[]")
                assert answer.status_code in (403, 404, 422), (route.name, entity, answer.text)
                assert "shop2" not in answer.text or entity == "shop2"
        assert client.get("/queues/SHOP/Orders").json()["path"] == "shop/orders"
        inside = {"queue": "shop/orders/$deadletterqueue"}
        assert client.get("/dead-letters", params=inside).status_code == 200
        assert client.get("/queues").status_code == 403

    def test_what_is_missing_names_no_other_queue(self, broker: Broker, served: Served) -> None:
        broker.create_queue("secret-queue")
        answer = served.client("shop").get("/queues/shop/none")
        assert answer.status_code == 404
        assert "secret-queue" not in answer.text
        assert "secret-queue" in served.client("admin").get("/queues/secret-queu").text


class TestWhereFrom:
    """Requests of other sites' pages."""

    @pytest.mark.parametrize(
        "host", ["evil.com", "localhost.evil.com", "127.0.0.1.evil.com:80", "", "localhost:x"]
    )
    def test_a_foreign_host(self, broker: Broker, served: Served, host: str) -> None:
        answer = served.client("admin").get("/queues", headers={"Host": host})
        assert answer.status_code in (400, 421)

    @pytest.mark.parametrize(
        "headers",
        [
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},
            {"Sec-Fetch-Site": "none"},
            {"Origin": "https://evil.com"},
            {"Origin": "null"},
        ],
        ids=["cross-site", "same-site", "none", "origin", "null"],
    )
    def test_a_foreign_page(self, broker: Broker, served: Served, headers: dict[str, str]) -> None:
        client = served.client("admin")
        answer = client.post("/messages", params={"queue": "q"}, json={"body": "x"}, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (403, "cross_site")
        assert broker.peek("q") == []
        own = {"Sec-Fetch-Site": "same-origin", "Origin": f"http://127.0.0.1:{served.port}"}
        assert (
            client.post("/messages", params={"queue": "q"}, json={"body": "x"}, headers=own).status_code
            == 201
        )


class TestWhat:
    """Bodies and parameters that are wrong."""

    @pytest.mark.parametrize(
        "content",
        [
            b"", b"x", b"5", b"null", b'"x"', b"[5]", b'{"body": "x"', b'{"bodi": "x"}', b"{}", b"\xff",
            b'{"body": "x", "body_base64": ""}', b'{"body_base64": 5}', b'{"body_base64": "*"}',
            b'{"body": "\\ud800"}', b'{"body": "x", "message_id": 5}',
            b'{"body": "x", "time_to_live": "soon"}',
            b'{"body": "x", "time_to_live": -1}', b'{"body": "x", "properties": 5}',
            b'{"body": "x", "properties": {"a": [1]}}', b'{"body": "x", "properties": {"a": {"uuid": "x"}}}',
            b'{"body": "x", "scheduled_enqueue_time": "never"}', b"[" * 100_000, b'{"body":' + b"[" * 100_000,
            b'{"body": "x", "properties": {"a": 1e999}}', b'[{"body": "x"}, 5]',
        ],
        ids=lambda content: str(len(content)) + "-" + content[:24].hex(),
    )  # fmt: skip
    def test_messages(self, broker: Broker, api: httpx.Client, content: bytes) -> None:
        answer = api.post("/messages", params={"queue": "q"}, content=content)
        assert answer.status_code in (400, 422), answer.text
        assert answer.headers["content-type"] == "application/problem+json"
        assert broker.peek("q") == []

    @pytest.mark.parametrize(
        ("path", "parameters"),
        [
            ("/messages", {}),
            ("/messages", {"queue": ""}),
            ("/messages", {"queue": "q", "limit": "0"}),
            ("/messages", {"queue": "q", "limit": "1001"}),
            ("/messages", {"queue": "q", "limit": "x"}),
            ("/messages", {"queue": "q", "limt": "1"}),
            ("/messages", {"queue": "q", "subqueue": "x"}),
            ("/messages", {"queue": "q", "start": "-1"}),
            ("/messages", {"queue": "q" * 5000}),
            ("/messages", {"queue": "q\0"}),
            ("/dead-letters", {"queue": "q", "order": "x"}),
            ("/dead-letters", {"queue": "q", "cursor": "x"}),
            ("/dead-letters", {"queue": "q", "since": "x"}),
            ("/dead-letters", {"queue": "q", "since": "2024-01-01T00:00:00"}),
            ("/dead-letters", {"queue": "q", "numbers": "1,,2"}),
            ("/dead-letters/x", {"queue": "q"}),
            ("/dead-letters/99999999999999999999", {"queue": "q"}),
            ("/events", {"kind": "x"}),
            ("/audit", {"until": "0.5"}),
            ("/audit", {"since": "1700000000"}),
            ("/events", {"after": "-1"}),
            ("/queues/q", {"x": "1"}),
        ],
        ids=lambda value: str(value)[:60].replace("\0", "0"),
    )
    def test_parameters(
        self, broker: Broker, api: httpx.Client, path: str, parameters: dict[str, str]
    ) -> None:
        answer = api.get(path, params=parameters)
        assert answer.status_code in (404, 422), answer.text
        assert answer.json()["detail"]

    def test_twice_the_same_parameter(self, broker: Broker, api: httpx.Client) -> None:
        assert api.get("/messages?queue=q&queue=other").status_code == 422

    @pytest.mark.parametrize(
        "options",
        [5, [], {"lock_duration": "x"}, {"lok": 1}, {"policy": {"x": 1}}, {"policy": 5}, {"policy": None},
         {"policy": {"retry_cycle_delay": {"x": 1}}}, {"breaker": {"share": 5}}],
        ids=str,
    )  # fmt: skip
    def test_options(self, broker: Broker, api: httpx.Client, options: Any) -> None:
        assert api.put("/queues/new", json=options).status_code == 422
        assert api.patch("/queues/q", json=options).status_code == 422
        assert api.get("/queues/new").status_code == 404

    def test_unknown_paths_and_methods(self, broker: Broker, api: httpx.Client) -> None:
        assert api.get("/nothing").json()["code"] == "route_not_found"
        answer = api.put("/messages", params={"queue": "q"})
        assert answer.json()["code"] == "method_not_allowed"
        assert set(answer.headers["allow"].split(", ")) >= {"POST"}

    def test_too_much_is_refused_before_it_is_read(self, broker: Broker, served: Served) -> None:
        with socket.create_connection(("127.0.0.1", served.port), timeout=120) as client:
            client.sendall(
                b"POST /api/v1/messages?queue=q HTTP/1.1\r\nHost: localhost\r\n"
                b"Authorization: Bearer token-of-admin\r\nContent-Length: 99999999999\r\n\r\n"
            )
            assert client.recv(65_536).startswith(b"HTTP/1.1 413")

    def test_what_is_no_http(self, broker: Broker, served: Served) -> None:
        for rubbish in (b"\0" * 100, b"GET / HTTP/9.9\r\n\r\n", b"A" * 200_000):
            with socket.create_connection(("127.0.0.1", served.port), timeout=120) as client:
                client.sendall(rubbish + b"\r\n\r\n")
                client.recv(65_536)
        assert served.client("admin").get("/queues").status_code == 200


def test_every_error_has_a_status() -> None:
    def below(kind: type[LazarettoError]) -> set[type[LazarettoError]]:
        return {kind}.union(*(below(one) for one in kind.__subclasses__()))

    faults = {
        "error", "http_error", "java_not_found", "handler_error", "sandbox_error", "sandbox_setup_error",
        "store_error", "commit_unknown", "store_not_found", "store_corrupt", "store_foreign",
        "store_incomplete", "store_outdated", "store_too_new", "server_unsuitable", "executor_not_ready",
    }  # fmt: skip
    codes = {kind.code for kind in below(LazarettoError) if kind.__module__ == "lazaretto.errors"}
    assert codes - set(STATUSES) <= faults


def test_the_description_is_up_to_date() -> None:
    """`docs/openapi.json` is what the server says; `python -m tests.web.openapi_file` writes it anew."""
    assert openapi_file.PATH.read_text() == openapi_file.text()
    assert {route.permission for route in ROUTES} <= set(Permission)
