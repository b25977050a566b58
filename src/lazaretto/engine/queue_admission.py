"""What may go into and out of a kind of queue by the ordinary verbs: everything, or nothing for dialogs."""

from __future__ import annotations

from typing import Protocol

from lazaretto.engine.dialogs.dialog_admission import DialogAdmission
from lazaretto.engine.routing.undeliverable import Undeliverable
from lazaretto.store.contract.records import QueueRecord
from lazaretto.store.contract.transaction_contract import Transaction


class QueueAdmission(Protocol):
    """Asked before something is done with a queue. What is done with its messages is told to QueueHooks."""

    #: Why no message can come to rest in the queue by being sent or forwarded; None if it can.
    undeliverable: Undeliverable | None
    #: Why its dead letters cannot go to another entity; None if they can.
    keeps_dead_letters: str | None

    def check_access(self, queue: QueueRecord) -> None:
        """Raise NotAllowed if no sender and no receiver may use the queue."""
        ...

    def check_deletion(self, tx: Transaction, queue: QueueRecord) -> None:
        """Raise NotAllowed if something needs the queue."""
        ...

    def kind_of(self, queue: QueueRecord) -> str:
        """Return what the entity is called in an error."""
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
_DIALOGS: QueueAdmission = DialogAdmission()


def admission_of(queue: QueueRecord) -> QueueAdmission:
    """Return what a queue lets in and out, by its kind."""
    return _DIALOGS if queue.options.dialogs else _PLAIN
