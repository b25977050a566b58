"""Redacted values are not recovered by those who may not read them: by fingerprints, sizes, moves, causes."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal

import httpx
import pytest
from web.conftest import Served

from lazaretto import Broker, Message, PoisonPolicy, QueueOptions
from lazaretto import commands as c
from lazaretto.broker.broker import store_of
from lazaretto.engine.outcome.dead_letter_operations import DeadLetterFilter
from lazaretto.model.failure import Failure
from lazaretto.model.fingerprint import fingerprint_of, plain_fingerprint

ONCE = PoisonPolicy(receive_retry_count=0, max_retry_cycles=0)
#: A short list of what the field can be, and a value with a number in it, which a shape has as a hole.
GUESSES = ("Alcyone", "Aldebaran", "Algol")
STREET = "Brunnenstrasse 7 Hinterhof"


def fail(broker: Broker, path: str, body: object, text: str) -> int:
    (number,) = broker.sender(path).send([Message(json.dumps(body).encode())])
    with broker.receiver(path) as receiver:
        (message,) = receiver.receive(max_wait=5)
        receiver.abandon(message, error=ValueError(text))
    return number


@pytest.fixture
def stocked(broker: Broker) -> Broker:
    broker.update_queue("q", policy=ONCE)
    broker.create_queue("open", QueueOptions(policy=ONCE))
    broker.run(c.SetRedaction(queue="q", field="body.name", form="mask"))
    fail(broker, "q", {"name": "Aldebaran"}, "no star Aldebaran here")
    return broker


def run(client: httpx.Client, command: str, **given: Any) -> httpx.Response:
    return client.post(f"/commands/{command}", json=given)


def test_a_fingerprint_tells_no_text(stocked: Broker, served: Served) -> None:
    """Whoever guesses the text of an error cannot find out whether it is that."""
    operator, admin = served.client("operator"), served.client("admin")
    (letter,) = stocked.dead_letters("q")
    site = letter.attempts[0].site if letter.attempts else stocked.dead_letter("q", 1).attempts[0].site
    guessed: dict[str, str] = {}
    for guess in GUESSES:
        failure = Failure("ValueError", f"no star {guess} here", None, site)
        for reason in ("MaxDeliveryCountExceeded", None):
            number = fingerprint_of(reason, None, failure).number
            unkeyed = hashlib.blake2b(number.to_bytes(8, signed=True), digest_size=8).hexdigest()
            guessed |= {plain_fingerprint(number): guess, unkeyed: guess}
    stored = store_of(stocked).read(lambda tx: tx.history.dead_letter(1 | _first(tx)))
    assert stored is not None and plain_fingerprint(stored.fingerprint or 0) in guessed
    run(admin, "plan_repair", path="q", name="r", everything=True)
    answers = [
        client.get(path, params={} if path.startswith("/repairs") else {"queue": "q"})
        for client in (operator, admin)
        for path in ("/dead-letters", "/dead-letters/1", "/dead-letters/export", "/causes", "/causes/1",
                     "/repairs", "/repairs/r", "/messages/1")
    ]  # fmt: skip
    for answer in answers:
        assert answer.status_code == 200, answer.url
        assert not any(name in answer.text for name in guessed), answer.url
    shown = operator.get("/causes/1", params={"queue": "q"}).json()["fingerprints"][0]["fingerprint"]
    assert shown == letter.fingerprint == next(iter(stocked.repair("r").status().fingerprints))


def _first(tx: Any) -> int:
    return int(tx.queues.by_path("q").queue_id) << 44


def test_fingerprints_of_the_audit_log_take_a_merge_back(stocked: Broker, served: Served) -> None:
    fail(stocked, "q", {"name": "x"}, "another fault")
    admin = served.client("admin")
    before = {one["number"]: one["fingerprints"] for one in admin.get("/causes?queue=q").json()["causes"]}
    assert run(admin, "merge_causes", path="q", numbers=sorted(before)).status_code == 200
    entry = stocked.audit(action="merge_causes")[0]
    parts = entry.detail["fingerprints"]
    assert [one["fingerprint"] for one in before[2]] == next(iter(parts.values()))
    assert run(admin, "unmerge_causes", path="q", number=1, parts=parts).status_code == 200
    assert len(admin.get("/causes?queue=q").json()["causes"]) == 2


def test_a_shape_has_no_part_of_a_value(stocked: Broker, served: Served) -> None:
    """A number in it is a hole there, so the value does not stand in it as it is."""
    fail(stocked, "q", {"name": STREET}, f"nobody lives at {STREET}, says the post")
    told = served.client("operator").get("/causes", params={"queue": "q", "over": "true"}).text
    assert "nobody lives at" in told
    assert "Brunnenstrasse" not in told and "Hinterhof" not in told


@pytest.mark.parametrize(
    "filter_", ["sys.size > 20", "NOT (SYS.Size = 17)", "sys.label = 'x' OR size(1) > 2"]
)
def test_a_repair_tells_no_size(stocked: Broker, served: Served, filter_: str) -> None:
    answer = run(served.client("operator"), "plan_repair", path="q", name="s", filter={"where": filter_})
    assert answer.status_code in (400, 403, 422), answer.text
    edited = run(served.client("operator"), "plan_repair", path="q", name="s", edit="SET user.n = sys.size",
                 everything=True)  # fmt: skip
    assert edited.status_code == 403
    assert run(
        served.client("admin"), "plan_repair", path="q", name="s", filter={"where": "sys.size > 1"}
    ).is_success


class TestMoves:
    """Nobody moves letters to where more of them may be read, however they get there."""

    @pytest.fixture
    def ways(self, stocked: Broker) -> Broker:
        """Places that lead to `open`, in one step or several, and `safe`, which does not."""
        stocked.run(c.SetRedaction(queue="via*", field="body.name", form="mask"))
        stocked.run(c.SetRedaction(queue="hashed", field="body.name", form="hash"))
        stocked.run(c.SetRedaction(queue="safe", field="body.name", form="drop"))
        for path, options in {
            "safe": QueueOptions(policy=ONCE),
            "hashed": QueueOptions(policy=ONCE),
            "via1": QueueOptions(forward_to="open"),
            "via2": QueueOptions(forward_to="via1"),
            "via3": QueueOptions(forward_dead_lettered_messages_to="open"),
        }.items():
            stocked.create_queue(path, options)
        stocked.create_topic("via-topic")
        stocked.create_subscription("via-topic", "all", QueueOptions(forward_to="via2"))
        return stocked

    @pytest.mark.parametrize("to", ["open", "hashed", "via1", "via2", "via3", "via-topic"])
    def test_to_where_more_may_be_read(self, ways: Broker, served: Served, to: str) -> None:
        operator = served.client("operator")
        asked: list[tuple[str, dict[str, Any]]]
        if to == "via-topic":
            asked = [("republish", {"sequence_numbers": [1], "topic": to})]
        else:
            asked = [
                ("move_dead_letters", {"sequence_numbers": [1], "to": to}),
                ("plan_repair", {"everything": True, "to": to}),
            ]
        for command, given in asked:
            refused = run(operator, command, path="q", **given)
            assert (refused.status_code, refused.json()["code"]) == (403, "not_permitted"), refused.text
            assert to == "open" or "'open'" not in refused.text
        assert run(served.client("admin"), asked[0][0], path="q", **asked[0][1]).is_success

    def test_to_a_place_with_the_same_rules(self, ways: Broker, served: Served) -> None:
        moved = run(served.client("operator"), "move_dead_letters", path="q", sequence_numbers=[1], to="safe")
        assert moved.is_success, moved.text

    def test_back_to_a_queue_that_forwards_by_now(self, ways: Broker, served: Served) -> None:
        """Resubmitted, or sent by a repair that was planned before."""
        operator = served.client("operator")
        assert run(operator, "plan_repair", path="q", name="r", everything=True).is_success
        ways.update_queue("q", forward_to="via2")
        resubmitted = run(operator, "resubmit", path="q", sequence_numbers=[1])
        assert resubmitted.status_code == 403, resubmitted.text
        for verb in ("canary_repair", "apply_repair"):
            assert run(operator, verb, name="r").status_code == 403
        assert ways.dead_letters("q", DeadLetterFilter(sequence_numbers=(1,)))

    @pytest.mark.parametrize("verdict", ["reject", "move"])
    def test_by_a_verdict_on_what_halted_a_queue(self, ways: Broker, served: Served, verdict: str) -> None:
        halting = PoisonPolicy(receive_retry_count=0, max_retry_cycles=0, on_poison="fault")
        ways.create_queue(
            "halts",
            QueueOptions(
                policy=halting, forward_dead_lettered_messages_to="open" if verdict == "move" else None
            ),
        )
        ways.run(c.SetRedaction(queue="halts", field="body.name", form="mask"))
        ways.sender("halts").send(Message(b'{"name": "Quax"}', dead_letter_queue="open"))
        with ways.receiver("halts") as receiver:
            (message,) = receiver.receive()
            receiver.abandon(message)
        assert ways.queue("halts").halted_by is not None
        operator = served.client("operator")
        refused = run(operator, "resume_queue", path="halts", verdict=verdict)
        assert (refused.status_code, refused.json()["code"]) == (403, "not_permitted"), refused.text
        assert ways.peek("open") == [] and ways.queue("halts").halted_by is not None
        assert run(operator, "resume_queue", path="halts", verdict="retry").is_success

    def test_by_a_verdict_on_a_held_session(self, ways: Broker, served: Served) -> None:
        """Rejected to its sender's queue, or sent back to a queue that forwards by now."""
        modes: dict[str, Literal["block", "park"]] = {"blocks": "block", "parks": "park"}
        for path, mode in modes.items():
            ways.create_queue(path, QueueOptions(policy=ONCE, requires_session=True, on_poison_session=mode))
            ways.run(c.SetRedaction(queue=path, field="body.name", form="mask"))
            body = b'{"name": "Quax"}'
            ways.sender(path).send(Message(body, session_id="s", dead_letter_queue="open"))
            with ways.receiver(path, session="s") as receiver:
                (message,) = receiver.receive()
                receiver.abandon(message)
        ways.update_queue("parks", forward_to="via2")
        operator = served.client("operator")
        for path, verdict in (("blocks", "reject"), ("parks", "retry")):
            refused = run(operator, "resume_session", path=path, session_id="s", verdict=verdict)
            assert (refused.status_code, refused.json()["code"]) == (403, "not_permitted"), refused.text
        assert run(operator, "resume_session", path="blocks", session_id="s", verdict="move").is_success
        assert run(operator, "resume_session", path="parks", session_id="s", verdict="skip").is_success
        assert ways.peek("open") == []

    @pytest.mark.stores("sqlite")
    def test_to_where_its_mover_receives(self, ways: Broker, served: Served) -> None:
        """Receivers read everything."""
        for role, queue in (("operator", "*"), ("client", "safe")):
            ways.run(c.GrantRole(person="eve", role=role, queue=queue))
        token = ways.run(c.CreateToken(person="eve", label="t"))["secret"]
        eve = served.client(None)
        eve.headers["Authorization"] = f"Bearer {token}"
        assert run(eve, "move_dead_letters", path="q", sequence_numbers=[1], to="safe").status_code == 403
