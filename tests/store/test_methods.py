"""Methods of a broker that follow from what the changes declare, and names that they had before."""

from __future__ import annotations

import pytest

from lazaretto import Broker, EntityError, InvalidOption, Repair
from lazaretto.commands import FreeSession, ResumeSession
from lazaretto.engine.command import read_command

from .actions import create, send


def test_each_makes_its_change_and_notes_who_asked(broker: Broker) -> None:
    create(broker, requires_session=True)
    send(broker, b"x", session_id="ana")
    held = broker.receiver("q", session="ana")
    assert held.receive(1)
    broker.free_session("q", "ana", actor="eve")
    assert broker.session("q", "ana").locked_until is None
    person = broker.grant_role("bob", "operator", "q*", actor="eve")
    assert broker.people() == [person]
    assert broker.set_four_eyes(5, actor="eve") == broker.four_eyes() == 5
    broker.mark("release 42", actor="eve")
    noted = [(entry.actor, entry.action) for entry in broker.audit(limit=4)]
    assert noted == [
        ("eve", action) for action in ("mark", "access: four eyes", "access: grant", "free_session")
    ]


def test_a_list_is_a_list(broker: Broker) -> None:
    create(broker)
    with pytest.raises(InvalidOption, match="expected numbers to be a list, got '12'"):
        broker.merge_causes("q", "12")  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="expected parts to be lists by number"):
        broker.unmerge_causes("q", 1, [1])  # type: ignore[arg-type]


def test_a_repair_has_those_that_are_about_it(broker: Broker) -> None:
    create(broker)
    first, second = send(broker, b"a", b"b")
    receiver = broker.receiver("q")
    receiver.dead_letter(receiver.receive(2), reason="bad")
    repair: Repair = broker.plan_repair("q", [first, second], name="r")
    repair.exclude([first], actor="eve")
    assert [letter.sequence_number for letter in repair.letters(skipped=True)] == [first]
    assert broker.audit(limit=1)[0].action == "repair: exclude"


def test_former_names_are_taken_with_a_warning(broker: Broker) -> None:
    broker.create_topic("t")
    with pytest.warns(DeprecationWarning, match="name is called subscription now"):
        broker.create_subscription("t", name="s")  # type: ignore[call-arg]
    with pytest.warns(DeprecationWarning, match="name is called subscription now") as warned:
        broker.delete_subscription("t", name="s")  # type: ignore[call-arg]
    assert warned[0].filename == __file__
    assert broker.subscriptions("t") == []
    with pytest.raises(InvalidOption, match="got name too, its former name"):
        broker.delete_subscription("t", subscription="s", name="s")  # type: ignore[call-arg]


def test_former_names_of_fields_are_taken_with_a_warning(broker: Broker) -> None:
    create(broker, requires_session=True)
    with pytest.warns(DeprecationWarning, match="session is called session_id now"):
        command = read_command(ResumeSession, b'{"path": "q", "session": "s", "verdict": "retry"}')
    assert command == ResumeSession(path="q", session_id="s", verdict="retry")
    with pytest.warns(DeprecationWarning, match="session is called session_id now") as warned:
        free = FreeSession(path="q", session="s")  # type: ignore[call-arg]
    assert warned[0].filename == __file__
    with pytest.raises(EntityError, match="is not locked"):
        broker.run(free)
