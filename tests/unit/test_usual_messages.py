"""Messages from JSON the quick way: what it takes, it takes as the thorough way does."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lazaretto import Message
from lazaretto.model.records.messages import message_of, usual_messages

TEXTS = ("message_id", "session_id", "subject", "correlation_id", "to", "reply_to", "content_type")
QUICK = [
    b'{"body": "x"}', b'{"body": null}', b'{"body": 1.10}', b' {"body": 1}', b'{"body": 1, "body": 2}',
    b'{"body": "\\u00e9", "subject": null}', b'[]', b'[{"body": {"a": [1E400]}}, {"body": ""}]',
]  # fmt: skip
THOROUGH = [
    b"", b"[", b"5", b"null", b'{"body": "\\ud800"}', b'{"body": "x", "subject": 5}', b'{"bodi": 1}', b"{}",
    b'{"body_base64": "eA=="}', b'{"body": 1, "time_to_live": 5}', b'{"body": 1, "properties": {"a": 1}}',
    b'{"body": "x", "attempt": 1}', b"[" * 100_000, b'[{"body": 1}, 2]', b'{"body": "\xff"}', b'{"body": 1},',
]  # fmt: skip


def thorough(content: bytes) -> list[Message]:
    rows = json.loads(content) if content.lstrip()[:1] == b"[" else None
    given = [content] if rows is None else [json.dumps(row).encode() for row in rows]
    return [message_of(row, Message(b"")) for row in given]


@pytest.mark.parametrize("content", [one for one in QUICK if b"E400" not in one and one[:1] == b"{"])
def test_both_ways_make_the_same(content: bytes) -> None:
    assert usual_messages(content) == thorough(content)


@pytest.mark.parametrize("content", THOROUGH, ids=range(len(THOROUGH)))
def test_what_is_not_usual_is_left_to_the_other_way(content: bytes) -> None:
    assert usual_messages(content) is None


def test_a_body_stays_as_it_is_spelled() -> None:
    (one, empty) = usual_messages(b'[{"body": {"a": [1E400, 1.10]}}, {"body": ""}]') or []
    assert (one.body, empty.body) == (b'{"a": [1E400, 1.10]}', b"")
    assert usual_messages(b"[]") == []


@given(
    st.dictionaries(
        st.sampled_from(["body", "body_base64", "properties", *TEXTS]), st.none() | st.text() | st.integers()
    )
)
def test_whatever_comes(fields: dict[str, Any]) -> None:
    content = json.dumps(fields).encode()
    quick = usual_messages(content)
    if quick is not None:
        assert quick == thorough(content)
