"""The paths of subscriptions and subqueues, put together and taken apart."""

from __future__ import annotations

from lazaretto.errors import InvalidPath
from lazaretto.model.checks import shown
from lazaretto.model.entities import (
    LONGEST_SUBSCRIPTION,
    SUBSCRIPTIONS,
    EntityPath,
    Subqueue,
    names_subscription,
)


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


def subscription_path(topic: str, name: str) -> EntityPath:
    """Return the path of a topic's subscription. Raises InvalidPath."""
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_SUBSCRIPTION or "/" in name:
        raise InvalidPath(
            f"expected a subscription's name of 1 to {LONGEST_SUBSCRIPTION} characters without '/', "
            f"got {shown(name)}"
        )
    return EntityPath.parse(f"{EntityPath.parse(topic).queue}/{SUBSCRIPTIONS}/{name}")


def split_subscription(path: EntityPath) -> tuple[str, str] | None:
    """Return the topic and the name of a subscription; None if a path is not that of one."""
    if not names_subscription(path):
        return None
    topic, _, name = path.queue.rsplit("/", 2)
    return topic, name
