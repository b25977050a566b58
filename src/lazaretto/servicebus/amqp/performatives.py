"""The performatives, termini, delivery states and transactions of AMQP 1.0: what frames say."""

from __future__ import annotations

from typing import Any

from lazaretto.servicebus.amqp.composites import KINDS, Composite, define, one_of
from lazaretto.servicebus.amqp.values import Symbol

Fields = dict[str, Any]


class Error(Composite, frozen=True, gc=False):
    """Why a connection, session, link or delivery failed."""

    condition: str
    description: str | None = None
    info: Fields | None = None


define(Error, 0x1D, "error", "symbol! string map")
KINDS["error"] = one_of(Error)


class Received(Composite, frozen=True, gc=False):
    """The part of a delivery that has come."""

    section_number: int
    section_offset: int


class Accepted(Composite, frozen=True, gc=False):
    """The delivery was processed."""


class Rejected(Composite, frozen=True, gc=False):
    """The delivery is invalid."""

    error: Error | None = None


class Released(Composite, frozen=True, gc=False):
    """The delivery was not processed; nothing is charged."""


class Modified(Composite, frozen=True, gc=False):
    """The delivery was not processed, and its message has changed."""

    delivery_failed: bool | None = None
    undeliverable_here: bool | None = None
    message_annotations: Fields | None = None


define(Received, 0x23, "received", "uint! ulong!")
define(Accepted, 0x24, "accepted", "")
define(Rejected, 0x25, "rejected", "error")
define(Released, 0x26, "released", "")
define(Modified, 0x27, "modified", "boolean boolean map")
Outcome = Accepted | Rejected | Released | Modified
_OUTCOMES = (Accepted, Rejected, Released, Modified)
KINDS["outcome"] = one_of(*_OUTCOMES)


class Declare(Composite, frozen=True, gc=False):
    """Begin a transaction: the body of a message to the coordinator."""

    global_id: Any = None


class Discharge(Composite, frozen=True, gc=False):
    """End a transaction: the body of a message to the coordinator. `fail`: roll it back."""

    txn_id: bytes
    fail: bool | None = None


class Declared(Composite, frozen=True, gc=False):
    """The transaction has begun: the state of the delivery that declared it."""

    txn_id: bytes


class TransactionalState(Composite, frozen=True, gc=False):
    """The delivery takes part in a transaction."""

    txn_id: bytes
    outcome: Outcome | None = None


define(Declare, 0x31, "declare", "any")
define(Discharge, 0x32, "discharge", "binary! boolean")
define(Declared, 0x33, "declared", "binary!")
define(TransactionalState, 0x34, "transactional-state", "binary! outcome")
DeliveryState = Received | Outcome | Declared | TransactionalState
KINDS["state"] = one_of(Received, *_OUTCOMES, Declared, TransactionalState)


class Source(Composite, frozen=True, gc=False):
    """The source of a link's messages."""

    address: str | None = None
    durable: int | None = None
    expiry_policy: str | None = None
    timeout: int | None = None
    dynamic: bool | None = None
    dynamic_node_properties: Fields | None = None
    distribution_mode: str | None = None
    filter: Fields | None = None
    default_outcome: Outcome | None = None
    outcomes: list[Symbol] | None = None
    capabilities: list[Symbol] | None = None


class Target(Composite, frozen=True, gc=False):
    """The target of a link's messages."""

    address: str | None = None
    durable: int | None = None
    expiry_policy: str | None = None
    timeout: int | None = None
    dynamic: bool | None = None
    dynamic_node_properties: Fields | None = None
    capabilities: list[Symbol] | None = None


class Coordinator(Composite, frozen=True, gc=False):
    """The target of a link that controls transactions."""

    capabilities: list[Symbol] | None = None


_TARGET = "string uint symbol uint boolean map"
define(Source, 0x28, "source", f"{_TARGET} symbol map outcome symbols symbols")
define(Target, 0x29, "target", f"{_TARGET} symbols")
define(Coordinator, 0x30, "coordinator", "symbols")
KINDS["source"] = one_of(Source)
KINDS["target"] = one_of(Target, Coordinator)


class Open(Composite, frozen=True, gc=False):
    """Negotiate a connection. `idle_time_out`: milliseconds."""

    container_id: str
    hostname: str | None = None
    max_frame_size: int | None = None
    channel_max: int | None = None
    idle_time_out: int | None = None
    outgoing_locales: list[Symbol] | None = None
    incoming_locales: list[Symbol] | None = None
    offered_capabilities: list[Symbol] | None = None
    desired_capabilities: list[Symbol] | None = None
    properties: Fields | None = None


class Begin(Composite, frozen=True, gc=False):
    """Begin a session on a channel."""

    remote_channel: int | None
    next_outgoing_id: int
    incoming_window: int
    outgoing_window: int
    handle_max: int | None = None
    offered_capabilities: list[Symbol] | None = None
    desired_capabilities: list[Symbol] | None = None
    properties: Fields | None = None


class Attach(Composite, frozen=True, gc=False):
    """Attach a link to a session. `role`: whether the end that says this receives."""

    name: str
    handle: int
    role: bool
    snd_settle_mode: int | None = None
    rcv_settle_mode: int | None = None
    source: Source | None = None
    target: Target | Coordinator | None = None
    unsettled: Any = None
    incomplete_unsettled: bool | None = None
    initial_delivery_count: int | None = None
    max_message_size: int | None = None
    offered_capabilities: list[Symbol] | None = None
    desired_capabilities: list[Symbol] | None = None
    properties: Fields | None = None


class Flow(Composite, frozen=True, gc=False):
    """Say what a session, and a link of it, may send."""

    next_incoming_id: int | None
    incoming_window: int
    next_outgoing_id: int
    outgoing_window: int
    handle: int | None = None
    delivery_count: int | None = None
    link_credit: int | None = None
    available: int | None = None
    drain: bool | None = None
    echo: bool | None = None
    properties: Fields | None = None


class Transfer(Composite, frozen=True, gc=False):
    """Transfer a message, or a part of one: the payload stands behind it."""

    handle: int
    delivery_id: int | None = None
    delivery_tag: bytes | None = None
    message_format: int | None = None
    settled: bool | None = None
    more: bool | None = None
    rcv_settle_mode: int | None = None
    state: DeliveryState | None = None
    resume: bool | None = None
    aborted: bool | None = None
    batchable: bool | None = None


class Disposition(Composite, frozen=True, gc=False):
    """Say what became of deliveries. `role`: whether the end that says this received them."""

    role: bool
    first: int
    last: int | None = None
    settled: bool | None = None
    state: DeliveryState | None = None
    batchable: bool | None = None


class Detach(Composite, frozen=True, gc=False):
    """Detach a link from its session."""

    handle: int
    closed: bool | None = None
    error: Error | None = None


class End(Composite, frozen=True, gc=False):
    """End a session."""

    error: Error | None = None


class Close(Composite, frozen=True, gc=False):
    """Close a connection."""

    error: Error | None = None


define(Open, 0x10, "open", "string! string uint ushort uint symbols symbols symbols symbols map")
define(Begin, 0x11, "begin", "ushort uint! uint! uint! uint symbols symbols map")
define(
    Attach,
    0x12,
    "attach",
    "string! uint! boolean! ubyte ubyte source target any boolean uint ulong symbols symbols map",
)
define(Flow, 0x13, "flow", "uint uint! uint! uint! uint uint uint uint boolean boolean map")
define(
    Transfer, 0x14, "transfer", "uint! uint binary uint boolean boolean ubyte state boolean boolean boolean"
)
define(Disposition, 0x15, "disposition", "boolean! uint! uint boolean state boolean")
define(Detach, 0x16, "detach", "uint! boolean error")
define(End, 0x17, "end", "error")
define(Close, 0x18, "close", "error")


class SaslMechanisms(Composite, frozen=True, gc=False):
    """The mechanisms that a server offers."""

    mechanisms: list[Symbol]


class SaslInit(Composite, frozen=True, gc=False):
    """The mechanism that a client chose, and its first answer, which logs must never show."""

    mechanism: str
    initial_response: bytes | None = None
    hostname: str | None = None


class SaslChallenge(Composite, frozen=True, gc=False):
    """A question of the server."""

    challenge: bytes


class SaslResponse(Composite, frozen=True, gc=False):
    """The client's answer, which logs must never show."""

    response: bytes


class SaslOutcome(Composite, frozen=True, gc=False):
    """Whether the client is let in: 0, or why not."""

    outcome: int
    additional_data: bytes | None = None


define(SaslMechanisms, 0x40, "sasl-mechanisms", "symbols!")
define(SaslInit, 0x41, "sasl-init", "symbol! binary string")
define(SaslChallenge, 0x42, "sasl-challenge", "binary!")
define(SaslResponse, 0x43, "sasl-response", "binary!")
define(SaslOutcome, 0x44, "sasl-outcome", "ubyte! binary")
