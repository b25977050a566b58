"""What is settled in one call takes statements in proportion to its messages, and a few round trips."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import lazaretto
from lazaretto import Broker, Message, PoisonSession, QueueOptions, Receiver
from lazaretto.store.postgres.pipeline import Pipeline

VERBS: dict[str, Callable[[Receiver, list[Any]], None]] = {
    "release": lambda receiver, messages: receiver.release(messages),
    "defer": lambda receiver, messages: receiver.defer(messages),
    "abandon": lambda receiver, messages: receiver.abandon(messages, error=ValueError("no")),
    "invalid": lambda receiver, messages: receiver.invalid(messages, error="no"),
    "dead_letter": lambda receiver, messages: receiver.dead_letter(messages, reason="no"),
}
#: How many statements each message may take, and how many round trips all of them.
STATEMENTS = {"release": 0.1, "defer": 0.1, "abandon": 2.0, "invalid": 4.0, "dead_letter": 4.0}
ROUND_TRIPS = 12
#: Statements of the commit as a whole, and of a broker's timers meanwhile.
OTHERS = 60


class Costs:
    """Counts statements, and how often a reply is waited for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.statements = self.round_trips = 0
        send, settle, wait_for = Pipeline.send, Pipeline.settle, Pipeline.wait_for

        def counting_send(pipeline: Pipeline, *words: Any) -> Any:
            self.statements += 1
            return send(pipeline, *words)

        def counting_settle(pipeline: Pipeline) -> None:
            self.round_trips += pipeline.is_open
            settle(pipeline)

        def counting_wait_for(pipeline: Pipeline, sent: Any) -> None:
            self.round_trips += sent.result is None
            wait_for(pipeline, sent)

        monkeypatch.setattr(Pipeline, "send", counting_send)
        monkeypatch.setattr(Pipeline, "settle", counting_settle)
        monkeypatch.setattr(Pipeline, "wait_for", counting_wait_for)


def received(broker: Broker, path: str, options: QueueOptions, count: int) -> tuple[Receiver, list[Any]]:
    """Return a receiver that holds many messages of one session, or of none."""
    broker.create_queue(path, options)
    session = "s" if options.requires_session else None
    broker.sender(path).send([Message(b"%d" % n, session_id=session) for n in range(count)])
    receiver = broker.receiver(path, session=session)
    messages = receiver.receive(count)
    assert len(messages) == count
    return receiver, messages


@pytest.mark.parametrize("kind", ["plain", "session", "whole"])
@pytest.mark.parametrize("verb", VERBS)
def test_statements_and_round_trips(url: str, verb: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 300
    mode = PoisonSession.WHOLE if kind == "whole" else PoisonSession.SKIP
    options = QueueOptions(requires_session=kind != "plain", on_poison_session=mode)
    with lazaretto.connect(url) as broker:
        receiver, messages = received(broker, "work", options, count)
        costs = Costs(monkeypatch)
        VERBS[verb](receiver, messages)
        assert costs.statements <= count * STATEMENTS[verb] + OTHERS
        assert costs.round_trips <= ROUND_TRIPS + OTHERS
        monkeypatch.undo()
        counts = broker.queue("work").counts
        gone = verb in ("invalid", "dead_letter")
        assert (counts.dead_letter, counts.deferred) == (count * gone, count * (verb == "defer"))
        assert counts.total == count
        first = broker.attempts("work" + "/$deadletterqueue" * gone, messages[0].sequence_number)
        assert len(first) == 1
        assert broker.check() == []
