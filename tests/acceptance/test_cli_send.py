"""`lazaretto send`: one message, a file, JSON lines; what is sent when something is wrong."""

from __future__ import annotations

import json
import os
import re
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cli_program import Program, interrupt

from lazaretto import MessageState, QueueOptions


@pytest.fixture
def cli(tmp_path: Path) -> Program:
    """A program whose store is there, with the queue `orders`."""
    program = Program(tmp_path / "store.db")
    with program.broker() as broker:
        broker.create_queue("orders")
    return program


def _bodies(cli: Program) -> list[bytes]:
    with cli.broker() as broker:
        return [message.body for message in broker.peek("orders", 100_000)]


def _lines(*values: Any) -> str:
    return "".join(f"{json.dumps(value)}\n" for value in values)


def test_a_body_with_all_it_may_carry(cli: Program) -> None:
    told = cli.ok(
        *("send", "orders", "grüße", "--message-id", "m1", "--session", "s1", "--subject", "hi"),
        *("--correlation-id", "c1", "--to", "you", "--reply-to", "me", "--reply-to-session", "s2"),
        *("--content-type", "text/plain", "--partition-key", "s1", "-p", "colour=red", "-p", "empty="),
        *("--ttl", "2h", "--dead-letter-queue", "none"),
    )
    assert told.out == "sent 1 message to orders: 1\n"
    (message,) = cli.ok("peek", "orders", "--json").json
    wanted = {
        "body": "grüße",
        "message_id": "m1",
        "session_id": "s1",
        "subject": "hi",
        "correlation_id": "c1",
        "to": "you",
        "reply_to": "me",
        "reply_to_session_id": "s2",
        "content_type": "text/plain",
        "partition_key": "s1",
        "properties": {"colour": "red", "empty": ""},
        "time_to_live": 7200.0,
        "dead_letter_queue": None,
        "state": "active",
        "sequence_number": 1,
    }
    assert {name: message[name] for name in wanted} == wanted
    expires = datetime.fromisoformat(message["expires_at"]) - datetime.fromisoformat(message["enqueued_time"])
    assert expires == timedelta(hours=2)


def test_scheduled_by_time_or_from_now(cli: Program) -> None:
    cli.ok("send", "orders", "later", "--at", "2099-01-01T12:00:00")
    cli.ok("send", "orders", "soon", "--at", "30m")
    with cli.broker() as broker:
        late, soon = broker.peek("orders", 2)
    assert late.state is soon.state is MessageState.SCHEDULED
    assert late.scheduled_enqueue_time == datetime(2099, 1, 1, 12, tzinfo=UTC)
    assert soon.scheduled_enqueue_time is not None
    ahead = soon.scheduled_enqueue_time - datetime.now(UTC)
    assert timedelta(minutes=28) < ahead <= timedelta(minutes=30)


def test_a_body_from_a_file_or_standard_input_is_taken_byte_for_byte(cli: Program, tmp_path: Path) -> None:
    every_byte = bytes(range(256)) + b"\r\n"
    (tmp_path / "body").write_bytes(every_byte)
    cli.ok("send", "orders", "--file", str(tmp_path / "body"))
    cli.ok("send", "orders", "--file", "-", stdin=every_byte)
    cli.ok("send", "orders", "")
    assert _bodies(cli) == [every_byte, every_byte, b""]
    assert "missing" in cli.fails(2, "usage", "send", "orders", "--file", "missing")
    cli.fails(2, "usage", "send", "orders", "--file", str(tmp_path))


def test_errors_of_the_broker(cli: Program) -> None:
    cli.fails(1, "message_too_large", "send", "orders", "--file", "-", stdin=b"x" * 300_000)
    cli.fails(3, "entity_not_found", "send", "nothing", "x")
    cli.fails(3, "entity_not_found", "send", "orders", "x", "--dead-letter-queue", "nothing")
    cli.fails(1, "invalid_message", "send", "orders", "x", "--ttl", "0")
    assert _bodies(cli) == []


def test_json_lines_with_every_field(cli: Program) -> None:
    identity, moment = uuid.uuid4(), datetime(2030, 5, 6, 7, 8, 9, tzinfo=UTC)
    line = {
        "body": "text",
        "message_id": "m1",
        "session_id": "s1",
        "subject": "hi",
        "correlation_id": "c1",
        "to": "you",
        "reply_to": "me",
        "reply_to_session_id": "s2",
        "content_type": "text/plain",
        "partition_key": "s1",
        "time_to_live": "1h30m",
        "scheduled_enqueue_time": "2099-01-01T00:00:00+02:00",
        "properties": {
            "text": "t",
            "number": 3,
            "float": 1.5,
            "yes": True,
            "nothing": None,
            "bytes": {"base64": "AP8="},
            "uuid": {"uuid": str(identity)},
            "time": {"datetime": moment.isoformat()},
        },
    }
    cli.ok("send", "orders", "--jsonl", stdin=_lines(line))
    with cli.broker() as broker:
        (message,) = broker.peek("orders", 1)
    for name in list(line)[1:10]:
        assert getattr(message, name) == line[name]
    assert (message.body, message.time_to_live) == (b"text", timedelta(minutes=90))
    assert message.scheduled_enqueue_time == datetime(2098, 12, 31, 22, tzinfo=UTC)
    assert message.properties == {
        "text": "t",
        "number": 3,
        "float": 1.5,
        "yes": True,
        "nothing": None,
        "bytes": b"\x00\xff",
        "uuid": identity,
        "time": moment,
    }
    (printed,) = cli.ok("peek", "orders", "--json").json
    assert printed["properties"] == {
        **line["properties"],  # type: ignore[dict-item]
        "time": {"datetime": "2030-05-06T07:08:09.000000Z"},
    }


def test_bodies_of_json_lines(cli: Program) -> None:
    lines = b"""
{"body": "a \\u00fc \\n"}
{"body": {"price": 1.10, "big": 123456789012345678901234567890}}
{"body": null}

{"body_base64": "AP8="}
{"body":[1, 2]}"""
    told = cli.ok("send", "orders", "--jsonl", "--json", stdin=lines).json
    assert told == {"queue": "orders", "sent": 5, "sequence_numbers": [1, 2, 3, 4, 5]}
    assert _bodies(cli) == [
        "a ü \n".encode(),
        b'{"price": 1.10, "big": 123456789012345678901234567890}',
        b"null",
        b"\x00\xff",
        b"[1, 2]",
    ]


def test_options_hold_for_lines_that_do_not_say_otherwise(cli: Program) -> None:
    lines = _lines({"body": "1"}, {"body": "2", "subject": "own", "properties": {"a": 1}})
    options = ("--subject", "all", "-p", "a=x", "-p", "b=y", "--ttl", "1h")
    cli.ok("send", "orders", "--jsonl", *options, stdin=lines)
    with cli.broker() as broker:
        one, two = broker.peek("orders", 2)
    assert (one.subject, two.subject) == ("all", "own")
    assert (one.properties, two.properties) == ({"a": "x", "b": "y"}, {"a": 1, "b": "y"})
    assert one.time_to_live == two.time_to_live == timedelta(hours=1)


def test_lines_from_a_file_in_commits_of_a_thousand(cli: Program, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text(_lines(*({"body": i} for i in range(2500))))
    assert cli.ok("send", "orders", "--jsonl", "--file", str(tmp_path / "lines")).out == (
        "sent 2500 messages to orders: 1 to 2500\n"
    )
    assert _bodies(cli) == [str(i).encode() for i in range(2500)]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b"{", "expected an object as JSON"),
        (b"[1]", "expected an object as JSON"),
        (b'"text"', "expected an object as JSON"),
        (b'{"body": "\xff"}', "body: "),
        (b'{"body": "x", "subject": "\xff"}', "subject: "),
        (b"\xff\xfe", "expected an object as JSON"),
        (b'{"body": "\\ud800"}', "body"),
        (b'{"bodi": "x"}', "did you mean 'body'?"),
        (b'{"subject": "x"}', "expected either a body or a body_base64"),
        (b'{"body": "x", "body_base64": "eA=="}', "expected either a body or a body_base64"),
        (b'{"body_base64": "?"}', "expected body_base64 to be base64"),
        (b'{"body_base64": 5}', "expected body_base64 to be base64"),
        (b'{"body": "x", "session_id": 5}', "expected session_id to be text"),
        (b'{"body": "x", "message_id": ""}', "expected message_id of 1 to 128"),
        (b'{"body": "x", "time_to_live": "soon"}', "expected time_to_live"),
        (b'{"body": "x", "time_to_live": -1}', "expected time_to_live"),
        (b'{"body": "x", "time_to_live": {}}', "expected time_to_live"),
        (b'{"body": "x", "scheduled_enqueue_time": 5}', "expected scheduled_enqueue_time"),
        (b'{"body": "x", "scheduled_enqueue_time": "noon"}', "expected scheduled_enqueue_time"),
        (b'{"body": "x", "properties": [1]}', "expected properties to be an object"),
        (b'{"body": "x", "properties": {"a": [1]}}', "propert"),
        (b'{"body": "x", "properties": {"a": {"b": 1}}}', "property 'a'"),
        (b'{"body": "x", "properties": {"a": {"uuid": "no"}}}', "property 'a'"),
        (b'{"body": "x", "properties": {"a": 123456789012345678901234567890}}', "propert"),
        (b'{"body": "' + b"x" * 300_000 + b'"}', "max_message_size"),
        (b'{"body": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deep"),
        (
            b'{"body": "x", "properties": {"a": ' + b'{"a": ' * 5000 + b"1" + b"}" * 5001 + b"}",
            "nested too deep",
        ),
        (b'{"body": "x", "time_to_live": 1e400}', "time_to_live"),
        (b'\xef\xbb\xbf{"body": "not at the beginning"}', "expected an object as JSON"),
        ('{"body": "x"}'.encode("utf-16"), "expected an object as JSON"),
    ],
)
def test_a_bad_line_is_named_and_what_stands_before_it_is_sent(cli: Program, line: bytes, what: str) -> None:
    lines = b'{"body": "1"}\n\n{"body": "2"}\n' + line + b'\n{"body": "3"}\n'
    result = cli("send", "orders", "--jsonl", stdin=lines)
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("error["), result.err
    assert result.err.count("\n") == 1
    assert "line 4: " in result.err
    assert what in result.err
    assert result.err.endswith("(2 messages sent, all up to line 3; nothing after that)\n")
    assert _bodies(cli) == [b"1", b"2"]


def test_a_mark_of_the_order_of_bytes_is_no_part_of_the_first_line(cli: Program) -> None:
    lines = b'\xef\xbb\xbf{"body": "1"}\r\n{"body": "2"}\r\n'
    assert cli.ok("send", "orders", "--jsonl", stdin=lines).out == "sent 2 messages to orders: 1 to 2\n"
    assert _bodies(cli) == [b"1", b"2"]


def test_a_bad_line_far_on(cli: Program) -> None:
    """The lines of the batch that the bad one is in are sent too, whether it or the queue refuses."""
    good = [{"body": str(i)} for i in range(1537)]
    result = cli("send", "orders", "--jsonl", "--json", stdin=_lines(*good, {}, *good))
    assert (result.code, result.json["sent"]) == (1, 1537)
    assert "line 1538: " in result.err
    large = {"body": "x" * 300_000}
    result = cli("send", "orders", "--jsonl", "--json", stdin=_lines(*good, large, *good))
    assert (result.code, result.json["sent"]) == (1, 1537)
    assert "error[message_too_large]: line 1538: " in result.err
    assert len(_bodies(cli)) == 2 * 1537


def test_nothing_sent_is_said(cli: Program) -> None:
    assert "(nothing was sent)" in cli.fails(1, "bad_line", "send", "orders", "--jsonl", stdin="{}\n")
    error = cli.fails(3, "entity_not_found", "send", "nothing", "--jsonl", stdin=_lines({"body": "x"}))
    assert "(nothing was sent)" in error
    assert cli.ok("send", "orders", "--jsonl", stdin="").out == "sent 0 messages to orders\n"


def test_a_queue_with_sessions_names_the_line_without_one(cli: Program) -> None:
    with cli.broker() as broker:
        broker.create_queue("talks", QueueOptions(requires_session=True))
    lines = _lines({"body": "1", "session_id": "a"}, {"body": "2"})
    assert "line 2: " in cli.fails(1, "invalid_message", "send", "talks", "--jsonl", stdin=lines)
    cli.fails(1, "invalid_message", "send", "talks", "body")


def test_control_c_tells_exactly_what_was_sent(cli: Program) -> None:
    with cli.start("send", "orders", "--jsonl") as process:
        assert process.stdin is not None
        process.stdin.write(_lines(*({"body": i} for i in range(1500))).encode())
        process.stdin.flush()
        with cli.broker() as broker:
            # The first thousand are committed while the program waits for more lines.
            while len(broker.peek("orders", 2000)) < 1000:
                broker.events(broker.last_event(), max_wait=0.02)
        interrupt(process)
        out, err = process.communicate()
    assert (process.returncode, out) == (130, b"")
    assert err == b"1000 messages sent, all up to line 1000; nothing after that\n"
    assert len(_bodies(cli)) == 1000


@pytest.mark.skipif("LAZARETTO_SOAK" not in os.environ, reason="a hundred thousand lines: LAZARETTO_SOAK=1")
def test_control_c_in_the_middle_of_a_hundred_thousand_lines(cli: Program, tmp_path: Path) -> None:
    lines = [json.dumps({"body": i}) + "\n" for i in range(100_000)]
    (tmp_path / "lines").write_text("".join(lines))
    with cli.terminal("send", "orders", "--jsonl", "--file", str(tmp_path / "lines")) as terminal:
        with cli.broker() as broker:
            while broker.queue("orders").counts.active < 20_000:
                assert terminal.read()
        terminal.type(b"\x03")
        assert terminal.wait() == 130
    (sent,) = re.findall(rb"(\d+) messages sent, all up to line \1; nothing after that", terminal.shown)
    assert 20_000 <= int(sent) < 100_000
    assert len(_bodies(cli)) == int(sent)

    cli.ok("send", "orders", "--jsonl", stdin="".join(lines[int(sent) :]))
    assert _bodies(cli) == [str(i).encode() for i in range(100_000)]


def test_a_progress_bar_on_a_terminal(cli: Program, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text(_lines(*({"body": i} for i in range(1200))))
    code, shown = cli.on_terminal("send", "orders", "--jsonl", "--file", str(tmp_path / "lines"))
    assert code == 0
    assert "sending to orders" in shown
    assert "sent 1200 messages" in shown
