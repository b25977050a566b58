"""Decides what may enter and leave each kind of queue by ordinary calls: for dialogs, nothing.

Why a message is undeliverable has the reasons and texts that it has in Service Bus.
"""

from __future__ import annotations

import msgspec

from lazaretto.errors import NotAllowed
from lazaretto.model.entities import Subqueue
from lazaretto.model.failure import Failure
from lazaretto.store.records.messages import QueueRecord
from lazaretto.store.sql.transaction import Transaction

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


class QueueAdmission:
    """Checks access to a queue before an operation. QueueHooks learn about its messages afterwards.

    Anybody may use a plain queue.
    """

    #: Why a sent or forwarded message cannot be stored in the queue; None if it can.
    undeliverable: Undeliverable | None = None
    #: Why its dead letters cannot go to another entity; None if they can.
    keeps_dead_letters: str | None = None

    def check_access(self, queue: QueueRecord) -> None:
        """Raise NotAllowed if senders and receivers must not use the queue."""

    def check_deletion(self, tx: Transaction, queue: QueueRecord) -> None:
        """Raise NotAllowed if something needs the queue."""

    def kind_of(self, queue: QueueRecord) -> str:
        """Return the name of this kind of entity in errors."""
        return queue.kind.value


_PLAIN = QueueAdmission()


def admission_of(queue: QueueRecord) -> QueueAdmission:
    """Return the admission rules of a queue, by its kind."""
    return _DIALOGS if queue.options.dialogs else _PLAIN


class DialogAdmission(QueueAdmission):
    """Admission to a service's queue: by its dialogs alone."""

    undeliverable = Undeliverable("NotADialog", "A service's queue takes messages of dialogs alone.")
    keeps_dead_letters = "it belongs to a dialog"

    def check_access(self, queue: QueueRecord) -> None:
        raise NotAllowed(
            f"{queue.path!r} is the queue of a service: send and receive by dialogs (broker.dialogs)"
        )

    def check_deletion(self, tx: Transaction, queue: QueueRecord) -> None:
        services = tx.dialogs.definitions().on_queue(queue.path.lower())
        if services:
            raise NotAllowed(
                f"{queue.path!r} is the queue of service {services[0].name!r}: drop the service first"
            )

    def kind_of(self, queue: QueueRecord) -> str:
        return "queue of a service"


_DIALOGS = DialogAdmission()
