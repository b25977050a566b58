"""Dialogs between services: definitions, conversations, and operators' actions."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lazaretto.broker.handling.functions import refuse_lazy
from lazaretto.commands.methods import DialogMethods
from lazaretto.dialogs.activation import Procedure, QueueMonitor
from lazaretto.dialogs.declaration import read_declaration
from lazaretto.dialogs.description import (
    ConversationDescription,
    TimelineEntry,
    describe_conversation,
    timeline,
)
from lazaretto.dialogs.dialog_transaction import DialogTransaction
from lazaretto.dialogs.directory import Directory
from lazaretto.dialogs.validation import problem_with
from lazaretto.engine.command import Act
from lazaretto.engine.dialogs.conversation_ends import check_error, require_conversation
from lazaretto.engine.dialogs.definitions import Change, DropDefinition, apply_definitions, plan_definitions
from lazaretto.engine.dialogs.verbs import (
    both_ends,
    resume_conversation,
)
from lazaretto.engine.entities.queues import require_queue
from lazaretto.engine.log import acting
from lazaretto.errors import ConversationNotFound, DefinitionError, HandlerError, InvalidOption
from lazaretto.model import dialog_contracts as contracts
from lazaretto.model.checks import member, shown, whole
from lazaretto.model.conversations import (
    POISON_CODE,
    POISON_TEXT,
    ConversationState,
    check_group,
    check_handle,
    dialog_of,
)
from lazaretto.model.dialog_contracts import Definition, DialogPoison, Priority, SentBy, Service, Validation
from lazaretto.model.entities import EntityPath
from lazaretto.store.sql.store import Store
from lazaretto.store.sql.transaction import Transaction
from lazaretto.tools.loading import load

STATES = {state.value: state for state in ConversationState if state is not ConversationState.CLOSED}
#: What an operator may decide on the poison message that holds a conversation.
_PAGE = 500


def _handler_of(service: Service) -> Procedure:
    if service.handler is None:
        raise DefinitionError(f"service {service.name!r} has no handler")
    procedure: Procedure = load(service.handler)
    if not callable(procedure):
        raise HandlerError(f"expected {service.handler} to be a function of a Reader, got {shown(procedure)}")
    return procedure


class Dialogs(DialogMethods):
    """Service Broker's dialogs on a store. Threads can share it; use `broker.dialogs`.

    Message types, contracts and services define who may send which messages. A service's messages arrive
    in its own queue. Send and receive in transactions (`transaction()`).
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._directory = Directory(store)

    # -- definitions ----------------------------------------------------------------------------

    def create_message_type(
        self,
        name: str,
        validation: Validation | str = Validation.NONE,
        *,
        schema: Mapping[str, Any] | None = None,
        actor: str | None = None,
    ) -> None:
        """Create a message type, or change its validation: none, empty, json, json_schema, xml.

        Raises InvalidOption. A message with an invalid body is never received; its sender gets an
        error.
        """
        definition = contracts.message_type(name, validation, schema)
        if definition.schema is not None:
            problem_with(definition, b"null")  # An impossible schema is said now.
        self._apply([definition], actor)

    def create_contract(
        self, name: str, messages: Mapping[str, SentBy | str], *, actor: str | None = None
    ) -> None:
        """Create a contract: its message types, each sent by the "initiator", the "target" or "any".

        Raises DefinitionError for a message type that is missing, and if it is used and would be changed.
        """
        self._apply([contracts.contract(name, messages)], actor)

    def create_service(
        self,
        name: str,
        queue: str,
        contracts_: Sequence[str] = (),
        *,
        poison: DialogPoison | str = DialogPoison.HOLD,
        failures: int = contracts.DEFAULT_FAILURES,
        retry_delay: float = 0.0,
        retention: bool = False,
        lock_duration: float = 60.0,
        handler: str | None = None,
        max_readers: int = 1,
        actor: str | None = None,
    ) -> None:
        """Create a service on a queue of its own, which is made with it; or change its options.

        `contracts_` are those it can be the target of. `poison` applies to a conversation when one of its
        messages has failed `failures` times, `retry_delay` seconds apart. "hold" holds the conversation until
        an operator decides. "end" ends it with an error. "set_aside" dead-letters the message and continues.
        "disable" disables the queue after five rollbacks in a row. `retention` keeps received and sent
        messages until the conversation ends. `handler` and `max_readers` are for `activate`.
        """
        definition = contracts.service(
            name,
            queue,
            contracts_,
            poison=poison,
            failures=failures,
            retry_delay=retry_delay,
            retention=retention,
            lock_duration=lock_duration,
            handler=handler,
            max_readers=max_readers,
        )
        self._apply([definition], actor)

    def create_priority(
        self,
        name: str,
        level: int,
        *,
        contract: str | None = None,
        service: str | None = None,
        far_service: str | None = None,
        actor: str | None = None,
    ) -> None:
        """Give new conversations a priority from 1 to 10 (5 if none fits).

        The most specific priority that fits applies: the contract outweighs the near service, and the near
        service outweighs the far one. The most urgent conversations are received first. Every eighth receive
        serves all in turn.
        """
        definition: Priority = contracts.priority(
            name, level, contract=contract, service=service, far_service=far_service
        )
        self._apply([definition], actor)

    def drop(self, kind: str, name: str, *, actor: str | None = None) -> None:
        """Drop a "message_type", "contract", "service" or "priority" that nothing uses.

        Raises DefinitionError. A service's queue stays; delete it with `broker.delete_queue`.
        """
        self._store.run(DropDefinition(kind=kind, name=name).by(acting(actor)))
        self._directory.forget_definitions()

    def definitions(self) -> contracts.Definitions:
        """Return every message type, contract, service and priority."""
        return self._store.read(lambda tx: tx.dialogs.definitions())

    def apply(
        self,
        declaration: str | Path | Sequence[Definition],
        *,
        drop_others: bool = False,
        compare: bool = False,
        actor: str | None = None,
    ) -> list[Change]:
        """Apply the definitions of a TOML file or a list to the store; return the changes.

        `drop_others` drops definitions that are not named. `compare` changes nothing and returns what would
        change. It is all or nothing.
        """
        definitions = (
            read_declaration(declaration) if isinstance(declaration, str | Path) else list(declaration)
        )
        return self._apply(definitions, actor, drop_others=drop_others, compare=compare)

    def _apply(
        self,
        definitions: Sequence[Definition],
        actor: str | None,
        *,
        drop_others: bool = False,
        compare: bool = False,
    ) -> list[Change]:
        who = acting(actor)
        if compare:
            return self._store.read(lambda tx: plan_definitions(tx, definitions, drop_others=drop_others)[0])
        changes = self._store.run(
            Act(lambda tx: apply_definitions(tx, definitions, who, drop_others=drop_others))
        )
        self._directory.forget_definitions()
        return changes

    # -- conversations --------------------------------------------------------------------------

    def transaction(self, queue: str | None = None) -> DialogTransaction:
        """Begin a unit of work for a `with` block. It receives from `queue`."""
        return DialogTransaction(self._store, self._directory, queue)

    @contextlib.contextmanager
    def activate(
        self, *services: str, procedure: Procedure | None = None, grace: float = 30.0
    ) -> Iterator[list[QueueMonitor]]:
        """Start and stop readers of services by load during a `with` block; yield the monitors.

        `services` are names; without names, all services that have a handler. A reader runs `procedure`
        instead of the service's handler. The procedure takes a Reader, receives until no message comes, and
        returns. `by_type` makes one from functions for message types. `grace` is the number of seconds that
        readers have to return at the end. Raises DefinitionError, HandlerError.
        """
        definitions = self.definitions()
        chosen = [definitions.service(name) for name in services]
        if not services:
            chosen = [one for one in definitions.all("service") if one.handler is not None]
        if not chosen:
            raise DefinitionError("no service has a handler: name one with create_service(handler=…)")
        pairs = [(one, procedure or _handler_of(one)) for one in chosen]
        for _, one in pairs:
            refuse_lazy(one, "a procedure", may_await=False)
        monitors = [QueueMonitor(self._store, self._directory, *one) for one in pairs]
        try:
            yield monitors
        finally:
            end = time.monotonic() + grace
            for monitor in monitors:
                monitor.stop(0.0)
            for monitor in monitors:
                monitor.stop(max(0.0, end - time.monotonic()))

    # -- for operators --------------------------------------------------------------------------

    def conversation(self, handle: str) -> ConversationDescription:
        """Return the description of one side of a dialog. Raises ConversationNotFound."""
        checked = check_handle(handle)
        return self._store.read(lambda tx: describe_conversation(tx, require_conversation(tx, checked)))

    def dialog(self, dialog: str) -> list[ConversationDescription]:
        """Return the existing sides of a dialog, by its id or a handle. Raises ConversationNotFound."""
        id_ = self._find(dialog)

        def describe(tx: Transaction) -> list[ConversationDescription]:
            ends = [describe_conversation(tx, record) for record in both_ends(tx, id_)]
            if not ends:
                raise ConversationNotFound(f"no dialog has the id {dialog!r}; it may have ended")
            return ends

        return self._store.read(describe)

    def conversations(
        self,
        *,
        queue: str | None = None,
        state: ConversationState | str | None = None,
        group: str | None = None,
        held: bool = False,
        after: str = "",
        limit: int | None = None,
    ) -> Iterator[ConversationDescription]:
        """Return all conversations, or those of a queue, a state or a group, by handle.

        `held`: only those that a poison message holds. `after`: a handle, to begin behind it. `limit`: the
        most conversations; None: all.
        """
        rest = None if limit is None else whole("limit", limit, 0, 1 << 40)
        after = check_handle(after) if after else ""
        state_ = None if state is None else member("state", state, STATES)
        group_id = None if group is None else check_group(group)
        path = None if queue is None else EntityPath.parse(queue)

        def page(tx: Transaction) -> list[ConversationDescription]:
            queue_id = None if path is None else require_queue(tx, path).queue_id
            page_ = tx.dialogs.conversations(
                after, most, queue_id=queue_id, state=state_, group_id=group_id, held=held
            )
            return [describe_conversation(tx, record) for record in page_]

        while True:
            most = _PAGE if rest is None else min(rest, _PAGE)
            page_ = self._store.read(page)
            yield from page_
            rest = None if rest is None else rest - len(page_)
            if len(page_) < most or rest == 0:
                return
            after = page_[-1].conversation

    def timeline(self, dialog: str) -> list[TimelineEntry]:
        """Return the history of both sides of a dialog, then their queued messages.

        Raises ConversationNotFound.
        """
        id_ = self._find(dialog)
        entries = self._store.read(lambda tx: timeline(tx, id_))
        if not entries:
            raise ConversationNotFound(f"no dialog has the id {dialog!r}; it may have ended")
        return entries

    def resume(
        self,
        handle: str,
        verdict: str,
        *,
        error: tuple[int, str] = (POISON_CODE, POISON_TEXT),
        actor: str | None = None,
    ) -> None:
        """Resume a conversation with a verdict on the poison message that holds it.

        "retry" starts its attempts again. "move" dead-letters it, and the conversation continues without it.
        "drop" and "reject" are the dispositions. "end" ends the conversation with `error` and dead-letters
        its messages.
        """
        checked, who = check_error(error), acting(actor)
        self._store.run(Act(lambda tx: resume_conversation(tx, handle, verdict, checked, who)))

    def _find(self, dialog: str) -> str:
        """Return the handle of one end, given a dialog's id, its beginning, or a handle."""
        if not isinstance(dialog, str) or not dialog or not set(dialog[:32]) <= set("0123456789abcdef"):
            raise InvalidOption(f"expected a dialog's id or a prefix of it, or a handle, got {shown(dialog)}")
        if len(dialog) >= 32:
            return check_handle(dialog if len(dialog) > 32 else f"{dialog}-i")
        near = self._store.read(
            lambda tx: tx.dialogs.conversations(dialog, 3, queue_id=None, state=None, group_id=None)
        )
        ids = {dialog_of(r.handle) for r in near if r.handle.startswith(dialog)}
        if len(ids) > 1:
            raise InvalidOption(f"several dialog ids begin with {dialog!r}; give a longer prefix")
        if not ids:
            raise ConversationNotFound(f"no dialog has an id that begins with {dialog!r}; it may have ended")
        return f"{ids.pop()}-i"
