"""The paths of subscriptions and subqueues, put together and taken apart."""

from __future__ import annotations

from lazaretto.model.entities import EntityPath, Subqueue, subscription_path


def format_subscription_path(topic: str, name: str) -> str:
    """Return the path of a topic's subscription: `events/subscriptions/audit`. Raises InvalidPath."""
    return str(subscription_path(topic, name))


def format_dead_letter_path(path: str) -> str:
    """Return the path of the dead-letter subqueue of a queue or subscription: `orders/$deadletterqueue`.

    A path that names it already, as `orders;poison` does, is allowed. Raises InvalidPath for one that is
    none, or names another subqueue.
    """
    return str(EntityPath.parse(path, Subqueue.DEAD_LETTER))


def format_transfer_dead_letter_path(path: str) -> str:
    """Return the path of the subqueue for what a queue or subscription could not forward. Raises InvalidPath.

    That is `orders/$Transfer/$deadletterqueue`.
    """
    return str(EntityPath.parse(path, Subqueue.TRANSFER_DEAD_LETTER))


def format_retry_path(path: str) -> str:
    """Return the path of what waits for its next retry cycle: `orders;retry`. Raises InvalidPath."""
    return str(EntityPath.parse(path, Subqueue.RETRY))


def parse_path(path: str) -> EntityPath:
    """Return which queue, topic or subscription a path names, and which subqueue of it. Raises InvalidPath.

    Every spelling of a suffix is understood, in any case: `orders;poison` is `orders/$deadletterqueue`.
    """
    return EntityPath.parse(path)
