"""What needs two people cannot be done by one: not in parts, nor by another name."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest
from web.conftest import Served

from lazaretto import Broker, DeadLetterFilter, Message, SecondPersonNeeded
from lazaretto.commands import CreateToken, GrantRole, SetFourEyes


def letters(broker: Broker, number: int) -> list[int]:
    """Make dead letters, and return the numbers of all."""
    broker.sender("q").send([Message(b"{}") for _ in range(number)])
    with broker.receiver("q") as receiver:
        for message in receiver.receive(number):
            receiver.dead_letter(message, reason="Broken")
    return [one.sequence_number for one in broker.dead_letters("q")]


def limit(broker: Broker) -> None:
    broker.run(SetFourEyes(letters=5))
    broker.create_queue("other")
    broker.create_topic("news")
    broker.create_subscription("news", "all")


ALONE: dict[str, Callable[[Broker, list[int], str], object]] = {
    "resubmit": lambda broker, some, who: broker.resubmit("q", some, actor=who),
    "purge": lambda broker, some, who: broker.purge("q", some, actor=who),
    "move": lambda broker, some, who: broker.move_dead_letters("q", some, "other", actor=who),
    "republish": lambda broker, some, who: broker.republish("q", some, topic="news", actor=who),
    "delete": lambda broker, some, who: broker.delete_messages("q;poison", len(some), actor=who),
}


def delete_queue(broker: Broker, some: list[int], who: str) -> None:
    """Delete a queue that has as many letters, and one that was purged."""
    broker.create_queue("gone")
    broker.sender("gone").send([Message(b"{}") for _ in some])
    with broker.receiver("gone") as receiver:
        receiver.dead_letter(receiver.receive(len(some)), reason="Broken")
    broker.purge("gone", [one.sequence_number for one in broker.dead_letters("gone")][:1], actor="eve")
    try:
        broker.delete_queue("gone", actor=who)
    finally:
        broker.run(SetFourEyes(letters=None))
        if any(one.path == "gone" for one in broker.queues()):
            broker.delete_queue("gone")
        broker.run(SetFourEyes(letters=5))


def delete_topic(broker: Broker, some: list[int], who: str) -> None:
    """Delete a topic whose two subscriptions have as many letters together."""
    broker.create_topic("old")
    for name in ("one", "two"):
        broker.create_subscription("old", name)
    broker.sender("old").send([Message(b"{}") for _ in some])
    for name, share in (("one", some[:-1]), ("two", some[-1:])):
        with broker.receiver(f"old/subscriptions/{name}") as receiver:
            receiver.dead_letter(receiver.receive(len(share)), reason="Broken")
    try:
        broker.delete_topic("old", actor=who)
    finally:
        broker.run(SetFourEyes(letters=None))
        if any(one.path == "old" for one in broker.topics()):
            broker.delete_topic("old")
        broker.run(SetFourEyes(letters=5))


ALONE |= {"delete the queue": delete_queue, "delete the topic": delete_topic}


def repair(broker: Broker, numbers: list[int], who: str) -> None:
    which = DeadLetterFilter(sequence_numbers=tuple(numbers))
    broker.plan_repair("q", which, actor=who).apply(actor=who)


ALONE["repair"] = repair


@pytest.mark.parametrize("first", ALONE)
def test_the_limit_holds_for_all_that_one_person_does_within_an_hour(broker: Broker, first: str) -> None:
    limit(broker)
    numbers = letters(broker, 12)
    ALONE[first](broker, numbers[:3], "ana")
    for name, act in ALONE.items():
        for spelling in ("ana", "Ana", "ANA", "ａna"):
            with pytest.raises(SecondPersonNeeded):
                act(broker, numbers[6:9], spelling)
        assert name
    # What is left of the hour's letters, and somebody else's.
    ALONE["purge"](broker, numbers[3:5], "ana")
    ALONE["resubmit"](broker, numbers[5:9], "ben")


@pytest.mark.parametrize("spelling", ["ana", "ANA", "Ａna"])
def test_the_same_name_in_another_case_is_no_second_person(broker: Broker, spelling: str) -> None:
    limit(broker)
    letters(broker, 6)
    planned = broker.plan_repair("q", DeadLetterFilter(), everything=True, actor="Ana")
    with pytest.raises(SecondPersonNeeded):
        planned.apply(actor=spelling)
    planned.apply(actor="ben")


def person(broker: Broker, served: Served, name: str) -> httpx.Client:
    broker.run(GrantRole(person=name, role="admin"))
    client = served.client(None)
    client.headers["Authorization"] = f"Bearer {broker.run(CreateToken(person=name))['secret']}"
    return client


@pytest.mark.stores("sqlite")
@pytest.mark.parametrize("more", [None, 6])
def test_over_http_a_second_admin_confirms_that_one_person_may_do_more(
    broker: Broker, served: Served, more: int | None
) -> None:
    limit(broker)
    ana, ben = person(broker, served, "ana"), person(broker, served, "ben")

    def wish(client: httpx.Client, letters: int | None) -> int | None:
        assert client.post("/commands/set_four_eyes", json={"letters": letters}).is_success
        return broker.four_eyes()

    def listed(client: httpx.Client) -> tuple[object, str]:
        told = client.get("/access/four-eyes").json()
        assert told["letters"] == 5
        shown = client.get(f"http://127.0.0.1:{served.port}/access").text
        assert f"{told['asked']['actor']} asks for" in shown
        return told["asked"]["letters"], told["asked"]["actor"]

    assert ben.get("/access/four-eyes").json() == {"letters": 5, "asked": None}
    assert wish(ana, more) == 5
    # The second person need not read the audit log for it.
    assert listed(ben) == (more, "ana")
    # Neither again, nor with a token for another name that she has seen.
    assert wish(ana, more) == 5
    broker.run(GrantRole(person="ci", role="admin"))
    made = ana.post("/commands/create_token", json={"person": "ci"}).json()
    relayed = served.client(None)
    relayed.headers["Authorization"] = f"Bearer {made['secret']}"
    assert wish(relayed, more) == 5
    # A second person must want the same.
    assert wish(ben, 1000) == 5
    assert listed(ana) == (1000, "ben")
    assert wish(ana, more) == 5
    assert wish(ben, more) == more
    assert ben.get("/access/four-eyes").json() == {"letters": more, "asked": None}
    actions = [one.action for one in broker.audit(limit=3)]
    assert actions[0] == "access: four eyes"
    assert actions[1] == "access: four eyes asked"
    # Less is done at once.
    assert wish(ana, 2) == 2


def test_at_the_command_line_it_is_done_at_once_and_audited(broker: Broker) -> None:
    limit(broker)
    broker.run(SetFourEyes(letters=None))
    assert broker.four_eyes() is None
    (entry, _) = broker.audit(action="access: four eyes")
    assert (entry.detail["letters"], entry.detail["before"], entry.kind) == (None, 5, "process")
    ALONE["purge"](broker, letters(broker, 9), "ana")


def test_nobody_is_limited_where_no_second_person_is_asked_for(broker: Broker) -> None:
    ALONE["resubmit"](broker, letters(broker, 9), "ana")
    assert broker.queue("q").counts.active == 9
