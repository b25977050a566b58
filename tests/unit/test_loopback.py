"""What a request has in Host, and which names are this machine's."""

from __future__ import annotations

import pytest

from lazaretto.model.loopback import host_name, is_loopback


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("localhost", "localhost"),
        ("Localhost:5672", "localhost"),
        ("a.localhost:5672", "a.localhost"),
        ("[::1]", "[::1]"),
        ("[::1]:5672", "[::1]"),
        ("10.0.0.1:80", "10.0.0.1"),
        ("shop:", "shop:"),
        ("", ""),
    ],
)
def test_the_name_in_a_host(host: str, name: str) -> None:
    assert host_name(host) == name


@pytest.mark.parametrize(
    ("host", "near"),
    [
        ("localhost", True),
        ("a.localhost", True),
        ("127.0.0.9", True),
        ("[::1]", True),
        ("::1", True),
        ("10.0.0.1", False),
        ("[fe80::1]", False),
        ("shop", False),
    ],
)
def test_names_of_this_machine(host: str, near: bool) -> None:
    assert is_loopback(host) is near
