"""Tries a handler on one message in a sandbox; settles nothing and only records its sends."""

from __future__ import annotations

from typing import Any

import msgspec

from lazaretto.broker.broker import Broker
from lazaretto.errors import MessageNotFound
from lazaretto.host.handler_calls import SandboxSetup, pack
from lazaretto.host.handlers import Handler
from lazaretto.host.outcomes import ended_of
from lazaretto.isolation import Sandbox
from lazaretto.model.entities import EntityPath, Subqueue
from lazaretto.model.headers import decode_headers
from lazaretto.model.messages import PeekedMessage
from lazaretto.model.policy import Counters, Final, Outcome, charge, decide


class TrialSend(msgspec.Struct, frozen=True):
    """A message that the handler would have sent."""

    queue: str
    message_id: str | None
    body: bytes
    subject: str | None
    session_id: str | None


class Trial(msgspec.Struct, frozen=True):
    """The result of a trial: what would happen to the message.

    `outcome`: how the attempt would end. `consequence`: what the queue would then do, in words.
    `sends` and `statements` would take effect with it. `output`: what it printed.
    """

    queue: str
    sequence_number: int
    message_id: str
    outcome: str
    consequence: str
    error_type: str | None
    error_message: str | None
    stack: str | None
    sends: list[TrialSend]
    statements: list[tuple[str, Any]]
    output: str


def try_message(broker: Broker, path: str, sequence_number: int, handler: Handler) -> Trial:
    """Run a handler on a dead letter or a queued message, and return what would happen.

    Raises EntityNotFound, MessageNotFound, HandlerError, SandboxSetupError.
    """
    parsed = EntityPath.parse(path)
    message = _find(broker, parsed, sequence_number)
    output: list[bytes] = []
    with Sandbox(SandboxSetup(handler), handler.options.limits(), on_output=output.append) as sandbox:
        (verdict,) = sandbox.run(pack([message], {}))
    ended = ended_of(verdict)
    failure, effects = ended.settlement.failure, ended.effects
    return Trial(
        queue=parsed.queue,
        sequence_number=message.sequence_number,
        message_id=message.message_id,
        outcome=ended.settlement.outcome.value,
        consequence=_consequence(broker, parsed, message, ended.settlement.outcome),
        error_type=failure.type if failure else None,
        error_message=failure.message if failure else None,
        stack=failure.stack if failure else None,
        sends=[
            TrialSend(target, new.message_id, new.body, headers.subject, new.session_id)
            for target, sent in (effects.sends if effects else [])
            for new in sent
            for headers in [decode_headers(new.headers)]
        ],
        statements=effects.statements if effects else [],
        output=b"".join(output).decode("utf-8", "replace"),
    )


def _find(broker: Broker, path: EntityPath, number: int) -> PeekedMessage:
    for subqueue in (Subqueue.DEAD_LETTER, Subqueue.MAIN):
        if path.subqueue in (Subqueue.MAIN, subqueue):
            messages = broker.peek(str(EntityPath(path.queue, subqueue)), 1, number)
            if messages and messages[0].sequence_number == number:
                return messages[0]
    raise MessageNotFound(f"no dead letter and no message {number} in {path.queue!r}")


_FRESH = Counters()
_PLAIN = {
    Outcome.COMPLETED: "It would be completed.",
    Outcome.DEFERRED: "It would be deferred until it is received by its number.",
    Outcome.DEAD_LETTERED: "It would be dead-lettered by its handler's own decision.",
    Outcome.RELEASED: "It would be released.",
}


def _consequence(broker: Broker, path: EntityPath, message: PeekedMessage, outcome: Outcome) -> str:
    """Say what the queue's policy would do if the message were resubmitted unchanged."""
    if outcome in _PLAIN:
        return _PLAIN[outcome]
    policy = broker.queue(path.queue).options.policy
    counters = charge(_FRESH, outcome)
    verdict = decide(policy, counters, outcome)
    if isinstance(verdict, Final):
        return f"It would be final at once: {verdict.disposition.value}, {verdict.reason}."
    tries = policy.total_attempts
    if outcome is Outcome.LOST and policy.max_worker_deaths is not None:
        tries = min(tries, policy.max_worker_deaths)
    return f"It would be tried again, {tries} times in all, and then: {policy.on_poison.value}."
