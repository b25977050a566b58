"""Suggestions for queues whose clients used up the attempts of messages."""

from __future__ import annotations

import shlex

from lazaretto.broker.broker import Broker
from lazaretto.engine.outcome.dead_letter_operations import DeadLetterFilter
from lazaretto.model.entities import QueueOptions
from lazaretto.model.policy import COUNT_REASON
from lazaretto.store.records.messages import FOR_CLIENTS

#: How many queues with dead letters are looked at.
_MOST = 20


def suggest_for_clients(broker: Broker) -> list[str]:
    """Return sentences that suggest options for clients of AMQP and HTTP, where they would have helped."""
    queues = (
        queue.path
        for queue in broker.status(limit=None).queues
        if any(trouble.kind == "dead_letters" for trouble in queue.troubles)
    )
    return [
        f"clients used up the attempts of dead letters of {path}; an outage and a killed process need not "
        f"cost any: {shlex.join(['lazaretto', 'queue', 'update', path])} {' '.join(flags)}"
        for path, _ in zip(queues, range(_MOST), strict=False)
        if (flags := _flags(broker.queue(path).options)) and _is_by_clients(broker, path)
    ]


def _flags(options: QueueOptions) -> list[str]:
    """Return what turns on those options that are off."""
    breaker = options.breaker is not None and options.breaker.clients
    flags = {"--breaker-clients": breaker, "--blame-clients": options.blame_clients}
    return [flag for flag, on in flags.items() if not on]


def _is_by_clients(broker: Broker, path: str) -> bool:
    """Return whether a client had a dead letter last that was set aside for its deliveries."""
    counted = DeadLetterFilter(reason=COUNT_REASON)
    for letter in broker.dead_letters(path, counted, limit=1, messages=False):
        attempts = broker.dead_letter(path, letter.sequence_number).attempts
        return bool(attempts) and FOR_CLIENTS in (attempts[-1].worker or "")
    return False
