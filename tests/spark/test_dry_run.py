"""Trying a handler on many dead letters on Spark: the same answers as here, and nothing is changed."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from lazaretto import Broker, DeadLetterFilter, InvalidOption, Message, SandboxSetupError
from lazaretto.host import Handler
from lazaretto.host import dry_run as here
from lazaretto.host.dry_run import DryRun
from lazaretto.spark import dry_run, try_repair

from .acts import act

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning"),
    pytest.mark.stores("sqlite", "postgres"),
]

#: What letters ask the handler to do, and how many of each.
ACTS = {b"raise": 20, b"emit": 30, b"fine": 100, b"exit": 2, b"dead": 5}


@pytest.fixture
def dead(broker: Broker) -> Broker:
    """Letters of two causes."""
    for body, count in ACTS.items():
        broker.sender("work").send([Message(body) for _ in range(count)])
    with broker.receiver("work") as receiver:
        while messages := receiver.receive(500):
            for message in messages:
                error = KeyError("a") if message.body == b"raise" else TimeoutError("slow")
                receiver.dead_letter(message, reason="Failed", error=error)
    return broker


def alike(found: DryRun) -> dict[str, Any]:
    """Return an answer without examples, and without the order of failures of one size."""
    told = dataclasses.asdict(found)
    told["failures"] = {one.fingerprint: (one.error_type, one.count) for one in found.failures}
    return told


def test_it_answers_what_a_dry_run_here_answers(spark: Any, url: str, dead: Broker) -> None:
    handler = Handler("work", act)
    last = dead.last_event()
    found = dry_run(spark, url, "work", DeadLetterFilter(), handler)
    assert (found.letters, found.tried, found.succeeded, found.failed) == (157, 157, 130, 27)
    assert found.sends == {"out": 30}
    assert alike(found) == alike(here.dry_run(dead, "work", DeadLetterFilter(), handler, sample=None))
    assert all(set(one.examples) <= set(range(1, 158)) for one in found.failures)
    some = dry_run(spark, url, "work", DeadLetterFilter(error_type="KeyError"), handler, sample=5)
    assert (some.letters, some.tried, some.failed) == (20, 5, 5)
    # Nothing was settled, sent or written down.
    assert dead.last_event() == last
    assert dead.queue("work").counts.dead_letter == 157
    assert dead.queue("out").counts.active == 0


def test_a_repair_as_its_edit_leaves_its_letters(spark: Any, url: str, dead: Broker) -> None:
    broker = dead
    broker.sender("work").send(Message(b'{"n": 1}'))
    with broker.receiver("work") as receiver:
        receiver.dead_letter(receiver.receive(1), reason="Json")
    broker.plan_repair("work", DeadLetterFilter(), everything=True, name="mend", edit='{"n": 2}')
    found = try_repair(spark, url, "mend", Handler("work", act))
    assert alike(found) == alike(here.try_repair(broker, "mend", Handler("work", act), sample=None))
    assert (found.letters, found.tried, found.edited, len(found.refused)) == (158, 1, 1, 157)


def test_what_is_wrong_is_said(spark: Any, url: str, dead: Broker) -> None:
    for sample in (0, "x"):
        with pytest.raises(InvalidOption):
            dry_run(spark, url, "work", DeadLetterFilter(), Handler("work", act), sample=sample)  # type: ignore[arg-type]
    with pytest.raises(SandboxSetupError):
        dry_run(spark, url, "work", 1, Handler("work", act), edit="zoo:no_such_function")
    assert dry_run(spark, url, "work", 99_999, Handler("work", act)).tried == 0
