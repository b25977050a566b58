"""Shared access signatures: who made one, for what, until when."""

from __future__ import annotations

import base64
import hashlib
import hmac
import urllib.parse

import pytest

from lazaretto.errors import InvalidOption
from lazaretto.servicebus.grants import (
    AccessPolicy,
    Right,
    Unauthorized,
    check_login,
    check_token,
    entity_of,
)

NOW = 1_000.0
POLICIES = [
    AccessPolicy("all", "key"),
    AccessPolicy("listen", "other", frozenset({Right.LISTEN})),
    AccessPolicy("orders", "third", scope="orders"),
]


def token(resource: str = "sb://host/", name: str = "all", key: str = "key", expiry: str = "2000") -> str:
    """Return a token as the SDK makes it."""
    resource = urllib.parse.quote_plus(resource)
    raw = hmac.new(key.encode(), f"{resource}\n{expiry}".encode(), hashlib.sha256).digest()
    signature = urllib.parse.quote(base64.b64encode(raw))
    return f"SharedAccessSignature sr={resource}&sig={signature}&se={expiry}&skn={name}"


def test_a_valid_one_gives_rights_below_its_audience() -> None:
    grant = check_token(token(), "sb://host/Orders/$management", POLICIES, NOW)
    assert grant.allows("orders", Right.SEND, NOW)
    assert grant.allows("orders/subscriptions/a", Right.LISTEN, NOW)
    assert not grant.allows("orders2", Right.SEND, NOW)
    assert not grant.allows("orders", Right.SEND, 2000)
    listen = check_token(token(name="listen", key="other"), "amqp://host/q", POLICIES, NOW)
    assert listen.allows("q", Right.LISTEN, NOW)
    assert not listen.allows("q", Right.SEND, NOW)


def test_one_for_an_entitys_node_is_one_for_the_entity() -> None:
    given = token(resource="sb://host/orders/$management")
    for audience in ("sb://host/orders/$management", "sb://host/orders"):
        assert check_token(given, audience, POLICIES, NOW).allows("orders", Right.LISTEN, NOW)
    with pytest.raises(Unauthorized, match="got one for 'orders'"):
        check_token(given, "sb://host/orders2", POLICIES, NOW)


def test_some_clients_sign_for_a_host_without_its_scheme() -> None:
    grant = check_token(token("localhost:5671"), "orders", POLICIES, NOW)
    assert grant.allows("orders", Right.SEND, NOW)
    with pytest.raises(Unauthorized):
        check_token(token("localhost:5671/shop"), "orders", POLICIES, NOW)


@pytest.mark.parametrize(
    "given",
    [
        "",
        "Bearer x",
        "SharedAccessSignature",
        "SharedAccessSignature sr=a&sig=b&se=c",
        token(key="wrong"),
        token(name="nobody"),
        token(expiry="999"),
        token(expiry="never"),
        token().replace("sig=", "sig=%00"),
        token().replace("se=2000", "se=3000"),
        token(resource="sb://host/other"),
        token(name="orders", key="third").replace("skn=orders", "skn=all"),
    ],
)
def test_any_other_is_refused(given: str) -> None:
    with pytest.raises(Unauthorized, match="expected") as caught:
        check_token(given, "sb://host/q", POLICIES, NOW)
    assert "key" not in str(caught.value).replace("the key of a policy", "")


def test_a_policy_of_one_entity_is_of_no_other() -> None:
    given = token(name="orders", key="third")
    assert check_token(given, "sb://host/orders", POLICIES, NOW).rights == frozenset(Right)
    with pytest.raises(Unauthorized, match="orders"):
        check_token(given, "sb://host/q", POLICIES, NOW)


def test_addresses_of_entities() -> None:
    assert entity_of("amqps://host:5671/a/b%20c/") == "a/b c"
    assert entity_of("q") == "q"
    assert entity_of(None) == entity_of("sb://host") == ""


def test_a_policy_needs_a_key_and_hides_it() -> None:
    assert "key" not in repr(AccessPolicy("all", "key")).replace("lazaretto", "")
    with pytest.raises(InvalidOption):
        AccessPolicy("all", "")


def test_a_login_gives_what_its_policy_allows() -> None:
    policies = {"p": AccessPolicy("p", "secret", frozenset({Right.SEND}), "Orders")}
    grant = check_login(b"\x00p\x00secret", policies)
    assert grant.allows("orders", Right.SEND, 1e12)
    assert not grant.allows("orders", Right.LISTEN, 0)
    assert not grant.allows("others", Right.SEND, 0)


@pytest.mark.parametrize(
    "response",
    [
        b"", b"\x00", b"\x00p", b"\x00p\x00", b"\x00p\x00Secret", b"\x00q\x00secret", b"p\x00secret",
        b"\xff\x00\xff\x00\xff", b"\x00q\x00no policy has this name",
    ],
)  # fmt: skip
def test_a_login_with_another_name_or_key_is_refused(response: bytes) -> None:
    with pytest.raises(Unauthorized):
        check_login(response, {"p": AccessPolicy("p", "secret")})
