"""Decides what may enter and leave each kind of queue by ordinary calls: for dialogs, nothing."""

from __future__ import annotations

from typing import Protocol

from lazaretto.engine.routing.undeliverable import Undeliverable
from lazaretto.errors import NotAllowed
from lazaretto.store.records.messages import QueueRecord
from lazaretto.store.sql.transaction import Transaction


class QueueAdmission(Protocol):
    """Checks access to a queue before an operation. QueueHooks learn about its messages afterwards."""

    #: Why a sent or forwarded message cannot be stored in the queue; None if it can.
    undeliverable: Undeliverable | None
    #: Why its dead letters cannot go to another entity; None if they can.
    keeps_dead_letters: str | None

    def check_access(self, queue: QueueRecord) -> None:
        """Raise NotAllowed if senders and receivers must not use the queue."""
        ...

    def check_deletion(self, tx: Transaction, queue: QueueRecord) -> None:
        """Raise NotAllowed if something needs the queue."""
        ...

    def kind_of(self, queue: QueueRecord) -> str:
        """Return the name of this kind of entity in errors."""
        ...


class PlainAdmission:
    """A queue that anybody may use."""

    undeliverable: Undeliverable | None = None
    keeps_dead_letters: str | None = None

    def check_access(self, queue: QueueRecord) -> None:
        pass

    def check_deletion(self, tx: Transaction, queue: QueueRecord) -> None:
        pass

    def kind_of(self, queue: QueueRecord) -> str:
        return queue.kind.value


_PLAIN: QueueAdmission = PlainAdmission()


def admission_of(queue: QueueRecord) -> QueueAdmission:
    """Return the admission rules of a queue, by its kind."""
    return _DIALOGS if queue.options.dialogs else _PLAIN


class DialogAdmission:
    """See QueueAdmission."""

    undeliverable: Undeliverable | None = Undeliverable(
        "NotADialog", "A service's queue takes messages of dialogs alone."
    )
    keeps_dead_letters: str | None = "it belongs to a dialog"

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


_DIALOGS: QueueAdmission = DialogAdmission()
