"""What the log says of failures: each failed attempt, each dead letter, and what stands still."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from lazaretto import Broker, Message, PoisonPolicy, QueueOptions
from lazaretto.host import Handler, ServiceHost
from lazaretto.store.records.messages import Notice
from lazaretto.store.runtime.notices import MOST, WHILE, NoticeLog
from lazaretto.tools.json_logs import JsonFormatter

LOGGER = "lazaretto.messages"
SECRET = b"a body is never logged"


def refuse(message: object) -> None:
    raise ValueError("no such thing\nand more")


def texts(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == LOGGER and r.levelno == level]


@pytest.fixture
def orders(broker: Broker, caplog: pytest.LogCaptureFixture) -> str:
    caplog.set_level(logging.DEBUG, LOGGER)
    broker.create_queue("orders", QueueOptions(policy=PoisonPolicy(receive_retry_count=1)))
    broker.sender("orders").send([Message(SECRET, message_id=f"id-{n}") for n in range(2)])
    return "orders"


def check(caplog: pytest.LogCaptureFixture) -> None:
    warnings, errors = texts(caplog, logging.WARNING), texts(caplog, logging.ERROR)
    assert sorted(warnings) == [
        f"'orders': attempt {n} of 2 at message {m} ('id-{m - 1}') failed: ValueError: no such thing"
        for n in (1, 2)
        for m in (1, 2)
    ]
    assert [text.splitlines()[0] for text in sorted(errors)] == [
        f"'orders': message {m} ('id-{m - 1}') is a dead letter: "
        "MaxDeliveryCountExceeded: ValueError: no such thing"
        for m in (1, 2)
    ]
    assert all("in refuse" in text for text in errors)
    assert SECRET.decode() not in caplog.text


def test_a_consumer_logs_its_failures(broker: Broker, orders: str, caplog: pytest.LogCaptureFixture) -> None:
    broker.consume(orders, refuse, stop_when_idle=True)
    check(caplog)


def test_a_host_logs_its_failures(broker: Broker, orders: str, caplog: pytest.LogCaptureFixture) -> None:
    host = ServiceHost(broker, Handler(orders, refuse, isolation="inline"))
    host.run(until=lambda: broker.queue(orders).counts.dead_letter == 2)
    check(caplog)


def test_no_text_of_others_makes_a_line_or_turns_one_round(
    broker: Broker, orders: str, caplog: pytest.LogCaptureFixture
) -> None:
    forged = "x\r\n12:00:00 ERROR forged\u2028\x1b[31m\u202egnp.exe"
    receiver = broker.receiver(orders)
    for error in (None, ValueError(forged)):
        receiver.dead_letter(receiver.receive(1), reason=forged, description=forged, error=error)
    for text in texts(caplog, logging.ERROR):
        assert not set("\r\u2028\x1b\u202e") & set(text)
        assert not any(line.startswith("12:00:00") for line in text.splitlines())


def test_what_is_undone_is_not_logged(broker: Broker, orders: str, caplog: pytest.LogCaptureFixture) -> None:
    with broker.receiver(orders) as receiver:
        (message,) = receiver.receive()
        with pytest.raises(ZeroDivisionError), broker.transaction() as tx:
            tx.execute("CREATE TABLE made (number INTEGER)")
            tx.send(orders, Message(b""))
            raise ZeroDivisionError
        assert not texts(caplog, logging.WARNING)
        receiver.abandon(message, error="once")
    assert len(texts(caplog, logging.WARNING)) == 1


def test_a_held_session_and_a_halted_queue_are_logged(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, LOGGER)
    once = PoisonPolicy(receive_retry_count=0)
    options = QueueOptions(requires_session=True, on_poison_session="block", policy=once)
    broker.create_queue("tickets", options)
    broker.create_queue("line", QueueOptions(policy=PoisonPolicy(receive_retry_count=0, on_poison="fault")))
    ticket = broker.sender("tickets").send(Message(SECRET, session_id="ann"))
    broker.sender("line").send(Message(SECRET))
    with broker.receiver("line") as receiver:
        receiver.abandon(receiver.receive(), error="broken")
    with broker.receiver("tickets", session="ann") as receiver:
        receiver.abandon(receiver.receive(), error="broken")
    logged = texts(caplog, logging.WARNING)
    assert any("'line': message 1: A poison message halted the queue." in text for text in logged)
    assert any(
        f"'tickets': message {ticket}: A poison message holds its session back." in text for text in logged
    )


def test_an_outage_is_one_warning_and_its_attempts_few(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, LOGGER)
    broker.create_queue("orders")
    broker.sender("orders").send([Message(b"") for _ in range(200)])
    host = ServiceHost(broker, Handler("orders", refuse, isolation="inline", batch_size=20))
    host.run(until=lambda: broker.breaker("orders").status.value == "open")
    logged = texts(caplog, logging.WARNING)
    assert sum("An outage was detected." in text for text in logged) == 1
    assert len(logged) < 30


def test_a_flood_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    log = NoticeLog(lambda: now[0])
    log.add([Notice(logging.WARNING, "orders", f"'orders': {n}") for n in range(MOST + 50)])
    log.add([Notice(logging.WARNING, "other", "'other': one")])
    log.write()
    assert len(caplog.records) == MOST + 2
    now[0] = WHILE
    log.add([Notice(logging.WARNING, "orders", "'orders': again")])
    log.write()
    assert [r.getMessage() for r in caplog.records[-2:]] == [
        "'orders': 50 more were not logged",
        "'orders': again",
    ]


def test_the_fields_of_a_record(broker: Broker, orders: str, caplog: pytest.LogCaptureFixture) -> None:
    broker.consume(orders, refuse, stop_when_idle=True)
    (dead,) = [r for r in caplog.records if r.levelno == logging.ERROR and vars(r)["sequence_number"] == 1]
    found = {
        (
            r.levelname,
            fields["event"],
            fields["queue"],
            fields["attempt"],
            fields["message_id"],
            fields["error_type"],
        )
        for r in caplog.records
        for fields in (vars(r),)
        if fields.get("sequence_number") == 1
    }
    assert found == {
        ("WARNING", "attempt_failed", "orders", 1, "id-0", "ValueError"),
        ("WARNING", "attempt_failed", "orders", 2, "id-0", "ValueError"),
        ("ERROR", "dead_lettered", "orders", 2, "id-0", "ValueError"),
    }
    assert vars(dead)["reason"] == "MaxDeliveryCountExceeded"
    assert "in refuse" in vars(dead)["stack"]
    line = json.loads(JsonFormatter().format(dead))
    assert line["message"] == dead.getMessage().splitlines()[0]
    assert {"time", "level", "logger", "queue", "sequence_number", "attempt", "stack"} <= set(line)
    assert line["time"].endswith("Z")


def test_repairs_breakers_and_halts(broker: Broker, orders: str, caplog: pytest.LogCaptureFixture) -> None:
    """Their changes are logged: at INFO, and as warnings where people should look."""
    broker.consume(orders, refuse, stop_when_idle=True)
    repair = broker.plan_repair(orders, [1, 2], name="mend", canary=1, canary_wait=60, actor="ann")
    repair.apply()
    repair.pause()
    broker.set_breaker(orders, "open")
    broker.create_queue("line", QueueOptions(policy=PoisonPolicy(receive_retry_count=0, on_poison="fault")))
    broker.sender("line").send(Message(SECRET))
    with broker.receiver("line") as receiver:
        receiver.abandon(receiver.receive(), error="broken")
    broker.resume_queue("line", "retry")
    told = [
        (record.levelname, fields["event"], fields["queue"], fields["detail"].get("phase"))
        for record in caplog.records
        for fields in (vars(record),)
        if "detail" in fields
    ]
    assert told == [
        ("INFO", "repair_changed", "orders", "applying"),
        ("INFO", "repair_changed", "orders", "paused"),
        ("INFO", "breaker_set", "orders", None),
        ("WARNING", "queue_halted", "line", None),
        ("INFO", "queue_resumed", "line", None),
    ]


@pytest.mark.parametrize(
    "value", ["\ud800", object(), {1: 2}, float("inf"), b"x"], ids=lambda v: type(v).__name__
)
def test_any_record_is_a_line_of_json(value: object) -> None:
    record = logging.makeLogRecord({"name": "x", "msg": "%s", "args": ("a\nb",), "field": value})
    line = JsonFormatter().format(record)
    assert "\n" not in line
    assert set(json.loads(line)) == {"time", "level", "logger", "message", "field"}


def test_an_exception_as_json() -> None:
    try:
        raise ValueError("no")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "", 0, "went wrong", None, sys.exc_info())
    assert json.loads(JsonFormatter().format(record))["exception"].endswith("ValueError: no")
