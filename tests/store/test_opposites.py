"""Which actions of the audit log can still be taken back."""

from __future__ import annotations

import msgspec

from lazaretto import Broker
from lazaretto import commands as c
from lazaretto.commands.opposites import LATER, opposites

from .actions import create
from .test_commands import stocked

__all__ = ["stocked"]


def _offered(broker: Broker) -> list[str]:
    """Return the actions that are offered to be taken back, the newest first."""
    entries = broker.audit()
    later = broker.audit(since=entries[0].time)
    return [e.action for e, opposite in zip(entries, opposites(entries, later), strict=True) if opposite]


def test_what_was_taken_back_or_overtaken_is_not_offered_again(stocked: Broker) -> None:
    def run(command: c.Command) -> None:
        stocked.run(command, actor="ana")

    (first, second) = [letter.sequence_number for letter in stocked.dead_letters("q")][:2]
    run(c.Purge(path="q", sequence_numbers=(first,)))
    run(c.Purge(path="q", sequence_numbers=(second,)))
    run(c.SetStatus(path="q", status="receive_disabled"))
    run(c.UpdateQueue(path="q", changes={"lock_duration": 70.0}))
    run(c.SetBreaker(path="q", verb="open"))
    run(c.GrantRole(person="vera", role="viewer"))
    run(c.GrantRole(person="vera", role="operator"))
    everything = ["access: grant"] * 2 + ["breaker", "update", "status", "purge", "purge"]
    assert _offered(stocked)[:7] == everything
    run(c.Restore(path="q", sequence_numbers=(first,)))
    assert _offered(stocked)[:7] == ["restore", *everything[:6]]
    run(c.UpdateQueue(path="q", changes={"max_message_size": 2048}))
    run(c.SetStatus(path="q", status="active"))
    run(c.RemovePerson(person="vera"))
    assert _offered(stocked)[:6] == ["status", "update", "restore", "breaker", "update", "purge"]
    run(c.PlanRepair(path="q", everything=True, name="mend"))
    assert _offered(stocked)[0] == "repair: plan"
    run(c.CancelRepair(name="mend"))
    assert "repair: plan" not in _offered(stocked)
    run(c.DeleteQueue(path="q"))
    assert _offered(stocked) == []


def test_what_is_not_known_to_stand_is_not_offered(broker: Broker) -> None:
    create(broker)
    broker.run(c.SetStatus(path="q", status="disabled"), actor="ana")
    (entry,) = broker.audit(limit=1)
    between = [msgspec.structs.replace(entry, position=entry.position + n) for n in range(LATER, 0, -1)]
    assert opposites([entry], between) == [None]
    assert opposites([entry], [entry]) == [c.SetStatus(path="q", status="active")]
