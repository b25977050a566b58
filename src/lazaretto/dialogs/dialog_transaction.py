"""A transaction on dialogs: Service Broker's verbs, your own SQL, and ordinary messages, in one commit."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable
from datetime import datetime

import msgspec

from lazaretto.broker.settling import SettleVerbs
from lazaretto.broker.steps import Do, Steps, outcome_of, run_steps, verb, waiting_for
from lazaretto.broker.transaction import BrokerTransaction, UnitOfWork, WorkVerbs
from lazaretto.dialogs.directory import Directory, Terms
from lazaretto.dialogs.validation import problem_with
from lazaretto.engine.dialogs.conversation_ends import ErrorBody, check_error
from lazaretto.engine.dialogs.receive_group import (
    GroupHandover,
    ReceiveGroup,
    ReleaseGroup,
    RenewGroup,
    SetGroupState,
)
from lazaretto.engine.dialogs.verbs import (
    BeginDialog,
    EndSide,
    MoveConversation,
    SendDialog,
    SetTimer,
)
from lazaretto.engine.messages.sessions import session_state
from lazaretto.engine.messages.settle import Settlement
from lazaretto.errors import InvalidMessage, InvalidOption, NotAllowed
from lazaretto.model.actors import RECEIVER, Taker
from lazaretto.model.checks import seconds, shown, text, whole
from lazaretto.model.conversations import (
    DIALOG_TIMER,
    END_DIALOG,
    ERROR,
    check_group,
    check_handle,
    dialog_of,
    is_initiator,
    new_group,
    new_handle,
    number_of,
)
from lazaretto.model.dialog_contracts import DEFAULT, refuse_sending
from lazaretto.model.entities import EntityPath
from lazaretto.model.messages import MOST_MESSAGES, Lock, ReceivedMessage
from lazaretto.observe.traces import active
from lazaretto.store.records.dialogs import OpenStream
from lazaretto.store.runtime.processes import program
from lazaretto.store.sql.store import Store


class DialogMessage(msgspec.Struct, frozen=True):
    """A message received from a dialog.

    `conversation`: the handle of this end, to answer with. `group`: the conversation group, locked until the
    transaction ends. `service`: the one it came to. `received`: the message as the queue has it, with its
    sequence number, delivery count and attempts.
    """

    type: str
    body: bytes
    conversation: str
    group: str
    service: str
    contract: str
    received: ReceivedMessage

    @classmethod
    def of(cls, message: ReceivedMessage, stream: OpenStream) -> DialogMessage:
        """Return a message that was taken from a stream."""
        type_ = message.headers.subject or ""
        return cls(
            type_, message.body, stream.handle, stream.group_id, stream.service, stream.contract, message
        )

    @property
    def number(self) -> int | None:
        """Its number among the messages of the other side; None for system messages."""
        return number_of(self.received.message_id)

    @property
    def is_end(self) -> bool:
        """Whether the other side has ended the dialog; nothing follows."""
        return self.type == END_DIALOG

    @property
    def is_error(self) -> bool:
        """Whether the other side has ended the dialog with an error, or its lifetime has expired."""
        return self.type == ERROR

    @property
    def is_timer(self) -> bool:
        """Whether it comes from a timer of this side."""
        return self.type == DIALOG_TIMER

    @property
    def is_last(self) -> bool:
        """Whether the dialog has ended. Processing it ends the conversation on this side too."""
        return self.is_end or self.is_error

    @property
    def error(self) -> tuple[int, str] | None:
        """Code and text of an error: positive from the other application, negative from the engine."""
        if not self.is_error:
            return None
        body = msgspec.json.decode(self.body, type=ErrorBody)
        return body.code, body.text

    @property
    def enqueued_time(self) -> datetime:
        return self.received.enqueued_time

    @property
    def delivery_count(self) -> int:
        """How many attempts at it have failed."""
        return self.received.delivery_count


class DialogTransaction(SettleVerbs[DialogMessage], WorkVerbs):
    """The verbs of dialogs and your own SQL, all or nothing. A context manager.

    Leaving the block commits. Received messages that were not settled otherwise are processed, and the
    conversation groups are released. An exception rolls back. Each received message counts a failure, and
    the service's `poison` option decides. The other verbs take effect on commit, in the order of the calls,
    after received messages are settled. A message type or direction that the contract does not allow
    raises at once. A conversation that has ended raises ConversationError on commit. Use a transaction in
    one thread only.
    """

    def __init__(self, store: Store, directory: Directory, queue: str | None = None) -> None:
        self._store = store
        self._work = UnitOfWork(store)
        self._messages = BrokerTransaction(store, self._work)
        self._directory = directory
        self._queue = queue
        # Even, as are those of all locks that are not on ranges.
        self._token = secrets.randbits(62) << 1
        self._begun: dict[str, Terms] = {}
        self._locks: dict[tuple[str, str], Lock] = {}
        self._last: set[str] = set()
        #: How often something was asked for, which shows that a reader does its work.
        self.receives = 0

    # -- receiving ------------------------------------------------------------------------------

    @verb
    def receive(
        self,
        queue: str | None = None,
        max_messages: int = 1,
        max_wait: float | None = 0.0,
        *,
        conversation: str | None = None,
        group: str | None = None,
    ) -> Steps[list[DialogMessage]]:
        """Return messages of one conversation group, which is locked until the transaction ends.

        `queue` is the service's; a reader that was started for it may leave it out. `conversation` or `group`
        selects one; otherwise the next unlocked group is used. Within a group timers come first, then errors,
        then messages by their conversation's priority and in order. It waits up to `max_wait` seconds (None:
        forever), then returns an empty list. Raises ConversationLocked, ConversationNotFound, QueueDisabled,
        NotAllowed.
        """
        whole("max_messages", max_messages, 1, MOST_MESSAGES)
        self._store.presence.enter(self, Taker(str(self._path(queue)), RECEIVER, program()))
        steps = self._taking(queue, max_messages, max_wait, conversation, group)
        if (tracing := active(self._store)) is not None:
            steps = tracing.receiving(self._path(queue), steps)
        received = yield from steps
        if received is None:
            return []
        messages = [DialogMessage.of(message, stream) for message, stream in received.messages]
        for message in messages:
            self._directory.remember(message.conversation, Terms(message.service, message.contract))
            if message.is_last:
                self._last.add(message.conversation)
        return messages

    @verb
    def get_conversation_group(
        self, queue: str | None = None, max_wait: float | None = 0.0
    ) -> Steps[tuple[str, bytes | None] | None]:
        """Lock the next conversation group that has messages; return its id and its state, None if none came.

        A program can then read the state before it receives with `receive(…, group=…)`. Call it again to lock
        several groups.
        """
        handover = yield from self._taking(queue, 0, max_wait, None, None)
        return None if handover is None else (handover.group, handover.state)

    def lock_group(self, group: str, queue: str | None = None) -> bytes | None:
        """Lock one conversation group and return its state. Raises ConversationLocked."""
        handover = run_steps(self._store, self._taking(queue, 0, 0.0, None, group))
        return None if handover is None else handover.state

    def group_state(self, group: str, queue: str | None = None) -> bytes | None:
        """Return the state of a group that this transaction has locked, with its own changes."""
        lock = self._held(group, queue)
        for operation in reversed(self._work.enlisted):
            if isinstance(operation, SetGroupState) and operation.group == group:
                return operation.state
        return self._store.read(lambda tx: session_state(tx, lock.path, lock))

    def set_group_state(self, group: str, state: bytes | None, queue: str | None = None) -> None:
        """Store the state of a group that this transaction has locked, on commit; at most 256 KiB.

        The state is deleted when the group's last conversation has ended.
        """
        lock = self._held(group, queue)
        self._work.enlist(SetGroupState(group, lock, state))

    def _held(self, group: str, queue: str | None) -> Lock:
        lock = self._locks.get((self._path(queue).key, check_group(group)))
        if lock is None:
            raise NotAllowed(f"conversation group {group} is not locked by this transaction")
        return lock

    def _path(self, queue: str | None) -> EntityPath:
        name = queue or self._queue
        if name is None:
            raise InvalidOption("expected the path of a service's queue, got None")
        return EntityPath.parse(name)

    def _taking(
        self,
        queue: str | None,
        limit: int,
        max_wait: float | None,
        conversation: str | None,
        group: str | None,
    ) -> Steps[GroupHandover | None]:
        self._work.refuse_receiving()
        path = self._path(queue)
        rotation = self._directory.rotation(path.key)
        end = None if max_wait is None else time.monotonic() + seconds("max_wait", max_wait)
        self.receives += 1
        operation = ReceiveGroup(
            path,
            limit,
            self._token,
            None if group is None else check_group(group),
            None if conversation is None else check_handle(conversation),
            rotation.turn,
            rotation.after,
        )
        named = group is not None or conversation is not None
        handover: GroupHandover | None = yield from waiting_for(
            self._store,
            self._directory.place(path),
            lambda: outcome_of(Do(operation, lambda handover: self._give_back(path, handover))),
            end,
            lambda: None,
            # Who has locked groups also gets what comes for these.
            alike=None if named or self._locks else "groups",
        )
        if handover is None:
            return None
        if not named:
            rotation.turn += 1
        if handover.stream:
            rotation.after = handover.stream
        new = (path.key, handover.group) not in self._locks
        self._locks[path.key, handover.group] = handover.lock
        release = ReleaseGroup(handover.lock) if new else None
        self._work.adopt([message for message, _ in handover.messages], release)
        return handover

    def _give_back(self, path: EntityPath, handover: object) -> ReleaseGroup | None:
        """Return what releases a group that was locked for nobody."""
        if not isinstance(handover, GroupHandover) or (path.key, handover.group) in self._locks:
            return None
        return ReleaseGroup(handover.lock)

    def renew_locks(self) -> None:
        """Renew the locks on all conversation groups of this transaction. Raises SessionLockLost."""
        received = list(self._work.received)
        for place, lock in list(self._locks.items()):
            keys = [m.key for m in received if m.lock is not None and m.lock.session_id == lock.session_id]
            self._locks[place] = self._store.run(RenewGroup(lock, keys))

    # -- the verbs ------------------------------------------------------------------------------

    def begin_dialog(
        self,
        service: str,
        far_service: str,
        contract: str = DEFAULT,
        *,
        group: str | None = None,
        lifetime: float | None = None,
    ) -> str:
        """Begin a dialog between two services, under a contract; return the handle of this side.

        The conversation joins `group`, or a new group. After `lifetime` seconds both sides receive an error
        (None: never). The other side learns of the dialog from the first message.
        """
        handle = new_handle()
        for name, value in (("service", service), ("far_service", far_service), ("contract", contract)):
            text(name, value, 256)
        micros = None if lifetime is None else round(seconds("lifetime", lifetime, 0.000_001) * 1_000_000)
        group_id = new_group() if group is None else check_group(group)
        self._work.enlist(BeginDialog(handle, service, far_service, contract, group_id, micros))
        self._begun[handle] = Terms(service, contract)
        return handle

    def send(self, conversation: str, message_type: str = DEFAULT, body: bytes = b"") -> None:
        """Send a message on a conversation on commit: exactly once, in order.

        Raises DefinitionError if the contract does not have the message type or does not let this side send
        it. A body that its type does not allow is dead-lettered on commit. This side then receives an error;
        the other side receives nothing.
        """
        handle = check_handle(conversation)
        if not isinstance(body, bytes | bytearray | memoryview):
            raise InvalidMessage(f"expected body to be bytes, got {shown(body)}")
        terms = self._begun.get(handle) or self._directory.terms(handle)
        definitions = self._directory.definitions()
        refuse_sending(definitions.contract(terms.contract), message_type, initiator=is_initiator(handle))
        data = bytes(body)
        problem = problem_with(definitions.message_type(message_type), data)
        tracing = active(self._store)
        trace = None if tracing is None else tracing.created_properties(dialog_of(handle))
        self._work.enlist(SendDialog(handle, message_type, data, problem, new_group(), trace))

    def end(self, conversation: str, *, error: tuple[int, str] | None = None) -> None:
        """End a conversation on this side: the other side receives EndDialog last, or an Error first.

        `error`: a code above 0 and a text of at most 3,000 characters. Unread messages here are dropped.
        """
        handle = check_handle(conversation)
        checked = None if error is None else check_error(error)
        self._work.enlist(EndSide(handle, checked, lenient=handle in self._last))

    def move_conversation(self, conversation: str, group: str) -> None:
        """Move a conversation to another group of the same queue; both must be free or locked here."""
        self._work.enlist(MoveConversation(check_handle(conversation), check_group(group), self._token))

    def set_timer(self, conversation: str, delay: float | None) -> None:
        """Send a DialogTimer message to this side after `delay` seconds; it replaces an earlier timer.

        None cancels the timer. Timer messages are received before all others of their group.
        """
        handle = check_handle(conversation)
        micros = None if delay is None else round(seconds("delay", delay) * 1_000_000)
        self._work.enlist(SetTimer(handle, micros))

    def _settle(self, messages: DialogMessage | Iterable[DialogMessage], settlement: Settlement) -> None:
        items = list(messages) if isinstance(messages, Iterable) else [messages]
        for message in items:
            if not isinstance(message, DialogMessage):
                raise InvalidOption(f"expected messages of a dialog, got {shown(message)}")
        self._work.settle([message.received for message in items], settlement)

    @property
    def messages(self) -> BrokerTransaction:
        """The same transaction for ordinary queues: to receive, settle and send."""
        return self._messages
