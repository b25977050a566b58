"""Repairs whose edit is a function: called in a sandbox, its source frozen with the set."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from lazaretto import (
    Broker,
    DeadLetterFilter,
    HandlerError,
    Repair,
    RepairCounts,
    RepairPhase,
    SandboxSetupError,
)
from lazaretto.broker import editing
from lazaretto.broker.broker import store_of
from lazaretto.broker.editing import Editor
from lazaretto.engine.repairs.course import find_repair
from lazaretto.engine.repairs.runner import Ahead
from lazaretto.model.edits.edit import Edit

from .actions import bodies, create, set_aside
from .test_repairs import picture

MODULE = """
import os, sys, time
from lazaretto import Message

def mend(letter):
    body = letter.message.body
    if b"crash" in body:
        os._exit(3)
    if b"raise" in body:
        raise ValueError("not this one")
    if b"leave" in body:
        sys.exit(4)
    if b"hang" in body:
        time.sleep(3600)
    if b"text" in body:
        return "text"
    if b"huge" in body:
        return Message(b"x" * 3_000_000)
    if b"keep" in body:
        return None
    return Message(body + b" mended", session_id=letter.message.session_id)
"""
BODIES = (b"a", b"crash", b"raise", b"b", b"leave", b"text", b"keep", b"huge", b"hang", b"c")


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(editing, "LONGEST_CALL", 3.0)
    path = tmp_path / "mending_repairs.py"
    path.write_text(MODULE)
    return path


def plan(broker: Broker, *given: bytes, **options: Any) -> Repair:
    create(broker, receive_retry_count=0)
    set_aside(broker, *given)
    options = {"canary": 0, "in_flight": None, **options}
    return broker.plan_repair(
        "q", DeadLetterFilter(), everything=True, edit="mending_repairs:mend", **options
    )


def test_what_it_cannot_do_is_skipped_with_the_reason(broker: Broker, module: Path) -> None:
    repair = plan(broker, *BODIES)
    before = picture(broker)
    found = repair.preview()
    assert (found.looked_at, found.changed, found.unchanged) == (10, 3, 1)
    assert [example.sequence_number for example in found.examples] == [1, 4, 10]
    assert "mended" in "".join(found.examples[0].difference)
    assert picture(broker) == before
    repair.apply()
    assert repair.run().phase is RepairPhase.DONE
    assert repair.status().counts == RepairCounts(left=0, waiting=4, skipped=6)
    whys = {letter.sequence_number: letter.why or "" for letter in repair.letters(skipped=True)}
    assert [(number, next(w for w in words if w in whys[number])) for number, words in {
        2: ["WorkerCrashed"], 3: ["ValueError: not this one"], 5: ["SystemExit", "WorkerCrashed"],
        6: ["expected a Message or None"], 8: ["larger than", "at most", "too large"], 9: ["HandlerTimeout"],
    }.items()]  # fmt: skip
    assert bodies(broker.peek("q", 9)) == [b"a mended", b"b mended", b"keep", b"c mended"]
    repair.undo()
    assert repair.run().phase is RepairPhase.UNDONE
    assert picture(broker) == before


def test_a_canary_of_edited_ones(broker: Broker, module: Path) -> None:
    repair = plan(broker, *BODIES[:8], canary=8)
    repair.canary()
    repair.run(until=lambda: repair.progress()[0] == 8)
    receiver = broker.receiver("q")
    receiver.complete(receiver.receive(10))
    assert repair.run().phase is RepairPhase.PASSED
    assert repair.status().counts == RepairCounts(left=0, processed=3, skipped=5)


def test_a_changed_source_is_refused(broker: Broker, module: Path) -> None:
    repair = plan(broker, b"a", b"b")
    digest = repair.status().digest
    module.write_text(MODULE.replace("mended", "spoilt"))
    for verb in (repair.apply, repair.preview):
        with pytest.raises(HandlerError, match="has changed"):
            verb()
    assert repair.status().phase is RepairPhase.PLANNED
    module.write_text(MODULE)
    repair.apply()
    module.write_text(MODULE.replace("mended", "spoilt"))
    # Whoever runs it finds out, too.
    assert repair.run().phase is RepairPhase.STOPPED
    assert "has changed" in str(repair.status().why)
    assert broker.peek("q") == []
    with pytest.raises(HandlerError, match="has changed"):
        repair.resume()
    again = broker.plan_repair(
        "q", DeadLetterFilter(), everything=True, edit="mending_repairs:mend", canary=0
    )
    assert again.status().digest != digest
    module.write_text(MODULE)
    repair.resume()
    assert repair.run().phase is RepairPhase.DONE


def test_a_function_that_is_not_there(broker: Broker, module: Path) -> None:
    create(broker, receive_retry_count=0)
    for edit, error in (
        ("mending_repairs:nothing", SandboxSetupError),
        ("mending_nowhere:mend", HandlerError),
    ):
        with pytest.raises(error):
            broker.plan_repair("q", DeadLetterFilter(), everything=True, edit=edit)
    assert broker.repairs() == []


def test_the_module_is_gone_where_it_runs(broker: Broker, module: Path) -> None:
    repair = plan(broker, b"a")
    module.unlink()
    # Another process may have it.
    repair.apply()
    assert repair.run().phase is RepairPhase.STOPPED
    assert "mending_repairs" in str(repair.status().why)


def test_a_hanging_function_holds_up_nobody(
    broker: Broker, module: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(editing, "LONGEST_CALL", 60.0)
    repair = plan(broker, b"hang", b"a")
    repair.apply()
    store = store_of(broker)
    record = store.read(lambda tx: find_repair(tx, repair.name))
    edit = Edit.parse("mending_repairs:mend")
    ahead = Ahead(store, edit, Editor)
    try:
        assert list(itertools.chain.from_iterable(ahead.take(record, 10, 0.1) for _ in range(3))) == []
    finally:
        ahead.close()
    asked = 0

    def enough() -> bool:
        nonlocal asked
        asked += 1
        return asked > 5

    assert repair.run(until=enough).phase is RepairPhase.APPLYING
    repair.pause()
    assert repair.status().phase is RepairPhase.PAUSED
    assert broker.peek("q") == []
