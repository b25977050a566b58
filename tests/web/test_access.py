"""People of the store over HTTP: by token, by a browser's session, by the word of a proxy."""

from __future__ import annotations

import asyncio
import re

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from lazaretto import Broker, Message, aio
from lazaretto import commands as c
from lazaretto.web import Access, Proxies, web_app

from .conftest import Served


@pytest.fixture(autouse=True)
def ana(broker: Broker) -> None:
    broker.run(c.GrantRole(person="ana", role="operator", queue="q"))


def bearer(broker: Broker, person: str = "ana") -> dict[str, str]:
    return {"Authorization": "Bearer " + broker.run(c.CreateToken(person=person))["secret"]}


def site(served: Served) -> httpx.Client:
    """A browser: it keeps cookies, and says with changes that its own page made them."""
    browser = served.client(None)
    browser.headers["Sec-Fetch-Site"] = "same-origin"
    browser.base_url = httpx.URL(f"http://127.0.0.1:{served.port}")
    return browser


def log_in(broker: Broker, served: Served, person: str | None = "ana") -> tuple[httpx.Client, str]:
    """Return a browser that is logged in, and its token for changes."""
    browser = site(served)
    code = broker.run(c.CreateLink(person=person), actor="root")["secret"]
    assert browser.get("/login", params={"code": code}).status_code == 303
    csrf: str = browser.get("/api/v1/access/me").json()["csrf"]
    return browser, csrf


class TestTokens:
    """Of people in the store."""

    def test_what_was_granted(self, broker: Broker, served: Served) -> None:
        client = served.client(None)
        client.headers.update(bearer(broker))
        assert client.get("/queues/q").status_code == 200
        assert client.get("/queues").status_code == 403
        me = client.get("/access/me").json()
        assert me == {"name": "ana", "grants": [{"role": "operator", "pattern": "q"}], "csrf": None}
        broker.run(c.GrantRole(person="ana", role="viewer"))
        assert client.get("/queues").status_code == 200
        broker.run(c.WithdrawRole(person="ana", role="viewer"))
        assert client.get("/queues").status_code == 403
        assert broker.tokens()[0].seen is not None

    def test_revoked_before_the_next_request(self, broker: Broker, served: Served) -> None:
        client = served.client(None)
        client.headers.update(bearer(broker))
        assert client.get("/queues/q").status_code == 200
        broker.run(c.RevokeToken(id=broker.tokens()[0].id))
        assert client.get("/queues/q").status_code == 401

    def test_nobody_grants_themselves_more(self, broker: Broker, served: Served) -> None:
        client = served.client(None)
        client.headers.update(bearer(broker))
        for name, body in (
            ("grant_role", {"person": "ana", "role": "admin"}),
            ("create_link", {"person": None}),
            ("create_token", {"person": "ana"}),
            ("remove_person", {"person": "ana"}),
        ):
            assert client.post(f"/commands/{name}", json=body).status_code == 403, name
        for path in ("/access/people", "/access/tokens", "/access/sessions"):
            assert client.get(path).status_code == 403

    def test_administered_over_http(self, broker: Broker, served: Served, api: httpx.Client) -> None:
        granted = api.post("/commands/grant_role", json={"person": "bob", "role": "client", "queue": "q"})
        assert granted.status_code == 200, granted.text
        made = api.post("/commands/create_token", json={"person": "bob"}).json()
        client = served.client(None)
        client.headers["Authorization"] = f"Bearer {made['secret']}"
        assert client.post("/messages", params={"queue": "q"}, json={"body": "x"}).status_code == 201
        assert [person["name"] for person in api.get("/access/people").json()] == ["ana", "bob"]
        listed = api.get("/access/tokens", params={"person": "bob"})
        assert [one["id"] for one in listed.json()] == [made["id"]]
        assert made["secret"] not in listed.text
        keyed = {"Idempotency-Key": "k"}
        assert api.post("/commands/create_token", json={"person": "bob"}, headers=keyed).status_code == 409
        nothing = api.post("/commands/set_four_eyes", json={"letters": None})
        assert (nothing.status_code, nothing.content) == (204, b"")
        entry = broker.audit(action="access: token")[0]
        assert (entry.actor, entry.detail["origin"]) == ("admin", "127.0.0.1")

    @pytest.mark.parametrize("place", ["access_token", "token", "code"])
    def test_no_token_in_the_address(self, broker: Broker, served: Served, place: str) -> None:
        token = bearer(broker)["Authorization"].removeprefix("Bearer ")
        assert served.client(None).get("/queues/q", params={place: token}).status_code == 401

    def test_the_token_of_a_link_or_session_is_none(self, broker: Broker, served: Served) -> None:
        browser, _ = log_in(broker, served)
        (cookie,) = browser.cookies.jar
        code = broker.run(c.CreateLink(person="ana"))["secret"]
        for wrong in (cookie.value, code):
            client = served.client(None)
            assert client.get("/queues/q", headers={"Authorization": f"Bearer {wrong}"}).status_code == 401
            other = served.client(None)
            other.headers["Cookie"] = f"lazaretto-{served.port}={code}"
            assert other.get("/queues/q").status_code == 401


class TestBrowsers:
    """Logged in by a link or a token; each change says the session's token."""

    def test_the_cookie(self, broker: Broker, served: Served) -> None:
        browser = site(served)
        code = broker.run(c.CreateLink(person="ana"))["secret"]
        answer = browser.get("/login", params={"code": code})
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        cookie = answer.headers["set-cookie"]
        assert re.fullmatch(
            rf"lazaretto-{served.port}=lzs_\w+[\w-]*; HttpOnly; Path=/; SameSite=strict", cookie
        ), cookie
        assert answer.headers["cache-control"] == "no-store"
        assert browser.get("/api/v1/queues/q").status_code == 200
        again = site(served).get("/login", params={"code": code})
        assert (again.status_code, "set-cookie" in again.headers) == (401, False)
        (entry,) = broker.audit(action="access: login")
        assert (entry.actor, entry.detail["address"]) == ("ana", "127.0.0.1")

    @pytest.mark.parametrize("served", [{"secure": True}], indirect=True)
    def test_the_cookie_over_tls(self, broker: Broker, served: Served) -> None:
        code = broker.run(c.CreateLink(person="ana"))["secret"]
        cookie = site(served).get("/login", params={"code": code}).headers["set-cookie"]
        assert cookie.startswith("__Host-lazaretto=lzs_")
        assert cookie.endswith("; HttpOnly; Path=/; SameSite=strict; Secure")

    def test_by_a_token(self, broker: Broker, served: Served) -> None:
        browser = site(served)
        page = browser.get("/login")
        assert page.status_code == 200
        assert "default-src 'none'" in page.headers["content-security-policy"]
        token = bearer(broker)["Authorization"].removeprefix("Bearer ")
        assert browser.post("/login", data={"token": "lzt_x_y"}).status_code == 401
        assert browser.post("/login", data={"token": token}).status_code == 303
        assert browser.get("/api/v1/access/me").json()["name"] == "ana"

    @pytest.mark.parametrize(
        "headers",
        [{"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": ""}, {"Origin": "https://evil.com"}],
        ids=["cross", "empty", "origin"],
    )
    def test_no_login_from_another_site(
        self, broker: Broker, served: Served, headers: dict[str, str]
    ) -> None:
        browser = site(served)
        del browser.headers["Sec-Fetch-Site"]
        token = bearer(broker)["Authorization"].removeprefix("Bearer ")
        for given in (headers, {}):
            answer = browser.post("/login", data={"token": token}, headers=given)
            assert (answer.status_code, "set-cookie" in answer.headers) == (403, False)
        assert browser.get("/login", headers={"Host": "evil.com"}).status_code == 421

    def test_a_change_needs_the_token(self, broker: Broker, served: Served) -> None:
        browser, csrf = log_in(broker, served)
        body = {"path": "q", "status": "disabled"}
        _, other = log_in(broker, served)
        for given in ({}, {"X-CSRF-Token": ""}, {"X-CSRF-Token": other}, {"X-CSRF-Token": "\u00e9"}):
            encoded = [(name.encode(), value.encode()) for name, value in given.items()]
            answer = browser.post("/api/v1/commands/set_status", json=body, headers=encoded)
            assert (answer.status_code, answer.json()["code"]) == (403, "cross_site")
        foreign = {"X-CSRF-Token": csrf, "Sec-Fetch-Site": "cross-site"}
        answer = browser.post("/api/v1/commands/set_status", json=body, headers=foreign)
        assert answer.status_code == 403
        assert broker.queue("q").status.value == "active"
        answer = browser.post("/api/v1/commands/set_status", json=body, headers={"X-CSRF-Token": csrf})
        assert answer.status_code == 200, answer.text
        assert broker.queue("q").status.value == "disabled"

    def test_a_form_says_what_it_has_shown(self, broker: Broker, served: Served) -> None:
        browser, csrf = log_in(broker, served, None)
        browser.headers["X-CSRF-Token"] = csrf
        seen = browser.get("/api/v1/queues/q").headers["etag"]
        blind = browser.patch("/api/v1/queues/q", json={"lock_duration": 5})
        assert (blind.status_code, blind.json()["code"]) == (428, "precondition_required")
        given = {"If-Match": seen}
        assert browser.patch("/api/v1/queues/q", json={"lock_duration": 5}, headers=given).status_code == 200
        assert browser.patch("/api/v1/queues/q", json={"lock_duration": 6}, headers=given).status_code == 412

    def test_a_token_counts_before_a_cookie(self, broker: Broker, served: Served) -> None:
        browser, _ = log_in(broker, served)
        broker.run(c.GrantRole(person="bob", role="viewer"))
        headers = bearer(broker, "bob")
        assert browser.get("/api/v1/access/me", headers=headers).json()["name"] == "bob"
        assert browser.get("/api/v1/queues/q", headers={"Authorization": "Bearer x"}).status_code == 401

    def test_fixation(self, broker: Broker, served: Served) -> None:
        """What the browser had before its login, its own or a planted one, opens nothing afterwards."""
        planted, _ = log_in(broker, served)
        (cookie,) = planted.cookies.jar
        victim = site(served)
        victim.cookies.set(cookie.name, str(cookie.value), domain="127.0.0.1", path="/")
        code = broker.run(c.CreateLink(person=None), actor="root")["secret"]
        victim.get("/login", params={"code": code})
        assert victim.get("/api/v1/access/me").json()["name"] == "root"
        assert planted.get("/api/v1/access/me").status_code == 401
        invented = site(served)
        name = f"lazaretto-{served.port}"
        invented.cookies.set(name, "lzs_" + "a" * 12 + "_" + "b" * 43, domain="127.0.0.1", path="/")
        assert invented.get("/api/v1/queues/q").status_code == 401

    def test_logout(self, broker: Broker, served: Served) -> None:
        browser, csrf = log_in(broker, served)
        (cookie,) = browser.cookies.jar
        assert browser.post("/logout").status_code == 403
        answer = browser.post("/logout", data={"csrf": csrf})
        assert (answer.status_code, answer.headers["location"]) == (303, "/login")
        assert not browser.cookies
        browser.cookies.set(cookie.name, str(cookie.value), domain="127.0.0.1", path="/")
        assert browser.get("/api/v1/queues/q").status_code == 401

    def test_ended_from_elsewhere(self, broker: Broker, served: Served) -> None:
        browser, _ = log_in(broker, served)
        broker.run(c.EndSessions(person="ana"))
        assert browser.get("/api/v1/queues/q").status_code == 401


TRUSTED = {"proxies": Proxies(["127.0.0.1"], "X-Forwarded-User", "X-Forwarded-Groups")}
STRANGER = {"proxies": Proxies(["10.0.0.0/8"], "X-Forwarded-User", "X-Forwarded-Groups")}


class TestProxies:
    """A header counts from the proxies that were named, and from nobody else."""

    @pytest.mark.parametrize("served", [TRUSTED], indirect=True)
    def test_a_person_with_groups(self, broker: Broker, served: Served) -> None:
        broker.run(c.GrantRole(person="group:oncall", role="viewer"))
        client = served.client(None)
        client.headers.update({"X-Forwarded-User": "ana", "X-Forwarded-For": "6.6.6.6, 10.1.2.3"})
        assert client.get("/queues/q").status_code == 200
        assert client.get("/queues").status_code == 403
        assert client.get("/queues", headers={"X-Forwarded-Groups": "staff, oncall"}).status_code == 200
        assert client.get("/queues", headers={"X-Forwarded-Groups": "group:oncall"}).status_code == 403
        body = {"path": "q", "status": "disabled"}
        page = {"Sec-Fetch-Site": "same-origin"}
        assert client.post("/commands/set_status", json=body).status_code == 403
        assert client.post("/commands/set_status", json=body, headers=page).status_code == 200
        (entry,) = broker.audit(action="status")
        assert (entry.actor, entry.detail["origin"]) == ("ana", "10.1.2.3")

    @pytest.mark.parametrize("served", [TRUSTED], indirect=True)
    def test_whom_the_store_does_not_know(self, broker: Broker, served: Served) -> None:
        client = served.client(None)
        assert client.get("/queues/q", headers={"X-Forwarded-User": "eve"}).status_code == 403
        for wrong in ("group:oncall", "a\tb", "x" * 300):
            assert client.get("/queues/q", headers={"X-Forwarded-User": wrong}).status_code == 401
        twice = [("X-Forwarded-User", "eve"), ("X-Forwarded-User", "ana")]
        assert client.get("/queues/q", headers=twice).status_code == 401
        assert client.get("/queues/q", headers={"X-Forwarded-User": ""}).status_code == 401

    @pytest.mark.parametrize("served", [{}, STRANGER], indirect=True, ids=["none", "elsewhere"])
    def test_from_anywhere_else(self, broker: Broker, served: Served) -> None:
        given = {"X-Forwarded-User": "ana", "X-Forwarded-For": "10.0.0.1"}
        assert served.client(None).get("/queues/q", headers=given).status_code == 401
        client = served.client("admin")
        body = {"path": "q", "status": "disabled"}
        assert client.post("/commands/set_status", json=body, headers=given).status_code == 200
        assert broker.audit(action="status")[0].detail["origin"] == "127.0.0.1"

    @pytest.mark.parametrize("served", [TRUSTED], indirect=True)
    def test_an_address_with_a_port(self, broker: Broker, served: Served) -> None:
        client = served.client("admin")
        seen = {
            "203.0.113.9:51234": "203.0.113.9", "[2001:db8::1]:443": "2001:db8::1",
            "[2001:db8::2]": "2001:db8::2", "2001:db8::3": "2001:db8::3", "unknown": None,
            "203.0.113.9, 127.0.0.1:80": "203.0.113.9", "203.0.113.9:": None, "[2001:db8::1]443": None,
        }  # fmt: skip
        for number, given in enumerate(seen):
            body = {"path": "q", "status": "active" if number % 2 else "disabled"}
            headers = {"X-Forwarded-For": given}
            assert client.post("/commands/set_status", json=body, headers=headers).status_code == 200
        told = [entry.detail.get("origin") for entry in broker.audit(action="status")]
        assert told == list(reversed(seen.values()))


class TestFourEyes:
    """Whoever makes a token over HTTP has seen it, also where the server does not know the address."""

    @pytest.fixture
    def large(self, broker: Broker) -> None:
        broker.sender("q").send([Message(b"x")] * 6)
        with broker.receiver("q") as receiver:
            for message in receiver.receive(6):
                receiver.dead_letter(message, reason="A")
        broker.run(c.SetFourEyes(letters=5))
        for name in ("bob", "ci"):
            broker.run(c.GrantRole(person=name, role="admin"))

    @pytest.mark.usefixtures("large")
    @pytest.mark.parametrize("served", [TRUSTED], indirect=True)
    @pytest.mark.parametrize("origin", ["unknown", "203.0.113.9:51234", "203.0.113.9"])
    def test_behind_a_proxy(self, broker: Broker, served: Served, origin: str) -> None:
        client = served.client(None)
        client.headers["X-Forwarded-For"] = origin
        own = bearer(broker, "bob")
        body: dict[str, object] = {"person": "ci"}
        made = client.post("/commands/create_token", json=body, headers=own).json()
        body = {"path": "q", "name": "large", "everything": True}
        assert client.post("/commands/plan_repair", json=body, headers=own).status_code == 200
        for token in (own, {"Authorization": f"Bearer {made['secret']}"}):
            answer = client.post("/commands/apply_repair", json={"name": "large"}, headers=token)
            assert (answer.status_code, answer.json()["code"]) == (403, "second_person_needed")
        second = bearer(broker, "ana")
        broker.run(c.GrantRole(person="ana", role="admin"))
        assert (
            client.post("/commands/apply_repair", json={"name": "large"}, headers=second).status_code == 200
        )

    @pytest.mark.usefixtures("large")
    @pytest.mark.parametrize("relayed", [False, True], ids=["own", "of another's token"])
    def test_where_nobody_tells_the_address(self, broker: Broker, url: str, relayed: bool) -> None:
        """A Unix socket has no addresses. Who made somebody's token is behind what that one makes, too."""
        own = bearer(broker, "bob")

        async def run() -> None:
            async with await aio.connect(url) as one:
                app = web_app(one, Access())

                async def unaddressed(scope: Scope, receive: Receive, send: Send) -> None:
                    await app({**scope, "client": None}, receive, send)

                transport = httpx.ASGITransport(app=unaddressed)
                base = "http://localhost/api/v1/commands"
                async with httpx.AsyncClient(transport=transport, base_url=base) as client:

                    async def token(person: str, by: dict[str, str]) -> dict[str, str]:
                        made = await client.post("/create_token", json={"person": person}, headers=by)
                        return {"Authorization": f"Bearer {made.json()['secret']}"}

                    ci = await token("ci", own)
                    planner, second = (ci, await token("bob", ci)) if relayed else (own, ci)
                    body = {"path": "q", "name": "large", "everything": True}
                    assert (await client.post("/plan_repair", json=body, headers=planner)).status_code == 200
                    for headers in (own, second):
                        answer = await client.post("/apply_repair", json={"name": "large"}, headers=headers)
                        assert answer.status_code == 403

        asyncio.run(run())
