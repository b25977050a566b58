"""Every error begins with the sentence that Service Bus says, which programs test for; ours follows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from door.client import Manager, connected, opened, run
from lazaretto import Message, QueueOptions, errors
from lazaretto.servicebus import AccessPolicy
from lazaretto.servicebus.amqp import Section, encode_section
from lazaretto.servicebus.amqp.conditions import AmqpError
from lazaretto.servicebus.amqp.events import CreditChanged, DeliveriesUpdated, LinkDetached
from lazaretto.servicebus.amqp.performatives import Accepted, Rejected
from lazaretto.servicebus.amqp.values import Array, Int
from lazaretto.servicebus.answers import TIMEOUT, condition_of, description_of, status_of
from lazaretto.servicebus.atom.feeds import refusal_of
from lazaretto.servicebus.grants import Unauthorized

LOST = (
    "The lock supplied is invalid. Either the lock expired, or the message has already been removed from the "
    "queue."
)
SESSION_LOST = "The session lock has expired on the MessageSession. Accept a new MessageSession."
NOT_FOUND = "The messaging entity 'q' could not be found."
BUSY = "The server is busy. Please wait a few seconds and try again."

#: What each error is told as: its condition, its status, and the beginning of its text.
TOLD: list[tuple[BaseException, str, int, str]] = [
    (errors.MessageLockLost("the lock on 'm'"), "com.microsoft:message-lock-lost", 410, LOST),
    (errors.SessionLockLost("the lock on session 's'"), "com.microsoft:session-lock-lost", 410, SESSION_LOST),
    (errors.SessionCannotBeLocked("session 's' of 'q' is locked"), "com.microsoft:session-cannot-be-locked",
     410, "The requested session 's' cannot be accepted. It may be locked by another receiver."),
    (errors.SessionHeld("q", "s", 1, "block", "reason"), "com.microsoft:session-cannot-be-locked", 410,
     "The requested session 'q' cannot be accepted."),
    (errors.MessageNotFound("no message 5"), "com.microsoft:message-not-found", 404,
     "Failed to lock one or more specified messages. The message does not exist."),
    (errors.EntityNotFound("no queue exists at 'q'"), "amqp:not-found", 404, NOT_FOUND),
    (errors.EntityNotFound("no queue exists"), "amqp:not-found", 404, "The messaging entity 'in question'"),
    (errors.EntityExists("a queue already exists at \"it's\""), "com.microsoft:entity-already-exists", 409,
     "The messaging entity 'it's' already exists."),
    (errors.QueueDisabled("queue 'q' cannot be sent to"), "com.microsoft:entity-disabled", 400,
     "Messaging entity 'q' is currently disabled."),
    (errors.PoisonMessageError("q", 1, 1, 0, "reason"), "com.microsoft:entity-disabled", 400,
     "Messaging entity 'q' is currently disabled."),
    (errors.QuotaExceeded("queue 'q' is full"), "amqp:resource-limit-exceeded", 403,
     "The maximum entity size has been reached or exceeded for 'q'."),
    (errors.MessageTooLarge("expected at most 5 bytes"), "amqp:link:message-size-exceeded", 403,
     "The received message exceeds the limit currently allowed on the link."),
    (errors.StoreBusy("busy"), "com.microsoft:server-busy", 503, BUSY),
    (errors.StoreUnavailable("away"), "com.microsoft:server-busy", 503, BUSY),
    (errors.CommitUnknown("away"), "com.microsoft:server-busy", 503, BUSY),
    (AmqpError(TIMEOUT, "no session"), TIMEOUT, 408,
     "The operation did not complete within the allotted timeout."),
    (Unauthorized("expected a token"), "amqp:unauthorized-access", 401, "Unauthorized access."),
    (errors.InvalidMessage("expected text"), "amqp:not-allowed", 400, "expected text"),
    (errors.InvalidOption("expected one"), "com.microsoft:argument-error", 400, "expected one"),
    (AmqpError("amqp:resource-limit-exceeded", "too many"), "amqp:resource-limit-exceeded", 403, "too many"),
    (AmqpError("amqp:not-implemented", "expected another"), "amqp:not-implemented", 501, "expected another"),
    (errors.StoreCorrupt("damaged"), "amqp:internal-error", 500, "damaged"),
    (ValueError("a secret"), "amqp:internal-error", 500, "an internal error: see the server's log"),
]  # fmt: skip
TOLD[3] = (*TOLD[3][:3], "The requested session 's' cannot be accepted.")


@pytest.mark.parametrize(("error", "condition", "status", "sentence"), TOLD, ids=lambda one: "")
def test_what_an_error_is_told_as(error: BaseException, condition: str, status: int, sentence: str) -> None:
    assert (condition_of(error), status_of(condition)) == (condition, status)
    text = description_of(error)
    assert text.startswith(sentence)
    if isinstance(error, errors.LazarettoError):
        assert text.endswith(str(error))
        refusal = refusal_of(error, lambda _: False)
        assert (refusal.status, refusal.detail) == (status, text)


async def refused(client: Any, address: str, session: Any = None, *, named: bool = False) -> str:
    """Attach a receiver, which is refused; return what it is told."""
    filters = {"com.microsoft:session-filter": session} if named else None
    name = f"{address} {session} {named}"
    more = {"properties": {"com.microsoft:timeout": Int(20)}} if named else {}
    link = await client.link(sends=False, address=address, filters=filters, name=name, **more)
    link.session.grant(link, 1)
    error = (await client.until(LinkDetached)).error
    return str(error.description)


def test_what_clients_meet(tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(tmp_path) as (broker, door), connected(door) as client:
            await broker.create_queue("s", QueueOptions(requires_session=True))
            await broker.create_queue("small", QueueOptions(max_message_size=1_024))
            await broker.create_queue("off")
            await broker.set_status("off", "disabled")
            manager = Manager(client)
            await manager.open("q/$management")
            await broker.sender("q").send(Message(b"x"))
            async with broker.receiver("q") as receiver:
                (held,) = await receiver.receive(1)
                token = held.lock_token
                await receiver.complete(held)

            async def told(operation: str, **body: Any) -> str:
                asked = {"operation": f"com.microsoft:{operation}"}
                given = {name.replace("_", "-"): value for name, value in body.items()}
                answer = await manager.exchange(asked, given)
                return str(answer.mapping(Section.APPLICATION_PROPERTIES)["statusDescription"])

            tokens = Array(0x98, [token])
            done = {"disposition_status": "completed", "lock_tokens": tokens}
            assert (await told("update-disposition", **done)).startswith(LOST)
            assert (await told("renew-lock", lock_tokens=tokens)).startswith(LOST)
            numbers = {"sequence_numbers": Array(0x81, [77]), "receiver_settle_mode": Int(1)}
            missing = "Failed to lock one or more specified messages. The message does not exist."
            assert (await told("receive-by-sequence-number", **numbers)).startswith(missing)
            assert (await told("cancel-scheduled-message", **numbers)).startswith(missing)
            assert (await told("get-session-state", session_id="a")).startswith(SESSION_LOST)

            assert (await refused(client, "none")).startswith(NOT_FOUND.replace("'q'", "'none'"))
            assert (await refused(client, "off")).startswith("Messaging entity 'off' is currently disabled.")
            sessions = "It is not possible for an entity that requires sessions to create a non-sessionful"
            assert (await refused(client, "s")).startswith(sessions)
            none = (
                "A sessionful message receiver cannot be created on an entity that does not require sessions."
            )
            assert (await refused(client, "q", "a", named=True)).startswith(none)
            subqueue = await refused(client, "s/$DeadLetterQueue", "a", named=True)
            assert subqueue.startswith("Cannot create a MessageSession for a sub-queue.")
            async with broker.receiver("s", session="a"):
                locked = "The requested session 'a' cannot be accepted. It may be locked by another receiver."
                assert (await refused(client, "s", "a", named=True)).startswith(locked)
            timeout = "The operation did not complete within the allotted timeout."
            assert (await refused(client, "s", None, named=True)).startswith(timeout)

            for address, body, sentence in (
                ("small", b"x" * 2_000, "The received message (delivery-id:0, size:"),
                ("off", b"x", "Messaging entity 'off' is currently disabled."),
            ):
                link = await client.link(sends=True, address=address, name=f"to {address}")
                while not link.credit:
                    await client.until(CreditChanged)
                link.session.transfer(link, encode_section(Section.DATA, body), b"t")
                state = (await client.until(DeliveriesUpdated)).state
                while not isinstance(state, Rejected):
                    assert state == Accepted()
                    state = (await client.until(DeliveriesUpdated)).state
                assert state.error is not None
                assert str(state.error.description).startswith(sentence)

    run(work)


def test_a_missing_right(tmp_path: Path) -> None:
    async def work() -> None:
        policies = [AccessPolicy("all", "key")]
        async with opened(tmp_path, policies=policies) as (_, door), connected(door) as client:
            assert (await refused(client, "q")).startswith("Unauthorized access.")

    run(work)
