"""The paths of subscriptions and subqueues."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lazaretto import (
    EntityPath,
    InvalidPath,
    Subqueue,
    format_dead_letter_path,
    format_retry_path,
    format_subscription_path,
    format_transfer_dead_letter_path,
    parse_path,
)

FORMATS: list[tuple[Callable[[str], str], str, Subqueue]] = [
    (format_dead_letter_path, "shop/Orders/$deadletterqueue", Subqueue.DEAD_LETTER),
    (
        format_transfer_dead_letter_path,
        "shop/Orders/$Transfer/$deadletterqueue",
        Subqueue.TRANSFER_DEAD_LETTER,
    ),
    (format_retry_path, "shop/Orders;retry", Subqueue.RETRY),
]


@pytest.mark.parametrize(("format_path", "expected", "subqueue"), FORMATS)
def test_a_subqueues_path_is_taken_apart_again(
    format_path: Callable[[str], str], expected: str, subqueue: Subqueue
) -> None:
    assert format_path("shop/Orders") == expected
    assert parse_path(expected) == EntityPath("shop/Orders", subqueue)
    assert (
        format_path(expected)
        == format_path(expected.upper().replace("SHOP/ORDERS", "shop/Orders"))
        == expected
    )


def test_a_subscriptions_path() -> None:
    path = format_subscription_path("events", "audit")
    assert path == "events/subscriptions/audit"
    assert format_dead_letter_path(path) == "events/subscriptions/audit/$deadletterqueue"
    assert parse_path("orders;poison") == parse_path("orders/$DeadLetterQueue")


@pytest.mark.parametrize("path", ["", "a b", "orders;retry", "orders/$Transfer/$deadletterqueue", 5])
def test_what_has_no_dead_letter_subqueue_is_refused(path: str) -> None:
    with pytest.raises(InvalidPath):
        format_dead_letter_path(path)
