"""Definitions of dialogs: message types, contracts, services and priorities. Pure."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from lazaretto.errors import DefinitionError, InvalidOption
from lazaretto.model.checks import flag, member, seconds, shown, suggestion, text, whole
from lazaretto.model.conversations import DEFAULT_PRIORITY, SYSTEM_TYPES
from lazaretto.model.entities import EntityPath, PoisonSession, QueueOptions, Subqueue
from lazaretto.model.policy import PoisonPolicy

LONGEST_NAME: Final = 256
#: The message type and the contract that exist everywhere, as in Service Broker.
DEFAULT: Final = "DEFAULT"


class Validation(enum.Enum):
    """The validation that a body must pass to be accepted by the receiving service."""

    NONE = "none"
    EMPTY = "empty"
    JSON = "json"
    JSON_SCHEMA = "json_schema"
    XML = "xml"


class SentBy(enum.Enum):
    """The sides that may send a message type of a contract."""

    INITIATOR = "initiator"
    TARGET = "target"
    ANY = "any"


class DialogPoison(enum.Enum):
    """The fate of a conversation with a poison message."""

    #: It waits, alone, until an operator decides on the message.
    HOLD = "hold"
    #: It is ended with an error, which the far end receives, as Service Broker's TrackMessage does.
    END = "end"
    #: The message becomes a dead letter, and the conversation goes on without it.
    SET_ASIDE = "set_aside"
    #: Five receives rolled back in a row switch the whole queue off, as in Service Broker.
    DISABLE = "disable"


VALIDATIONS = {v.value: v for v in Validation}
SENDERS = {v.value: v for v in SentBy}
POISON_MODES = {v.value: v for v in DialogPoison}
#: Failures after which the verdict falls, if a service does not say: by the arithmetic of TrackMessage, 4.
DEFAULT_FAILURES: Final = 4
MOST_READERS: Final = 32_767


class MessageType(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A kind of message: its name and how its body is validated. `schema` is for json_schema."""

    name: str
    validation: Validation = Validation.NONE
    schema: dict[str, Any] | None = None


class Contract(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The message types of a dialog, and who may send each. It cannot change while it is used."""

    name: str
    messages: dict[str, SentBy]


class Service(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One side of dialogs: the queue its messages arrive in, and the contracts it can be the target of.

    `poison` decides about a conversation when a message has failed `failures` times, `retry_delay` seconds
    apart. Services on one queue must agree on these three. `retention` keeps received and sent messages until
    the conversation ends. `handler` is a "module:function" that reads the queue. A host runs it in up to
    `max_readers` threads, by load (Service Broker's activation).
    """

    name: str
    queue: str
    contracts: tuple[str, ...] = ()
    poison: DialogPoison = DialogPoison.HOLD
    failures: int = DEFAULT_FAILURES
    retry_delay: float = 0.0
    retention: bool = False
    lock_duration: float = 60.0
    handler: str | None = None
    max_readers: int = 1


class Priority(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The priority of conversations, from 1 to 10, by contract, near service and far service (None: any)."""

    name: str
    level: int
    contract: str | None = None
    service: str | None = None
    far_service: str | None = None


Definition = MessageType | Contract | Service | Priority
KINDS: Final[dict[str, type[Definition]]] = {
    "message_type": MessageType,
    "contract": Contract,
    "service": Service,
    "priority": Priority,
}


def kind_of(definition: Definition) -> str:
    """Return the kind that a definition is stored under."""
    return next(kind for kind, type_ in KINDS.items() if type(definition) is type_)


# -- checks --------------------------------------------------------------------------------------


def _name(what: str, name: object) -> str:
    return text(what, name, LONGEST_NAME)


def message_type(
    name: str, validation: Validation | str = Validation.NONE, schema: Mapping[str, Any] | None = None
) -> MessageType:
    """Return a message type, checked. Raises InvalidOption."""
    _name("a message type's name", name)
    if name in (DEFAULT, *SYSTEM_TYPES):
        raise InvalidOption(f"{name!r} is a built-in message type")
    validation_ = member("validation", validation, VALIDATIONS)
    if (schema is not None) is not (validation_ is Validation.JSON_SCHEMA):
        raise InvalidOption(
            f"expected a schema only with validation json_schema, got {validation_.value} "
            f"{'without' if schema is None else 'with'} one"
        )
    if schema is not None and not isinstance(schema, Mapping):
        raise InvalidOption(f"expected a schema to be a mapping, got {shown(schema)}")
    return MessageType(name, validation_, None if schema is None else dict(schema))


def contract(name: str, messages: Mapping[str, SentBy | str]) -> Contract:
    """Return a contract, checked: the initiator must be able to begin. Raises InvalidOption."""
    if _name("a contract's name", name) == DEFAULT:
        raise InvalidOption(f"{DEFAULT!r} is the built-in contract")
    if not isinstance(messages, Mapping):
        raise InvalidOption(f"expected a contract's messages to be a mapping, got {shown(messages)}")
    sent_by = {
        _name("a message type's name", type_): member("who sends it", by, SENDERS)
        for type_, by in messages.items()
    }
    if SentBy.INITIATOR not in sent_by.values() and SentBy.ANY not in sent_by.values():
        raise InvalidOption(f"contract {name!r} needs a message type that the initiator can send")
    return Contract(name, sent_by)


def service(
    name: str,
    queue: str,
    contracts: Sequence[str] = (),
    *,
    poison: DialogPoison | str = DialogPoison.HOLD,
    failures: int = DEFAULT_FAILURES,
    retry_delay: float = 0.0,
    retention: bool = False,
    lock_duration: float = 60.0,
    handler: str | None = None,
    max_readers: int = 1,
) -> Service:
    """Return a service, checked. Raises InvalidOption, InvalidPath."""
    _name("a service's name", name)
    if EntityPath.parse(queue).subqueue is not Subqueue.MAIN:
        raise InvalidOption(f"a service's messages arrive in a queue, not in a subqueue: {shown(queue)}")
    if isinstance(contracts, str) or not isinstance(contracts, Sequence):
        raise InvalidOption(f"expected contracts to be a list of names, got {shown(contracts)}")
    if handler is not None and len(text("handler", handler, 256).split(":")) != 2:
        raise InvalidOption(f"expected handler to be 'module:function', got {shown(handler)}")
    return Service(
        name,
        queue,
        tuple(_name("a contract's name", one) for one in contracts),
        member("poison", poison, POISON_MODES),
        whole("failures", failures, 1, 1_000_000),
        seconds("retry_delay", retry_delay),
        flag("retention", retention),
        seconds("lock_duration", lock_duration, 1.0, 86_400.0),
        handler,
        whole("max_readers", max_readers, 1, MOST_READERS),
    )


def priority(
    name: str,
    level: int,
    *,
    contract: str | None = None,
    service: str | None = None,
    far_service: str | None = None,
) -> Priority:
    """Return a priority, checked. Raises InvalidOption."""
    _name("a priority's name", name)
    for what, value in (("contract", contract), ("service", service), ("far_service", far_service)):
        if value is not None:
            _name(what, value)
    return Priority(name, whole("level", level, 1, 10), contract, service, far_service)


#: How a definition of each kind is made of what somebody gave.
MAKERS: Final[dict[str, Callable[..., Definition]]] = {
    "message_type": message_type,
    "contract": contract,
    "service": service,
    "priority": priority,
}


_SESSIONS: Final = {
    DialogPoison.HOLD: PoisonSession.BLOCK,
    DialogPoison.END: PoisonSession.END,
    DialogPoison.SET_ASIDE: PoisonSession.SKIP,
    DialogPoison.DISABLE: PoisonSession.SKIP,
}


def queue_options(service: Service) -> QueueOptions:
    """Return the options of a service's queue, with its poison policy."""
    # With a delay each failure is a cycle of its own, so that the delay runs in the store.
    retries, delay = service.failures - 1, service.retry_delay
    counting = PoisonPolicy(
        receive_retry_count=0 if delay else retries,
        max_retry_cycles=retries if delay else 0,
        retry_cycle_delay=delay,
    )
    disable = service.poison is DialogPoison.DISABLE
    return QueueOptions(
        requires_session=True,
        dialogs=True,
        retention=service.retention,
        lock_duration=service.lock_duration,
        policy=PoisonPolicy.service_broker() if disable else counting,
        on_poison_session=_SESSIONS[service.poison],
        breaker=None,
    )


# -- all of a store's ----------------------------------------------------------------------------

_DEFAULTS: Final[dict[str, dict[str, Definition]]] = {
    "message_type": {DEFAULT: MessageType(DEFAULT)},
    "contract": {DEFAULT: Contract(DEFAULT, {DEFAULT: SentBy.ANY})},
    "service": {},
    "priority": {},
}


class Definitions:
    """Every message type, contract, service and priority of a store, by name. It is immutable."""

    def __init__(self, definitions: tuple[Definition, ...] = ()) -> None:
        self._by_kind = {kind: dict(defaults) for kind, defaults in _DEFAULTS.items()}
        for one in definitions:
            self._by_kind[kind_of(one)][one.name] = one

    def all(self, kind: str) -> list[Any]:
        """Return the definitions of a kind, by name."""
        by_name = self._by_kind[kind]
        return [by_name[name] for name in sorted(by_name) if name not in _DEFAULTS[kind]]

    def every(self) -> list[Definition]:
        """Return all definitions, in order of dependency."""
        return [one for kind in KINDS for one in self.all(kind)]

    def _find(self, kind: str, name: str, by: str | None = None) -> Any:
        """Return a definition, which `by` needs. Raises DefinitionError."""
        by_name = self._by_kind[kind]
        if name not in by_name:
            what = f"{kind.replace('_', ' ')} {name!r}"
            problem = f"{what} does not exist" if by is None else f"{by} needs {what}, which does not exist"
            raise DefinitionError(f"{problem}{suggestion(name, by_name)}")
        return by_name[name]

    def get(self, kind: str, name: str) -> Definition | None:
        """Return a definition, or None if there is none with this name."""
        return self._by_kind[kind].get(name)

    def message_type(self, name: str) -> MessageType:
        """Return a message type. Raises DefinitionError."""
        definition: MessageType = self._find("message_type", name)
        return definition

    def contract(self, name: str) -> Contract:
        definition: Contract = self._find("contract", name)
        return definition

    def service(self, name: str) -> Service:
        definition: Service = self._find("service", name)
        return definition

    def on_queue(self, path_key: str) -> list[Service]:
        """Return the services whose messages arrive in a queue."""
        return [one for one in self.all("service") if one.queue.lower() == path_key]

    def changed(self, new: Definition) -> Definitions:
        """Return a copy with one definition added or replaced."""
        return Definitions((*self.every(), new))

    def without(self, kind: str, name: str) -> Definitions:
        """Return a copy without one definition."""
        return Definitions(tuple(d for d in self.every() if (kind_of(d), d.name) != (kind, name)))

    def check(self) -> None:
        """Raise DefinitionError if a definition names a missing one, or services on a queue do not agree."""
        for one in self.all("contract"):
            for name in one.messages:
                self._find("message_type", name, f"contract {one.name!r}")
        first: dict[str, Service] = {}
        for one in self.all("service"):
            for name in one.contracts:
                self._find("contract", name, f"service {one.name!r}")
            other = first.setdefault(one.queue.lower(), one)
            if queue_options(one) != queue_options(other):
                raise DefinitionError(
                    f"services {other.name!r} and {one.name!r} share queue {one.queue!r} and must agree on "
                    "poison, failures, retry_delay, retention and lock_duration"
                )
        for one in self.all("priority"):
            if one.contract is not None:
                self._find("contract", one.contract, f"priority {one.name!r}")

    def priority_of(self, contract: str, service: str, far_service: str) -> int:
        """Return the priority of a new conversation: that of the most specific definition that fits, else 5.

        The contract outweighs the near service, and the near service outweighs the far one.
        """
        terms = (contract, service, far_service)
        best, level = (-1, -1, -1), DEFAULT_PRIORITY
        for one in self.all("priority"):
            pattern = (one.contract, one.service, one.far_service)
            if all(g is None or g == w for g, w in zip(pattern, terms, strict=True)):
                fit = (int(pattern[0] is not None), int(pattern[1] is not None), int(pattern[2] is not None))
                if fit > best:
                    best, level = fit, one.level
        return level


def refuse_sending(contract: Contract, type_name: str, *, initiator: bool) -> None:
    """Raise DefinitionError if this side of a dialog may not send a message type under its contract."""
    by = contract.messages.get(type_name)
    if by is None:
        raise DefinitionError(
            f"contract {contract.name!r} has no message type {type_name!r}"
            f"{suggestion(type_name, contract.messages)}"
        )
    if by is not SentBy.ANY and (by is SentBy.INITIATOR) is not initiator:
        role = "initiator" if initiator else "target"
        raise DefinitionError(
            f"contract {contract.name!r} lets only the {by.value} send {type_name!r}, but this is the {role}"
        )
