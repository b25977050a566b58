"""Creates, changes, drops and applies message types, contracts, services and priorities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lazaretto.engine.command import Administering
from lazaretto.engine.entities.queues import change_options
from lazaretto.engine.log import audit, note
from lazaretto.errors import DefinitionError, InvalidOption
from lazaretto.model.checks import shown
from lazaretto.model.dialog_contracts import (
    KINDS,
    Contract,
    Definition,
    Definitions,
    Service,
    kind_of,
    queue_options,
)
from lazaretto.model.entities import EntityPath
from lazaretto.store.sql.transaction import Transaction


class Change(NamedTuple):
    """A change to a definition, done or planned: "create", "change" or "drop"."""

    verb: str
    kind: str
    name: str


def plan_definitions(
    tx: Transaction, definitions: Sequence[Definition], *, drop_others: bool = False
) -> tuple[list[Change], Definitions]:
    """Return the changes that would make definitions hold, and what holds then. Raises DefinitionError."""
    before = tx.dialogs.definitions()
    after = before
    changes = []
    for definition in definitions:
        kind = kind_of(definition)
        old = before.get(kind, definition.name)
        if old != definition:
            changes.append(Change("create" if old is None else "change", kind, definition.name))
            after = after.changed(definition)
    names = {(kind_of(d), d.name) for d in definitions}
    for old in before.every() if drop_others else ():
        kind = kind_of(old)
        if (kind, old.name) not in names:
            changes.append(Change("drop", kind, old.name))
            after = after.without(kind, old.name)
    after.check()
    for change in changes:
        if change.verb != "create":
            _refuse_used(tx, change, after)
    return changes, after


def apply_definitions(
    tx: Transaction, definitions: Sequence[Definition], actor: str, *, drop_others: bool = False
) -> list[Change]:
    """Create definitions and change those that differ; with `drop_others`, drop all that are not given.

    If one change is not possible, nothing changes. Returns the changes.
    """
    changes, after = plan_definitions(tx, definitions, drop_others=drop_others)
    for change in changes:
        definition_now = after.get(change.kind, change.name)
        if definition_now is None:
            tx.dialogs.delete_definition(change.kind, change.name)
        else:
            tx.dialogs.save_definition(definition_now)
        if isinstance(definition_now, Service):
            _keep_queue(tx, definition_now, actor)
        audit(tx, actor, f"{change.verb}_{change.kind}", "", name=change.name)
    return changes


def _refuse_used(tx: Transaction, change: Change, after: Definitions) -> None:
    """Raise DefinitionError if open conversations forbid a change."""
    before = tx.dialogs.definitions().get(change.kind, change.name)
    if isinstance(before, Contract) and tx.dialogs.contract_in_use(change.name):
        raise DefinitionError(
            f"contract {change.name!r} cannot be {change.verb}d while conversations use it; "
            "create another one"
        )
    if isinstance(before, Service) and tx.dialogs.service_in_use(change.name):
        now = after.get(change.kind, change.name)
        if not isinstance(now, Service) or now.queue.lower() != before.queue.lower():
            raise DefinitionError(
                f"service {change.name!r} has conversations: it cannot be dropped or moved to another "
                "queue; end the conversations first"
            )


def _keep_queue(tx: Transaction, service: Service, actor: str) -> None:
    """Create a service's queue, or give an existing one the service's poison policy."""
    path = EntityPath.parse(service.queue)
    options = queue_options(service)
    queue = tx.queues.by_path(path.key)
    if queue is None:
        note(tx, "queue_created", tx.queues.insert(path.queue, options))
        return
    if not queue.options.dialogs:
        raise DefinitionError(
            f"{queue.path!r} is an ordinary queue: name a new queue, which is created with the service"
        )
    names = ("retention", "lock_duration", "policy", "on_poison_session", "breaker")
    change_options(tx, queue, {name: getattr(options, name) for name in names}, actor)


class DropDefinition(Administering[None], frozen=True, kw_only=True):
    """Drop a definition that nothing uses. `kind`: "message_type", "contract", "service" or "priority"."""

    action = ""
    holder = "dialogs"
    method = "drop"
    kind: str
    name: str

    def run(self, tx: Transaction, actor: str) -> None:
        if self.kind not in KINDS:
            raise InvalidOption(f"expected a kind of {', '.join(KINDS)}, got {shown(self.kind)}")
        keep = tx.dialogs.definitions().without(self.kind, self.name).every()
        if not apply_definitions(tx, keep, actor, drop_others=True):
            raise DefinitionError(
                f"{self.kind.replace('_', ' ')} {self.name!r} does not exist and cannot be dropped"
            )
