"""Lazaretto: a durable message queue that one bad message cannot stop."""

from lazaretto.broker import Broker, connect
from lazaretto.clock import ManualClock, SystemClock
from lazaretto.consume import ConsumeReport
from lazaretto.engine.dead_letters import DeadLetterFilter, DeadLetterGroup, ResubmitReport
from lazaretto.engine.log import AuditEntry, Event
from lazaretto.entities import (
    MessageCounts,
    MessageState,
    QueueDescription,
    QueueOptions,
    QueueStatus,
)
from lazaretto.errors import (
    BrokerClosed,
    EntityExists,
    EntityNotFound,
    InvalidMessage,
    InvalidOption,
    InvalidPath,
    LazarettoError,
    MessageLockLost,
    MessageNotFound,
    MessageTooLarge,
    NotAllowed,
    PoisonMessageError,
    QueueDisabled,
    SessionCannotBeLocked,
    SessionLockLost,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreForeign,
    StoreFull,
    StoreNotFound,
    StoreReadOnly,
    StoreTooNew,
    TransactionError,
)
from lazaretto.headers import NegativeAcknowledgement
from lazaretto.messages import Attempt, DeadLetter, Message, PeekedMessage, ReceivedMessage
from lazaretto.policy import Backoff, Counters, Disposition, Growth, Outcome, PoisonPolicy
from lazaretto.receiver import NEXT_SESSION, Receiver
from lazaretto.sender import Sender
from lazaretto.transaction import BrokerTransaction

__version__ = "0.1.0"

__all__ = [
    "NEXT_SESSION",
    "Attempt",
    "AuditEntry",
    "Backoff",
    "Broker",
    "BrokerClosed",
    "BrokerTransaction",
    "ConsumeReport",
    "Counters",
    "DeadLetter",
    "DeadLetterFilter",
    "DeadLetterGroup",
    "Disposition",
    "EntityExists",
    "EntityNotFound",
    "Event",
    "Growth",
    "InvalidMessage",
    "InvalidOption",
    "InvalidPath",
    "LazarettoError",
    "ManualClock",
    "Message",
    "MessageCounts",
    "MessageLockLost",
    "MessageNotFound",
    "MessageState",
    "MessageTooLarge",
    "NegativeAcknowledgement",
    "NotAllowed",
    "Outcome",
    "PeekedMessage",
    "PoisonMessageError",
    "PoisonPolicy",
    "QueueDescription",
    "QueueDisabled",
    "QueueOptions",
    "QueueStatus",
    "ReceivedMessage",
    "Receiver",
    "ResubmitReport",
    "Sender",
    "SessionCannotBeLocked",
    "SessionLockLost",
    "StoreBusy",
    "StoreCorrupt",
    "StoreError",
    "StoreForeign",
    "StoreFull",
    "StoreNotFound",
    "StoreReadOnly",
    "StoreTooNew",
    "SystemClock",
    "TransactionError",
    "connect",
]
