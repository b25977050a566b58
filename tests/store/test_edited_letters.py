"""Dead letters sent back with an edit that is a value: on both stores, functions in a sandbox."""

from __future__ import annotations

from pathlib import Path

import pytest

from lazaretto import Broker, DeadLetterFilter, Edit, HandlerError, InvalidOption, SandboxSetupError
from lazaretto.broker.editing import as_edit

from .actions import bodies, create, set_aside

MODULE = """
import os

def mend(letter):
    if b"crash" in letter.message.body:
        os._exit(3)
    if b"raise" in letter.message.body:
        raise ValueError("not this one")
    if b"keep" in letter.message.body:
        return None
    from lazaretto import Message
    return Message(letter.message.body + b" mended", properties={"reason": letter.reason})

def wrong(letter):
    return "text"
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    path = tmp_path / "mending_module.py"
    path.write_text(MODULE)
    return path


def put_aside(broker: Broker, *given: bytes) -> None:
    create(broker, receive_retry_count=0)
    set_aside(broker, *given)


def test_an_action_changes_only_what_it_names(broker: Broker) -> None:
    put_aside(broker, b'{"price": 1.10, "to":"x"}', b"no json", b'{"price": 2.0, "to":"eu"}')
    report = broker.resubmit("q", DeadLetterFilter(), edit="SET body.to = 'eu'")
    assert list(report.resubmitted) == [1, 3]
    ((skipped, why),) = [(s.sequence_number, s.why) for s in report.skipped]
    assert (skipped, "not JSON" in why) == (2, True)
    assert bodies(broker.peek("q", 9)) == [b'{"price": 1.10, "to":"eu"}', b'{"price": 2.0, "to":"eu"}']
    assert [m.edit_of is not None for m in broker.peek("q", 9)] == [True, False]
    (entry,) = broker.audit(limit=1)
    assert entry.detail["edit_digest"] == Edit.parse("SET body.to = 'eu'").digest


def test_many_are_edited_in_commits_of_500(broker: Broker) -> None:
    create(broker, receive_retry_count=0)
    set_aside(broker, *[b'{"n": 1.50}'] * 750)
    report = broker.resubmit("q", DeadLetterFilter(), edit='{"n": null, "m": 2.50}')
    assert (len(report.resubmitted), report.skipped) == (750, [])
    assert {m.body for m in broker.peek("q", 1000)} == {b'{"m": 2.50}'}


def test_a_function_runs_in_a_sandbox(broker: Broker, module: Path) -> None:
    put_aside(broker, b"a", b"crash", b"raise", b"keep")
    report = broker.resubmit("q", [1, 2, 3, 4, 99], edit="mending_module:mend")
    assert list(report.resubmitted) == [1, 4]
    told = {s.sequence_number: s.why for s in report.skipped}
    assert told[3] == "the edit failed: ValueError: not this one"
    assert "WorkerCrashed" in told[2]
    assert told[99] == "not found"
    assert bodies(broker.peek("q", 9)) == [b"a mended", b"keep"]


def test_a_function_is_what_it_was_when_it_was_planned(broker: Broker, module: Path) -> None:
    put_aside(broker, b"a")
    edit = as_edit("mending_module:mend")
    module.write_text(MODULE + "\n# another one\n")
    assert as_edit("mending_module:mend").digest != edit.digest
    with pytest.raises(HandlerError, match="has changed"):
        broker.resubmit("q", 1, edit=edit)
    for text in ("nowhere_at_all:mend", "nowhere.at.all:mend"):
        with pytest.raises(HandlerError, match="cannot be imported"):
            broker.resubmit("q", 1, edit=text)
    with pytest.raises(SandboxSetupError):
        broker.resubmit("q", 1, edit="mending_module:nothing")
    assert "expected a Message or None" in broker.resubmit("q", 1, edit="mending_module:wrong").skipped[0].why
    with pytest.raises(InvalidOption):
        broker.resubmit("q", 1, edit=17)  # type: ignore[arg-type]
