"""The mark of a spread in each of its stores: which place it has among how many."""

from __future__ import annotations

import dataclasses

import msgspec

from lazaretto.engine.entities.queues import standings
from lazaretto.errors import NotAllowed
from lazaretto.store.contract.access_contract import SPREAD
from lazaretto.store.contract.transaction_contract import Operation, Transaction


class SpreadMark(msgspec.Struct, frozen=True):
    """A store's place, from 0, among the `stores` of the spread called `spread`."""

    spread: str
    place: int
    stores: int


def spread_mark(tx: Transaction) -> SpreadMark | None:
    """Return a store's mark; None if it is in no spread."""
    found = tx.access.setting(SPREAD)
    return None if found is None else msgspec.json.decode(found, type=SpreadMark)


@dataclasses.dataclass(slots=True)
class JoinSpread(Operation[SpreadMark]):
    """Mark a store as part of a spread, in place of the mark that was found; return its mark.

    If another process has marked it meanwhile, its mark stays. Raises NotAllowed if the store has messages,
    dead letters included, and keys may have had other stores: the messages of a key must stay in one.
    """

    mark: SpreadMark
    found: SpreadMark | None

    def run(self, tx: Transaction) -> SpreadMark:
        kept = self.kept(tx)
        if kept is not None:
            return kept
        tx.access.save_setting(SPREAD, msgspec.json.encode(self.mark).decode())
        return self.mark

    def kept(self, tx: Transaction) -> SpreadMark | None:
        """Return the mark that stays; None if it is to be replaced. Raises NotAllowed if it must not be."""
        found = spread_mark(tx)
        if found is not None and (found == self.mark or found != self.found):
            return found
        if found is not None or self.mark.stores > 1:
            _refuse_messages(tx)
        return None


def _refuse_messages(tx: Transaction) -> None:
    for queue, standing in standings(tx, tx.queues.all()):
        if standing.dead_letter or standing.transfer_dead_letter or any(standing.states.values()):
            raise NotAllowed(
                f"expected a store without messages, but {queue.path!r} has some: those of one key would "
                "then be in two stores. Have them received or removed first, and dead letters resubmitted"
            )
