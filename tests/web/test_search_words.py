"""What somebody types into the search box, and what it means."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from lazaretto import DeadLetterFilter
from lazaretto.errors import InvalidOption
from lazaretto.web.console.search import search_of

NOW = datetime(2026, 11, 25, 3, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("typed", "plain", "queue", "which"),
    [
        ("", "", None, DeadLetterFilter()),
        ("no airport", "no airport", None, DeadLetterFilter()),
        ("queue:shop/orders 17", "17", "shop/orders", DeadLetterFilter()),
        ("http://x.example/a", "http://x.example/a", None, DeadLetterFilter()),
        ("urn:uuid:7", "urn:uuid:7", None, DeadLetterFilter()),
        ("12:30", "12:30", None, DeadLetterFilter()),
        ("reason:Expired cause:3", "", None, DeadLetterFilter(reason="Expired", cause=3)),
        ("error:KeyError lamp", "lamp", None, DeadLetterFilter(error_type="KeyError", text="lamp")),
        ('text:"no ""airport""" since:2h', "", None,
         DeadLetterFilter(text='no "airport"', since=NOW - timedelta(hours=2))),
        ("session:o'neil", "", None, DeadLetterFilter(where="sys.session_id = 'o\'\'neil'")),
        ('body.to.land=CH prop.n=5 prop.m="5"', "", None,
         DeadLetterFilter(where="body.to.land = 'CH' AND user.n = 5 AND user.m = '5'")),
        ("body.paid=true", "", None, DeadLetterFilter(where="body.paid = TRUE")),
    ],
)  # fmt: skip
def test_what_it_means(typed: str, plain: str, queue: str | None, which: DeadLetterFilter) -> None:
    found = search_of(typed, NOW)
    assert (found.plain, found.queue, found.which) == (plain, queue, which)
    assert found.conditions is not which.is_empty


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("colour:red", "unknown condition 'colour:'"),
        ("eror:x", "error"),
        ("cause:x", "expected cause: with a number"),
        ("since:yesterday", "expected since: with a span of time"),
        ("reason:a reason:b", "expected reason: once"),
    ],
)
def test_what_is_refused(typed: str, told: str) -> None:
    with pytest.raises(InvalidOption, match=told) as refused:
        search_of(typed, NOW)
    assert len(str(refused.value)) < 400
