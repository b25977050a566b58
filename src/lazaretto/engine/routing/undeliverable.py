"""Why a message is undeliverable: reasons and texts, as in Service Bus."""

from __future__ import annotations

import msgspec

from lazaretto.model.entities import Subqueue
from lazaretto.model.failure import Failure

#: Maximum number of hops, as in Service Bus.
MOST_HOPS = 4
HOPS_REASON = "MaxTransferHopCountExceeded"
HOPS_TEXT = (
    "The maximum number of allowed hops when forwarding between queues has been exceeded. "
    f"This value is set to {MOST_HOPS}."
)
HEADERS_REASON = "HeaderSizeExceeded"
HEADERS_TEXT = "The size quota for this stream has been exceeded."
#: The reason for a message that lacks a required session id, as in Service Bus.
SESSION_REASON = "Session ID is null."
SESSION_TEXT = "Session enabled entity doesn't allow a message whose session identifier is null."
FILTER_REASON = "FilterException"
#: Why a message could not be forwarded: the names that Service Bus's clients give these failures.
NOT_FOUND_REASON = "MessagingEntityNotFound"
DISABLED_REASON = "MessagingEntityDisabled"
FULL_REASON = "QuotaExceeded"
SIZE_REASON = "MessageSizeExceeded"
#: Why a former dead letter is not published: a topic drops messages that match no subscription.
UNMATCHED_REASON = "NoMatchingSubscription"


class Undeliverable(msgspec.Struct, frozen=True):
    """Why a message cannot be delivered, and the subqueue that it goes to instead."""

    reason: str
    text: str
    subqueue: Subqueue = Subqueue.DEAD_LETTER
    failure: Failure | None = None


NO_SESSION = Undeliverable(SESSION_REASON, SESSION_TEXT)
LARGE_HEADERS = Undeliverable(HEADERS_REASON, HEADERS_TEXT)
TOO_FAR = Undeliverable(HOPS_REASON, HOPS_TEXT)


def not_taken(reason: str, text: str) -> Undeliverable:
    """Return the Undeliverable for a message that its destination rejects."""
    return Undeliverable(reason, text, Subqueue.TRANSFER_DEAD_LETTER)
