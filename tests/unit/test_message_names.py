"""Names that the fields of messages have elsewhere: the error says what to write here."""

from __future__ import annotations

import pytest

from lazaretto import InvalidOption, Message


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("ttl", "time_to_live=5"),
        ("expiration", "time_to_live=… in seconds"),
        ("application_properties", "properties=5"),
        ("MessageGroupId", "session_id=5"),
        ("delay_seconds", "scheduled_enqueue_time=…"),
        ("correlationid", "did you mean 'correlation_id'"),
    ],
)
def test_names_of_elsewhere(name: str, advice: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        Message.json({}, **{name: 5})
    assert advice in str(caught.value)


def test_own_names_are_taken() -> None:
    assert Message.json({"a": 1}, time_to_live=5) == Message(
        b'{"a":1}', content_type="application/json", time_to_live=5
    )
