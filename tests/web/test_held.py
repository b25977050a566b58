"""What a server remembers of the messages that it has given out: not more than it can bear."""

from __future__ import annotations

import uuid

import pytest

from lazaretto import Broker, Message, ReceivedMessage
from lazaretto.web import held
from lazaretto.web.held import HeldMessages

pytestmark = pytest.mark.stores("sqlite")


def received(broker: Broker, *bodies: bytes) -> tuple[list[ReceivedMessage], list[uuid.UUID]]:
    broker.sender("q").send([Message(body) for body in bodies])
    found = broker.receiver("q").receive(len(bodies))
    return found, [token for message in found if (token := message.lock_token) is not None]


def test_all_or_none(broker: Broker) -> None:
    messages, tokens = received(broker, b"a", b"b", b"c")
    kept = HeldMessages()
    kept.keep("q", None, messages[:2])
    assert kept.take("q", None, tokens) is None
    assert kept.take("q", "deadletter", tokens[:1]) is None
    assert kept.take("q", None, [tokens[0], tokens[0]]) is None
    assert kept.take("q", None, [tokens[1], tokens[0]]) == [messages[1], messages[0]]
    assert kept.take("q", None, tokens[:1]) is None


def test_the_oldest_are_forgotten(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """By their number, and by their bytes; also when one is kept twice."""
    messages, tokens = received(broker, *[b"x" * 100] * 5)
    monkeypatch.setattr(held, "_MOST", 3)
    kept = HeldMessages()
    kept.keep("q", None, messages)
    assert [kept.take("q", None, [token]) is not None for token in tokens] == [False] * 2 + [True] * 3
    monkeypatch.setattr(held, "_MOST_BYTES", 250)
    for _ in range(2):
        kept.keep("q", None, messages[:2])
    assert kept.take("q", None, tokens[:2]) == messages[:2]
    kept.keep("q", None, messages[:3])
    assert kept.take("q", None, tokens[:1]) is None
    assert kept.take("q", None, tokens[1:3]) == messages[1:3]
    kept.keep("q", None, [])


def test_headers_count(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has no body is not without size."""
    monkeypatch.setattr(held, "_MOST_BYTES", 250)
    broker.sender("q").send([Message(b"", properties={"note": "x" * 100})] * 3)
    messages = broker.receiver("q").receive(3)
    tokens = [token for message in messages if (token := message.lock_token) is not None]
    kept = HeldMessages()
    kept.keep("q", None, messages)
    assert [kept.take("q", None, [token]) is not None for token in tokens] == [False, True, True]
    kept.keep("q", None, messages[:2])
    assert kept.take("q", None, tokens[:2]) == messages[:2]
