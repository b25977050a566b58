"""The tree of errors."""

from __future__ import annotations

import inspect

import pytest

import lazaretto
from lazaretto import errors
from lazaretto.errors import (
    LazarettoError,
    MessageLockLost,
    MessageNotReceivable,
    PoisonMessageError,
    SessionHeld,
)

ALL = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, LazarettoError)]
SIMPLE = [c for c in ALL if c not in (PoisonMessageError, SessionHeld, MessageNotReceivable)]

#: Codes are promises: programs compare them. A changed or missing line breaks somebody.
CODES = {
    "BrokerClosed": "closed",
    "ChangedMeanwhile": "changed_meanwhile",
    "ClaimFenced": "claim_fenced",
    "ConversationError": "conversation_error",
    "ConversationLocked": "conversation_locked",
    "ConversationNotFound": "conversation_not_found",
    "DefinitionError": "definition_error",
    "CommitUnknown": "commit_unknown",
    "EntityError": "entity_error",
    "EntityExists": "entity_exists",
    "EntityNotFound": "entity_not_found",
    "ExecutorNotReady": "executor_not_ready",
    "FilterError": "filter_error",
    "FilterSyntaxError": "filter_syntax",
    "HandlerError": "handler_error",
    "InvalidMessage": "invalid_message",
    "InvalidOption": "invalid_option",
    "InvalidPath": "invalid_path",
    "IdempotencyConflict": "idempotency_conflict",
    "JavaNotFound": "java_not_found",
    "LazarettoError": "error",
    "MessageLockLost": "message_lock_lost",
    "MessageNotFound": "message_not_found",
    "MessageNotReceivable": "message_not_receivable",
    "MessageTooLarge": "message_too_large",
    "NotAllowed": "not_allowed",
    "PersonNotFound": "person_not_found",
    "PoisonMessageError": "poison_message",
    "QuotaExceeded": "quota_exceeded",
    "QueueDisabled": "queue_disabled",
    "RepairError": "repair_error",
    "RepairNotFound": "repair_not_found",
    "SandboxError": "sandbox_error",
    "SandboxSetupError": "sandbox_setup_error",
    "SecondPersonNeeded": "second_person_needed",
    "QueryTooLong": "query_too_long",
    "TooManyRequests": "too_many_requests",
    "ServerOverloaded": "server_overloaded",
    "SessionCannotBeLocked": "session_cannot_be_locked",
    "SessionHeld": "session_held",
    "SessionLockLost": "session_lock_lost",
    "SettlementError": "settlement_error",
    "StoreBusy": "store_busy",
    "StoreCorrupt": "store_corrupt",
    "StoreError": "store_error",
    "ServerUnsuitable": "server_unsuitable",
    "StoreForeign": "store_foreign",
    "StoreFull": "store_full",
    "StoreGone": "store_gone",
    "StoreIncomplete": "store_incomplete",
    "StoreNotFound": "store_not_found",
    "StoreOutdated": "store_outdated",
    "StoreReadOnly": "store_read_only",
    "StoreTooNew": "store_too_new",
    "StoreUnavailable": "store_unavailable",
    "SystemicFailure": "systemic_failure",
    "TokenNotFound": "token_not_found",
    "TransactionError": "transaction_error",
}


def test_codes_are_stable() -> None:
    assert {c.__name__: c.code for c in ALL} == CODES


def test_codes_are_unique() -> None:
    assert len({c.code for c in ALL}) == len(ALL)


@pytest.mark.parametrize("error", SIMPLE)
def test_the_docstring_is_the_message(error: type[LazarettoError]) -> None:
    first_line = (error.__doc__ or "").split("\n", 1)[0]
    assert first_line.endswith(".")
    assert str(error()) == first_line
    assert str(error("another")) == "another"


def test_users_can_import_all_they_may_catch() -> None:
    internal = {"EntityError", "SettlementError"}
    missing = {c.__name__ for c in ALL} - internal - set(lazaretto.__all__)
    assert not missing


def test_a_poison_message_error_carries_the_culprit() -> None:
    error = PoisonMessageError("orders", 7, 18, 2, "MaxDeliveryCountExceeded")
    assert (error.entity, error.sequence_number, error.delivery_count) == ("orders", 7, 18)
    assert (error.cycle, error.reason) == (2, "MaxDeliveryCountExceeded")
    assert "'orders' is halted by message 7 after 18 attempts (2 retry cycles)" in str(error)
    assert "retry, move, drop or reject" in str(error)


def test_a_lost_lock_names_its_messages() -> None:
    assert MessageLockLost(None, [3, 4]).sequence_numbers == (3, 4)


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (errors.InvalidOption, ValueError),
        (errors.InvalidPath, ValueError),
        (errors.InvalidMessage, ValueError),
        (errors.EntityNotFound, LookupError),
        (errors.MessageNotFound, LookupError),
        (errors.RepairNotFound, LookupError),
    ],
)
def test_errors_fit_pythons_own(error: type[LazarettoError], builtin: type[Exception]) -> None:
    assert issubclass(error, builtin)
