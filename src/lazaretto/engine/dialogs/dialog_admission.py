"""Admission to the queue of a service: only messages of dialogs may enter and leave."""

from __future__ import annotations

from lazaretto.engine.routing.undeliverable import Undeliverable
from lazaretto.errors import NotAllowed
from lazaretto.store.records.messages import QueueRecord
from lazaretto.store.sql.transaction import Transaction


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
