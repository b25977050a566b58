"""Redacted fields over HTTP: in no answer of any route or page for whoever may not read them."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import re
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from lazaretto import Broker, DeadLetterFilter, Message, PoisonPolicy, QueueOptions
from lazaretto import commands as c
from lazaretto.aio import AsyncBroker
from lazaretto.broker.broker import store_of
from lazaretto.broker.claims import ClaimConsumer
from lazaretto.engine.outcome.breakers import OpenBreaker
from lazaretto.engine.outcome.causes import Cause
from lazaretto.model.edits.edit import Edit
from lazaretto.model.edits.redact import MASK, Redaction
from lazaretto.model.entities import EntityPath
from lazaretto.model.messages import DeadLetter
from lazaretto.model.redaction import checked_rule
from lazaretto.model.shape import HOLE
from lazaretto.web import api as modules
from lazaretto.web import readings, redacted
from lazaretto.web.console.site import SCREENS
from lazaretto.web.page_options import TriedLetter
from lazaretto.web.redacted import shown_cause, shown_repair
from lazaretto.web.routes import ROUTES
from lazaretto.web.viewed import PLAIN, STANDING, ViewedBroker

from .conftest import Served, beside_the_loop

SECRET = "4111-1111-1111-1111"
TOKEN = "t0ken-of-a-customer"
#: One that is not taken for a number or an id where errors are compared.
NAME = "Aldebaran"
#: What nobody may find.
TRACES = (SECRET, TOKEN, NAME)
EDIT = f"SET body.card = '{SECRET}-2'"
ONCE = PoisonPolicy(receive_retry_count=0, max_retry_cycles=0)
HALTING = PoisonPolicy(receive_retry_count=0, max_retry_cycles=0, on_poison="fault")

Q = {"queue": "q"}
#: What is asked of each route that reads, as often as it tells another thing; and whether it tells whoever
#: may read everything one of the traces. A route that is not here makes a test fail.
READING: dict[str, list[tuple[dict[str, str], dict[str, Any], bool]]] = {
    "peek": [({}, {**Q, "limit": 100}, True), ({}, {**Q, "subqueue": "dead_letter"}, True),
             ({}, {"queue": "tried"}, True)],
    "show_message": [({"number": n}, Q, True) for n in ("1", "GONE", "WAITS")],
    "list_causes": [({}, {**Q, "over": "true", "explain": 5}, True), ({}, Q, True)],
    "show_cause": [({"number": "1"}, Q, True), ({"number": "2"}, Q, True), ({"number": "3"}, Q, True)],
    "list_dead_letters": [({}, Q, True), ({}, {**Q, "order": "time"}, True), ({}, {**Q, "cause": 1}, True)],
    "export_dead_letters": [
        ({}, Q, True), ({}, {**Q, "format": "csv"}, True), ({}, {**Q, "messages": "false"}, True),
    ],
    "show_dead_letter": [({"number": n}, Q, True) for n in ("1", "3", "GONE")],
    "download_body": [({"number": n}, Q, True) for n in ("1", "3")],
    "list_conversations": [({}, {}, True)],
    "show_dialog": [({"dialog": "DIALOG"}, {}, True)],
    "show_timeline": [({"dialog": "DIALOG"}, {}, True)],
    "show_definitions": [({}, {}, False)],
    "list_queues": [({}, {}, True)],
    "show_queue": [({"path": "halts"}, {}, True)],
    "list_topics": [({}, {}, False)],
    "show_topic": [({"path": "news"}, {}, False)],
    "list_subscriptions": [({}, {"topic": "news"}, False)],
    "show_subscription": [({"name": "all"}, {"topic": "news"}, False)],
    "list_events": [({}, {"limit": 1000}, True)],
    # A test of its own asks for it.
    "stream_events": [],
    "show_metrics": [({}, {}, False)],
    # Only administrators may ask.
    "list_people": [], "list_tokens": [], "list_browser_sessions": [],
    "show_four_eyes": [({}, {}, False)],
    "list_redaction": [({}, {}, False)],
    "list_repairs": [({}, {}, True)],
    "show_repair": [({"name": "named"}, {}, True), ({"name": "searched"}, {}, True),
                    ({"name": "stopped"}, {}, True)],
    "preview_repair": [({"name": "stopped"}, {}, True),
                       ({"name": "named"}, {}, True), ({"name": "refused"}, {}, True)],
    "list_repaired": [({"name": "sent"}, {}, True)],
    "overview": [({}, {}, True)],
    "list_rates": [({}, Q, False)],
    "list_workers": [({}, {}, False)],
    "list_sessions": [({}, Q, False)],
    "show_session": [({}, {"queue": "held", "session": "s"}, True)],
    "list_held_sessions": [({}, {"queue": "held"}, True)],
    "list_claims": [({}, Q, False)],
    "show_breaker": [({}, {"queue": "broken"}, True)],
    "list_audit": [({}, {"limit": 1000}, True)],
    "export_audit": [({}, {}, True), ({}, {"format": "csv"}, True)],
}  # fmt: skip
#: The same for the pages of the console.
PAGES: dict[str, list[tuple[str, bool]]] = {
    "/": [("/", True)],
    "/failures": [("/failures", True), ("/failures?queue=q", True), ("/failures?queue=q&over=1", True)],
    "/failures/{number:int}": [(f"/failures/{n}?queue=q", True) for n in (1, 2, 3)],
    "/dead-letters/{number:int}": [
        *((f"/dead-letters/{n}?queue=q", True) for n in ("1", "3", "GONE")),
        ("/dead-letters/1?queue=q&as=raw", True),
        ("/dead-letters/1?queue=q&as=hex", True),
    ],
    "/dead-letters/{number:int}/edit": [
        ("/dead-letters/1/edit?queue=q", True),
        ("/dead-letters/1/edit?queue=q&edit=SET+body.copy+%3D+body.card", True),
        ("/dead-letters/1/edit?queue=q&edit=%7B%22n%22%3A5%7D", True),
    ],
    "/repairs": [("/repairs", False)],
    "/repairs/{name}": [("/repairs/named", True), ("/repairs/refused", True), ("/repairs/searched", True),
                        ("/repairs/stopped", True)],
    "/queues": [("/queues", False)],
    "/queue": [("/queue?queue=q", True), ("/queue?queue=halts", True), ("/queue?queue=held", True),
               ("/queue?queue=broken", True), ("/queue?queue=q&state=active", True)],
    "/do/{command}": [("/do/update_queue?path=q", False), ("/do/send_message?path=q", False)],
    "/sessions": [("/sessions?queue=held", True)],
    "/set-aside": [("/set-aside?queue=q", True)],
    "/messages/{number:int}": [("/messages/1?queue=q", True), ("/messages/WAITS?queue=q", True)],
    "/rules": [("/rules?topic=news&subscription=all", False)],
    "/pipeline": [("/pipeline?queue=loads&consumer=loader", False)],
    "/claims": [("/claims?queue=q", False)],
    "/dialogs": [("/dialogs", False)],
    "/dialogs/{dialog}": [("/dialogs/DIALOG", True)],
    "/access": [("/access", False)],
    "/activity": [("/activity", True), ("/activity?lens=events", True), ("/activity?repair=named", False)],
    "/topics": [("/topics", False)],
    "/workers": [("/workers", True)],
    "/search": [("/search?q=error&queue=q", True), ("/search?q=1&queue=q", True),
                ("/search?q=error:TypeError&queue=q", True)],
    "/keys": [("/keys", False)],
    "/docs": [("/docs", False)],
    "/problems/{code}": [("/problems/message_lock_lost", False)],
}  # fmt: skip


def body(n: int = 0, **more: Any) -> bytes:
    return json.dumps({"n": n, "card": SECRET, "name": NAME, "to": "X", **more}).encode()


def send(broker: Broker, path: str, *bodies: bytes, **fields: Any) -> list[int]:
    numbers = broker.sender(path).send([Message(b, properties={"token": TOKEN}, **fields) for b in bodies])
    assert isinstance(numbers, list)
    return numbers


def fail(broker: Broker, path: str, error: Exception, description: str | None = None, **how: Any) -> None:
    receiver = broker.receiver(path, **how)
    for message in receiver.receive(100):
        if description is None:
            receiver.abandon(message, error=error)
        else:
            receiver.dead_letter(message, reason=f"bad {SECRET}", description=description, error=error)
    receiver.close()


@pytest.fixture
def stocked(broker: Broker) -> dict[str, str]:
    """A store with secrets in all places that are shown. Returns the numbers of some messages."""
    broker.update_queue("q", policy=ONCE, breaker=None)
    send(broker, "q", body(1), body(2))
    fail(broker, "q", KeyError(f"no customer {NAME} for {SECRET}"), f"card {SECRET} of {TOKEN}")
    send(broker, "q", body(3))
    fail(broker, "q", ValueError(f"error near {SECRET!r} of {NAME}"), "cut off")
    send(broker, "q", f"card={SECRET};error".encode())
    fail(broker, "q", TypeError(f"unreadable: {NAME} {SECRET}"))
    (gone,) = send(broker, "q", body(9))
    fail(broker, "q", KeyError(f"no customer {NAME} for {SECRET}"))
    broker.purge("q", [gone])
    (waits,) = send(broker, "q", body(7))
    broker.create_queue("tried")
    send(broker, "tried", body(1))
    receiver = broker.receiver("tried")
    receiver.abandon(receiver.receive(), error=ValueError(f"refused {SECRET}"), delay=600)
    broker.create_queue(
        "halts",
        QueueOptions(
            policy=PoisonPolicy(receive_retry_count=0, max_retry_cycles=0, on_poison="fault"), breaker=None
        ),
    )
    send(broker, "halts", body(1))
    with pytest.raises(Exception, match=r"halt|poison"):
        fail(broker, "halts", ValueError(f"halted by {SECRET}"))
        broker.receiver("halts").receive()
    broker.create_queue(
        "held", QueueOptions(requires_session=True, on_poison_session="block", policy=ONCE, breaker=None)
    )
    send(broker, "held", body(1), body(2), session_id="s")
    fail(broker, "held", ValueError(f"held by {SECRET}"), session="s")
    broker.create_queue("broken")
    outage = OpenBreaker(EntityPath("broken"), "0123456789abcdef", f"refused: {NAME}", {})
    send(broker, "broken", body(1))
    broker.update_queue("broken", policy=ONCE)
    fail(broker, "broken", ValueError("x"))
    store_of(broker).run(outage)
    broker.plan_repair("broken", [1], name="stopped", canary=0).apply()
    broker.run_repairs(until=lambda: broker.repair("stopped").status().why is not None)
    broker.create_queue("loads")
    send(broker, "loads", body(1))
    loader = ClaimConsumer(store_of(broker), "loads", "loader")
    loader.attach()
    loader.take(0)
    broker.create_topic("news")
    broker.create_subscription("news", "all")
    send(broker, "news", body(1))
    broker.plan_repair("q", [1, 2], name="named", edit=EDIT, canary=0)
    broker.plan_repair("q", DeadLetterFilter(where=f"body.card = '{SECRET}'"), name="searched", canary=0)
    patch = '[{"op": "test", "path": "/card", "value": "x"}, {"op": "remove", "path": "/n"}]'
    broker.plan_repair("q", [1, 2], name="refused", edit=patch, canary=0)
    broker.plan_repair("q", [1, 2], name="sent", edit=patch, canary=0).apply()
    broker.run_repairs(until=lambda: broker.repair("sent").status().ended is not None)
    for side in "front", "back":
        broker.dialogs.create_service(side, side, ["DEFAULT"], failures=1)
    with broker.dialogs.transaction() as transaction:
        transaction.send(transaction.begin_dialog("front", "back"), body=body(1))
    with contextlib.suppress(KeyError), broker.dialogs.transaction("back") as transaction:
        transaction.receive(max_messages=1)
        raise KeyError(f"no customer {NAME}")
    (dialog,) = {one.dialog for one in broker.dialogs.conversations()}
    broker.triage("q")
    for field in ("body.card", "body.name", "user.token"):
        broker.run(c.SetRedaction(field=field))
    broker.run(c.SetRedaction(field="body", queue="elsewhere"))
    return {"GONE": str(gone), "WAITS": str(waits), "DIALOG": dialog}


def test_every_route_and_page_is_tried() -> None:
    assert modules.MODULES
    assert {one.name for one in ROUTES if one.method == "GET"} == set(READING)
    assert set(SCREENS) == set(PAGES)
    # What changes things answers with how they stand, as GET does, or hands messages to a receiver.
    posts = [one for one in ROUTES if one.method == "POST" and not one.path.startswith("/commands")]
    assert {one.name for one in posts if one.answer is not type(None)} == {
        "send", "receive", "receive_deferred", "renew", "try_rules",
    }  # fmt: skip


def test_what_routes_may_ask_of_the_broker_is_listed() -> None:
    """A method of the broker that is not listed cannot be called by a route for somebody."""
    for file in Path(readings.__file__).parent.rglob("*.py"):
        asks = re.findall(r"\bbroker = (?:call|visit)\.broker\n", file.read_text())
        names = r"(?<!self\._)\bbroker\.(\w+)\(" if asks else r"\b(?:call|visit)\.broker\.(\w+)"
        for name in re.findall(names, file.read_text()):
            assert name in PLAIN | STANDING or name in vars(ViewedBroker) or name == "dialogs", (file, name)
    assert PLAIN.isdisjoint(STANDING)
    for name in PLAIN | STANDING:
        assert hasattr(AsyncBroker, name), name
    hidden = ViewedBroker.__new__(ViewedBroker)
    for name in ("attempts", "dead_letter_groups", "facts", "transaction", "resubmit"):
        assert hasattr(AsyncBroker, name)
        with pytest.raises(AttributeError):
            getattr(hidden, name)


def asked(numbers: dict[str, str]) -> Iterator[tuple[str, dict[str, Any], bool, str]]:
    paths = {one.name: one.path for one in ROUTES}
    for name, each in READING.items():
        for given, query, tells in each:
            path = paths[name]
            for part, value in given.items():
                path = re.sub(rf"{{{part}(:path)?}}", numbers.get(value, value), path)
            yield path, query, tells, name


class TestRoutes:
    def test_no_trace_in_any_answer(self, stocked: dict[str, str], served: Served, broker: Broker) -> None:
        """The same requests tell whoever may read everything, so that each could have told others."""
        admin, operator = served.client("admin"), served.client("operator")
        wrong = []
        for path, query, tells, name in asked(stocked):
            whole, seen = admin.get(path, params=query), operator.get(path, params=query)
            assert whole.status_code == seen.status_code == 200, (name, query, whole.text, seen.text)
            if any(trace in whole.text for trace in TRACES) is not tells:
                wrong.append((name, query, "for all", whole.text))
            if any(trace in seen.text for trace in TRACES):
                wrong.append((name, query, "for some", seen.text))
        assert not wrong, "\n".join(str(one)[:1500] for one in wrong)

    def test_no_trace_on_any_page(self, stocked: dict[str, str], served: Served) -> None:
        wrong = []
        for page, tells in (one for each in PAGES.values() for one in each):
            for number, value in stocked.items():
                page = page.replace(number, value)
            whole, seen = (
                _pages(served, name).get(page, follow_redirects=True) for name in ("admin", "operator")
            )
            assert whole.status_code == seen.status_code == 200, (page, whole.text, seen.text)
            if any(trace in whole.text for trace in TRACES) is not tells:
                wrong.append((page, "for all", _main(whole.text)))
            if any(trace in seen.text for trace in TRACES):
                wrong.append((page, "for some", _main(seen.text)))
        assert not wrong, "\n".join(str(one)[:1500] for one in wrong)

    def test_a_rule_holds_for_streams_that_are_open(
        self, broker: Broker, served: Served, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(readings, "_FRESH", 0.0)
        broker.create_queue("broken")
        broker.create_queue("other")

        def told(lines: Iterator[str], queue: str) -> str:
            outage = OpenBreaker(EntityPath(queue), "0123456789abcdef", f"refused: {NAME}", {})
            store_of(broker).run(outage)
            return next(one for one in lines if (one.startswith("data:") and "refused" in one) or MASK in one)

        with served.client("operator").stream(
            "GET", "/events/stream", params={"kind": "breaker_opened"}
        ) as answer:
            lines = answer.iter_lines()
            next(lines)
            assert NAME in told(lines, "broken")
            broker.run(c.SetRedaction(field="body.card"))
            assert NAME not in told(lines, "other")

    def test_a_stream_of_events(self, stocked: dict[str, str], served: Served) -> None:
        found = []
        with served.client("operator").stream("GET", "/events/stream", params={"after": 0}) as answer:
            for line in answer.iter_lines():
                found.append(line)
                if "breaker_opened" in line and line.startswith("data:"):
                    break
        assert "error" in found[-1]
        assert NAME not in "".join(found)


@pytest.mark.stores("sqlite")
class TestCauses:
    """Their texts are those of several letters."""

    def test_what_other_letters_hold(self, broker: Broker, served: Served) -> None:
        broker.update_queue("q", policy=ONCE, breaker=None)
        for name, count in ((NAME, 1), ("Vega", 2)):
            send(broker, "q", *[body(name=name)] * count)
            receiver = broker.receiver("q")
            for message in receiver.receive(9):
                receiver.dead_letter(message, reason=f"no {name}", description=f"lost {name}")
            receiver.close()
        broker.triage("q")
        broker.run(c.SetRedaction(field="body.name"))
        operator = served.client("operator")

        def causes() -> list[dict[str, Any]]:
            answer = operator.get("/causes", params=Q)
            assert NAME not in answer.text and "Vega" not in answer.text
            found: list[dict[str, Any]] = answer.json()["causes"]
            return found

        assert {(one["reason"], one["template"]) for one in causes()} == {(f"no {MASK}", f"lost {MASK}")}
        numbers = [cause.number for cause in broker.triage("q").causes]
        broker.merge_causes("q", numbers)
        # Its reason is that of most letters, its text that of the first, and its example either.
        assert [one["letters"] for one in causes()] == [3]
        broker.purge("q", [1])
        assert [one["example"] for one in causes()] == [2]

    def test_words_that_differ(self, broker: Broker, served: Served) -> None:
        """What the letters of a cause have in common is shown."""
        broker.update_queue("q", policy=ONCE, breaker=None)
        cities = ("Turin", "Milan", "Genoa", "Padua", "Udine", "Parma")
        send(broker, "q", *(body(city=city) for city in cities))
        receiver = broker.receiver("q")
        for message, city in zip(receiver.receive(9), cities, strict=True):
            receiver.dead_letter(message, reason="lost", description=f"no train to {city} for {NAME}")
        broker.run(c.SetRedaction(field="body.name"))
        (cause,) = served.client("operator").get("/causes", params=Q).json()["causes"]
        assert (len(cause["fingerprints"]), cause["letters"]) == (6, 6)
        assert cause["template"] == f"no train to {HOLE} for {MASK}"

    def test_examples_are_held_a_few_at_a_time(
        self, stocked: dict[str, str], served: Served, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        held = []

        def letters() -> int:
            gc.collect()
            return sum(type(one) is DeadLetter for one in gc.get_objects())

        def counting(*given: Any, **named: Any) -> Cause:
            held.append(letters() - before)
            return shown_cause(*given, **named)

        monkeypatch.setattr(redacted, "shown_cause", counting)
        # Others of this process may hold some: a test that failed before, for one.
        before = letters()
        assert len(served.client("operator").get("/causes", params=Q).json()["causes"]) > 2
        # A thread that has just drawn one may hold it a moment longer.
        assert len(held) > 2 and min(held[1:]) == 1


@pytest.mark.stores("sqlite")
def test_redaction_is_beside_the_event_loop(
    stocked: dict[str, str], served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand large bodies take seconds, in which every other request would wait."""
    for name in ("body", "attempts", "made"):
        monkeypatch.setattr(Redaction, name, beside_the_loop(getattr(Redaction, name)))
    operator = served.client("operator")
    for name in ("peek", "show_message", "list_causes", "show_cause", "list_dead_letters",
                 "export_dead_letters", "show_dead_letter", "preview_repair"):  # fmt: skip
        for path, query, _, asked_name in asked(stocked):
            if asked_name == name:
                assert operator.get(path, params=query).status_code == 200, (name, query)


@pytest.mark.stores("sqlite")
def test_why_a_repair_stands_still(stocked: dict[str, str], broker: Broker) -> None:
    """It can be any error: that of a breaker, or of a function that edits letters."""
    rules = Redaction([checked_rule("*", "body.card", "mask")], b"k" * 32)
    status = dataclasses.replace(broker.repair("named").status(), why=f"the function failed at {SECRET}")
    assert shown_repair(status, rules).why == MASK
    assert shown_repair(status, Redaction()).why == status.why
    assert shown_repair(dataclasses.replace(status, why=None), rules).why is None


@pytest.mark.stores("sqlite")
class TestSearches:
    """What may not be read cannot be found out by looking for it."""

    def test_texts(self, stocked: dict[str, str], served: Served) -> None:
        admin, operator = served.client("admin"), served.client("operator")
        for text in (SECRET, SECRET[:6], NAME, TOKEN):
            assert admin.get("/dead-letters", params={**Q, "text": text}).json()["letters"] != []
            for limit, order in ((50, "-number"), (1, "-number"), (50, "time")):
                query: dict[str, Any] = {**Q, "text": text, "limit": limit, "order": order}
                seen = operator.get("/dead-letters", params=query).json()
                assert (seen["letters"], seen["next"], seen["progress"]) == ([], None, 1.0)
            assert operator.get("/dead-letters/export", params={**Q, "text": text}).text == ""
            page = _pages(served, "operator").get(f"/search?q={text}&queue=q").text
            assert "Nothing was found" in page

    def test_what_may_be_read_is_found(self, stocked: dict[str, str], served: Served) -> None:
        operator = served.client("operator")

        def numbers(**query: Any) -> list[int]:
            found: list[int] = []
            cursor: dict[str, str] = {}
            while True:
                page = operator.get("/dead-letters", params={**Q, **query, **cursor}).json()
                found += [one["sequence_number"] for one in page["letters"]]
                if page["next"] is None:
                    return found
                cursor = {"cursor": page["next"]}

        assert numbers(text='"n": 2') == [2]
        assert numbers(text='"to": "X"', limit=1) == [3, 2, 1]
        assert numbers(where="body.n >= 2", order="number") == [2, 3]
        assert numbers(where="body.n >= 2", limit=1) == [3, 2]
        host = socket.gethostname()
        assert numbers(where=f"body.n >= 2 AND sys.Host = '{host}'", order="number") == [2, 3]
        assert numbers(where=f"sys.Worker LIKE '{host}:%' AND sys.Host <> '{host}'") == []
        assert numbers(text="no customer") == [2, 1]
        lines = operator.get("/dead-letters/export", params={**Q, "where": "body.n = 1"}).text
        assert [json.loads(line)["sequence_number"] for line in lines.splitlines()] == [1]

    def test_conditions(self, stocked: dict[str, str], served: Served) -> None:
        """One that names a redacted field is refused, as is one that could name it."""
        admin, operator = served.client("admin"), served.client("operator")
        for where in (
            f"body.card = '{SECRET}'",
            "body.card LIKE '4%'",
            f"token = '{TOKEN}'",
            "LENGTH(body.card) = 19",
            "p('token') LIKE 't%'",
            "user.DeadLetterErrorDescription IS NULL",
        ):
            query = {**Q, "where": where}
            assert admin.get("/dead-letters", params=query).json()["letters"], where
            for path in ("/dead-letters", "/dead-letters/export"):
                answer = operator.get(path, params=query)
                assert (answer.status_code, answer.json()["code"]) == (403, "not_permitted"), where
                assert "without redacted fields" in answer.json()["detail"]

    def test_reasons(self, stocked: dict[str, str], served: Served) -> None:
        """A reason can have a value of its message; those of the system have none."""
        admin, operator = served.client("admin"), served.client("operator")

        def numbers(who: httpx.Client, reason: str) -> list[int]:
            page = who.get("/dead-letters", params={**Q, "reason": reason}).json()
            assert (page["next"], page["progress"]) == (None, 1.0)
            return [one["sequence_number"] for one in page["letters"]]

        assert numbers(admin, f"bad {SECRET}") == [3, 2, 1]
        assert numbers(operator, f"bad {SECRET}") == []
        assert numbers(operator, "bad «redacted»") == [3, 2, 1]
        events = operator.get("/events", params={"kind": "dead_lettered", "limit": 1000}).json()
        reasons = [one["detail"]["reason"] for one in events]
        assert {"«redacted»", "MaxDeliveryCountExceeded"} == set(reasons)


@pytest.mark.stores("sqlite")
class TestChanges:
    def test_plans_that_could_tell(self, stocked: dict[str, str], served: Served, broker: Broker) -> None:
        """Neither which letters a repair takes nor what it makes of them tells what may not be read."""
        plans: list[dict[str, Any]] = [
            {"filter": {"where": f"body.card = '{SECRET}'"}},
            {"filter": {"text": SECRET}},
            {"filter": {"reason": f"bad {SECRET}"}},
            {"filter": {"where": "DeadLetterReason IS NULL"}},
            {"filter": {"cause": 1}, "edit": "SET body.copy = body.card"},
            {"filter": {"cause": 1}, "edit": "SET user.copy = token"},
            {"filter": {"cause": 1}, "edit": '[{"op": "copy", "from": "/card", "path": "/x"}]'},
            {"filter": {"cause": 1}, "edit": '[{"op": "test", "path": "/card", "value": "4"}]'},
            {"filter": {"cause": 1}, "edit": '[{"op": "test", "path": "/to", "value": {"card": "4"}}]'},
            # What would lose it.
            {"filter": {"cause": 1}, "edit": '[{"op": "replace", "path": "", "value": {"n": 5}}]'},
            {"filter": {"cause": 1}, "edit": '{"card": null}'},
            {"filter": {"cause": 1}, "edit": '[{"op": "add", "path": "", "value": "another"}]'},
            {"filter": {"cause": 1}, "edit": "REMOVE body.card"},
            {"filter": {"cause": 1}, "edit": "SET body = 'another'"},
            {"filter": {"cause": 1}, "edit": "data:;base64,AAEC"},
            # What would show it where no rule hides it.
            {"filter": {"cause": 1}, "to": "open"},
        ]
        broker.create_queue("open")
        for field in ("body.card", "body.name"):
            broker.run(c.SetRedaction(field=field, queue="q"))
            broker.run(c.RemoveRedaction(field=field))
        for number, plan in enumerate(plans):
            for name, status in (("operator", 403), ("admin", 200)):
                given = {"path": "q", "name": f"{name}-{number}", "canary": 0, **plan}
                answer = served.client(name).post("/commands/plan_repair", json=given)
                assert answer.status_code == status, (plan, answer.text)
                assert status == 200 or answer.json()["detail"].startswith("expected "), answer.text
        move = {"path": "q", "sequence_numbers": [1], "to": "open"}
        assert served.client("operator").post("/commands/move_dead_letters", json=move).status_code == 403
        assert served.client("admin").post("/commands/move_dead_letters", json=move).status_code == 200

    def test_wrong_plans(self, stocked: dict[str, str], served: Served) -> None:
        """What is wrong is said to be wrong, and not to be redacted."""
        for part in ({"filter": {"where": "body.n = "}}, {"filter": {"cause": 1}, "edit": "SET body.n ="}):
            answer = served.client("operator").post("/commands/plan_repair", json={"path": "q", **part})
            assert answer.status_code == 422, answer.text
            assert answer.json()["code"] in ("filter_syntax", "invalid_option")
        answer = served.client("operator").get("/dead-letters", params={**Q, "where": "body.n = "})
        assert answer.json()["code"] == "filter_syntax"

    def test_trying_a_condition(self, stocked: dict[str, str], served: Served) -> None:
        """How many messages match would tell of a field that may not be read."""
        page = "/rules?topic=news&subscription=all&filter=body.card+LIKE+%274%25%27"
        assert "<strong>1</strong> of 1 messages" in _pages(served, "admin").get(page).text
        seen = _pages(served, "operator").get(page).text
        assert "expected a condition without redacted fields" in seen
        assert "The condition matches" not in seen

    def test_the_form_for_an_edit(self, stocked: dict[str, str], served: Served) -> None:
        page, client = "/dead-letters/1/edit", _pages(served, "operator")
        for edit in (
            "SET body.copy = body.card",
            '{"card": null}',
            '[{"op": "add", "path": "", "value": "another"}]',
        ):
            found = client.get(page, params={**Q, "edit": edit}).text
            assert "expected an edit that neither names redacted fields" in found
            assert "Plan a repair" not in found
        for edit in ("SET body.n = 5", '{"n": 5}'):
            found = client.get(page, params={**Q, "edit": edit}).text
            assert "+ body.n: 5" in found and "Plan a repair" in found

    def test_an_edit_keeps_what_its_planner_may_not_read(
        self, stocked: dict[str, str], served: Served, broker: Broker
    ) -> None:
        given = {"path": "q", "name": "keeps", "filter": {"sequence_numbers": [1]}, "edit": '{"n": 5}'}
        operator = served.client("operator")
        assert operator.post("/commands/plan_repair", json={**given, "canary": 0}).status_code == 200
        assert operator.post("/commands/apply_repair", json={"name": "keeps"}).status_code == 200
        broker.run_repairs(until=lambda: broker.repair("keeps").status().ended is not None)
        bodies = [json.loads(one.body) for one in broker.peek("q", 100)]
        assert {"n": 5, "card": SECRET, "name": NAME, "to": "X"} in bodies

    def test_other_plans(self, stocked: dict[str, str], served: Served) -> None:
        given = {"path": "q", "name": "n", "filter": {"where": "body.n = 1"}, "edit": "SET body.n = 5"}
        answer = served.client("operator").post("/commands/plan_repair", json=given)
        assert answer.status_code == 200, answer.text
        seen = served.client("operator").get("/repairs/n/preview").json()
        assert seen["examples"] == [{"sequence_number": 1, "difference": ["- body.n: 1", "+ body.n: 5"]}]

    def test_answers(self, stocked: dict[str, str], served: Served) -> None:
        """What a command answers tells how things stand, too."""
        operator = served.client("operator")
        answer = operator.post("/commands/set_breaker", json={"path": "broken", "verb": "close"})
        assert answer.status_code == 200, answer.text
        assert NAME not in answer.text


@pytest.mark.stores("sqlite")
class TestPeople:
    def test_receivers_get_the_original(self, stocked: dict[str, str], served: Served) -> None:
        client = served.client("client")
        (taken,) = client.post("/messages/receive", params=Q).json()
        assert (json.loads(taken["body"])["card"], taken["properties"]["token"]) == (SECRET, TOKEN)
        assert SECRET not in client.get("/messages", params=Q).text

    def test_inspectors(self, stocked: dict[str, str], served: Served, broker: Broker) -> None:
        """The permission holds where it was granted, and not elsewhere."""
        broker.run(c.GrantRole(person="ina", role="reader"))
        broker.run(c.GrantRole(person="ina", role="inspector", queue="q"))
        client = served.client(None)
        client.headers["Authorization"] = "Bearer " + broker.run(c.CreateToken(person="ina"))["secret"]
        assert SECRET in client.get("/messages", params=Q).text
        assert SECRET not in client.get("/messages", params={"queue": "tried"}).text
        assert SECRET in client.get("/dead-letters/1", params=Q).text
        assert NAME in client.get("/causes", params=Q).text
        assert NAME not in client.get("/breaker", params={"queue": "broken"}).text

    def test_viewers_learn_nothing_of_bodies(self, stocked: dict[str, str], served: Served) -> None:
        """What explains a cause names values of bodies, which viewers may not read at all."""
        served.client("admin").get("/causes", params={**Q, "explain": 5})
        causes = served.client("viewer").get("/causes", params=Q).json()["causes"]
        assert [cause["difference"] for cause in causes] == [None] * len(causes)
        assert NAME not in str(causes)

    def test_rules_over_http(self, stocked: dict[str, str], served: Served, broker: Broker) -> None:
        rule = {"field": "body.pin", "queue": "q", "form": "drop"}
        assert served.client("operator").post("/commands/set_redaction", json=rule).status_code == 403
        assert served.client("admin").post("/commands/set_redaction", json=rule).json() == rule
        assert rule in served.client("viewer").get("/redaction").json()
        removed = served.client("admin").post(
            "/commands/remove_redaction", json={"field": "body.pin", "queue": "q"}
        )
        assert removed.status_code == 200
        assert rule not in served.client("viewer").get("/redaction").json()

    def test_without_rules_all_is_shown(
        self, stocked: dict[str, str], served: Served, broker: Broker
    ) -> None:
        for rule in broker.redaction():
            broker.run(c.RemoveRedaction(field=rule.field, queue=rule.queue))
        assert SECRET in served.client("operator").get("/messages", params=Q).text
        assert NAME in served.client("operator").get("/dead-letters", params={**Q, "text": NAME}).text


class Telling:
    """Handlers whose failures and sends have what is in messages."""

    def names(self, queue: str) -> Sequence[str]:
        return ["shop:tell"] if queue == "q" else []

    async def try_letter(self, queue: str, number: int, name: str, edit: Edit | None) -> TriedLetter:
        if edit is None:
            return TriedLetter(f"{NAME}Error", f"no {SECRET}", sends={f"of-{NAME}": 1})
        return TriedLetter(sends={f"of-{NAME}": 1, f"for-{NAME}": 2}, statements=1)


@pytest.mark.parametrize("served", [{"handlers": Telling()}], indirect=True)
def test_what_a_handler_says_of_a_letter(stocked: dict[str, str], served: Served, broker: Broker) -> None:
    """Whoever may not read all sees whether it would fail; that code ran stands in the audit log."""
    form = {"queue": "q", "number": "1", "handler": "shop:tell"}
    edited = {**form, "edit": "SET body.n = 7"}
    whole, seen = (_pages(served, name) for name in ("admin", "operator"))
    assert f"{NAME}Error</strong>: no {SECRET}" in whole.post("/try", data=form).text
    assert f"1 to of-{NAME}; it would send 2 to for-{NAME}" in whole.post("/try", data=edited).text
    failed, sent = (seen.post("/try", data=one).text for one in (form, edited))
    assert f"{MASK}</strong>: {MASK}" in failed
    assert f"it would send 3 to {MASK}; it would execute 1 SQL statement" in sent
    assert not [trace for trace in TRACES if trace in failed + sent]
    for wrong, status in (
        ({"handler": "os:getcwd"}, 422),
        ({"queue": "tried"}, 422),
        ({"number": "999"}, 404),
    ):
        assert seen.post("/try", data={**form, **wrong}).status_code == status
    assert served.client("viewer").post(f"http://127.0.0.1:{served.port}/try", data=form).status_code == 403
    noted = broker.audit(action="try")
    assert [(e.actor, e.queue, e.detail["sequence_number"], e.detail["handler"]) for e in noted] == [
        (actor, "q", 1, "shop:tell") for actor in ("operator", "operator", "admin", "admin")
    ]
    assert [e.detail.get("edit") for e in noted] == ["action: SET body.n = 7", None] * 2
    assert {e.detail["origin"] for e in noted} == {"127.0.0.1"}


def _pages(served: Served, name: str) -> httpx.Client:
    client = served.client(name)
    client.base_url = httpx.URL(f"http://127.0.0.1:{served.port}")
    return client


def _main(page: str) -> str:
    return page.partition("<main")[2]
