"""`lazaretto peek` and `lazaretto receive`: what is printed, and what becomes of the messages."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from cli_program import Program, fill

from lazaretto import Message, MessageState, Outcome, PoisonPolicy, QueueOptions
from lazaretto.model.messages import as_message


@pytest.fixture
def cli(tmp_path: Path) -> Program:
    return Program(tmp_path / "store.db")


def _left(cli: Program) -> list[bytes]:
    with cli.broker() as broker:
        return [m.body for m in broker.peek("orders", 10_000) if m.state is MessageState.ACTIVE]


def test_receive_prints_and_completes(cli: Program) -> None:
    with cli.broker() as broker:
        fill(broker, "orders", [b"1", b"2", b"3"])
    rows = cli.ok("receive", "orders", "--complete").out.splitlines()
    assert rows[0].split() == ["sequence", "enqueued", "message", "id", "session", "attempt", "body"]
    assert (len(rows), rows[1].split()[0], rows[1].split()[-1]) == (2, "1", "1")
    received = cli.ok("receive", "orders", "--limit", "10", "--complete", "--json").json
    assert [(m["sequence_number"], m["body"], m["attempt"]) for m in received] == [(2, "2", 1), (3, "3", 1)]
    assert _left(cli) == []
    assert cli("receive", "orders") == (0, "", "no messages in orders\n")
    assert cli.ok("receive", "orders", "--json").json == []


def test_receive_settles_nothing_unless_told(cli: Program) -> None:
    with cli.broker() as broker:
        fill(broker, "orders", [b"1", b"2", b"3"])
    for options in ([], ["--number", "2"]):
        result = cli("receive", "orders", "-n", "9", "--json", *options)
        assert result.code == 0
        assert result.err.startswith(
            f"released {'1 message' if options else '3 messages'}, no failure counted"
        )
    assert _left(cli) == [b"1", b"2", b"3"]
    with cli.broker() as broker:
        assert {m.delivery_count for m in broker.peek("orders", 9)} == {0}


def test_receive_more_than_a_batch_in_order(cli: Program) -> None:
    with cli.broker() as broker:
        fill(broker, "orders", [str(i).encode() for i in range(350)])
    received = cli.ok("receive", "orders", "-n", "320", "--complete", "--json").json
    assert [m["body"] for m in received] == [str(i) for i in range(320)]
    assert len(_left(cli)) == 30


def test_peek_takes_nothing(cli: Program) -> None:
    with cli.broker() as broker:
        fill(broker, "orders", [str(i).encode() for i in range(250)])
    assert len(cli.ok("peek", "orders").out.splitlines()) == 11
    peeked = cli.ok("peek", "orders", "--limit", "1000", "--from", "3", "--json").json
    assert [m["sequence_number"] for m in peeked] == list(range(3, 251))
    assert {m["delivery_count"] for m in peeked} == {0}
    assert len(_left(cli)) == 250


def test_abandon_fails_each_message_once(cli: Program) -> None:
    with cli.broker() as broker:
        fill(broker, "orders", [b"1", b"2"], policy=PoisonPolicy(receive_retry_count=1))
    abandoned = ("receive", "orders", "--limit", "10", "--abandon", "--error", "ValueError: not today")
    assert len(cli.ok(*abandoned, "--json").json) == 2
    with cli.broker() as broker:
        (attempt,) = broker.attempts("orders", 1)
    assert (attempt.outcome, attempt.error_type, attempt.error_message) == (
        Outcome.FAILED,
        "ValueError",
        "not today",
    )
    assert len(cli.ok(*abandoned, "--json").json) == 2
    assert _left(cli) == []
    assert len(cli.ok("dead-letter", "list", "orders", "--json").json) == 2


def test_abandon_with_a_delay(cli: Program) -> None:
    with cli.broker() as broker:
        fill(broker, "orders", [b"1"])
    cli.ok("receive", "orders", "--abandon", "--delay", "1h")
    assert cli.ok("queue", "show", "orders", "--json").json["counts"]["delayed"] == 1


def test_dead_letter_with_reason_and_take_it_out_again(cli: Program) -> None:
    with cli.broker() as broker:
        fill(broker, "orders", [b"1"])
    cli.ok("receive", "orders", "--dead-letter", "--reason", "Ugly", "--description", "very")
    (letter,) = cli.ok("dead-letter", "list", "orders", "--json").json
    assert (letter["reason"], letter["description"]) == ("Ugly", "very")
    error = cli("receive", "orders;poison", "--dead-letter", "--json")
    assert (error.code, error.err.split(":")[0]) == (1, "error[not_allowed]")
    assert json.loads(error.out)[0]["body"] == "1"
    # What could not be set aside further was given back, and is there to be taken.
    (dead,) = cli.ok("receive", "orders/$deadletterqueue", "--complete", "--json").json
    assert dead["dead_letter_reason"] == "Ugly"
    assert cli.ok("dead-letter", "show", "orders", "1", "--json").json["resolution"] == "completed"


def test_wait_for_a_message_that_another_process_sends(cli: Program) -> None:
    with cli.broker() as broker:
        broker.create_queue("talks", QueueOptions(requires_session=True))
        with cli.start(
            "receive", "talks", "--session", "a", "--wait", "1m", "--complete", "--json"
        ) as process:
            # It holds the session before it waits for its first message.
            while broker.sessions("talks") != ["a"]:
                broker.events(broker.last_event(), max_wait=0.02)
            with broker.sender("talks") as sender:
                sender.send(Message(b"at last", session_id="a"))
            out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, b"")
    assert json.loads(out)[0]["body"] == "at last"


def test_sessions(cli: Program) -> None:
    with cli.broker() as broker:
        broker.create_queue("talks", QueueOptions(requires_session=True))
        with broker.sender("talks") as sender:
            sender.send([Message(name.encode(), session_id=name[0]) for name in ("a1", "b1", "a2")])
    cli.fails(1, "not_allowed", "receive", "talks")
    received = cli.ok("receive", "talks", "--session", "a", "-n", "5", "--complete", "--json").json
    assert [m["body"] for m in received] == ["a1", "a2"]
    (message,) = cli.ok("receive", "talks", "--next-session", "--complete", "--json").json
    assert message["session_id"] == "b"
    cli.fails(2, "usage", "receive", "talks", "--session", "a", "--next-session")


def test_bodies_cannot_harm_a_terminal(cli: Program) -> None:
    nasty = b"\x1b[31mred\x1b]0;title\x07 [bold]plain[/bold] :smile: \x9b \xc2\x9b \xe2\x80\xae\r\n\t\x00"
    with cli.broker() as broker:
        fill(broker, "orders", [nasty, nasty])
        with broker.sender("orders") as sender:
            sender.send(Message(b"", message_id="\x1b[2J", properties={"\x1b[1m": "\x1b[2m"}))
        with broker.receiver("orders") as receiver:
            receiver.dead_letter(receiver.receive(), reason="\x1b[3m", description="\x1b[4m\n[red]")
    wanted = "\\x1b[31mred\\x1b]0;title\\x07 [bold]plain[/bold] :smile: \\x9b \\x9b \\u202e\\r\\n\\t\\x00"
    assert cli.ok("peek", "orders").out.splitlines()[1].endswith(wanted)
    cli.environment["COLUMNS"] = "400"
    code, shown = cli.on_terminal("peek", "orders")
    assert code == 0
    assert wanted in shown
    for command in ("dead-letter show orders 1", "dead-letter list orders", "dead-letter groups orders"):
        for out in (cli.ok(*command.split()).out, cli.ok(*command.split(), "--json").out):
            assert not set(out) & set("\x1b\x07\x9b\u202e\x00"), command
    code, shown = cli.on_terminal("receive", "orders", "-n", "5", "--complete", "--json")
    assert (code, "\x1b" in shown, "\x9b" in shown) == (0, False, False)
    assert json.loads(shown)[0]["body_base64"]


def test_text_is_read_back_from_json(cli: Program) -> None:
    text = 'a "quoted" \\ \x7f \u0085 \u202e \u2028 😀 \x00'
    with cli.broker() as broker:
        fill(broker, "orders", [text.encode(), b"\xff"])
    one, two = cli.ok("peek", "orders", "--json").json
    assert (one["body"], two["body_base64"]) == (text, "/w==")
    assert "body" not in two


def test_nothing_is_cut_where_no_terminal_reads(cli: Program) -> None:
    with cli.broker() as broker:
        fill(broker, "orders", [b"x" * 50_000])
    assert b"x" * 50_000 in cli.ok("peek", "orders").out.encode()
    code, shown = cli.on_terminal("peek", "orders")
    assert (code, "x" * 50_000 in shown) == (0, False)


def test_what_no_one_reads_is_given_back(cli: Program) -> None:
    with cli.broker() as broker:
        fill(broker, "orders", [b"x" * 100_000] * 3)
    read, write = os.pipe()
    os.close(read)
    with cli.start("receive", "orders", "-n", "3", stdout=write) as process:
        os.close(write)
        _, err = process.communicate()
    assert (process.returncode, err) == (141, b"")
    with cli.broker() as broker:
        messages = broker.peek("orders", 3)
    assert [(m.state, m.delivery_count) for m in messages] == [(MessageState.ACTIVE, 0)] * 3


def test_a_reader_that_stops_early(cli: Program) -> None:
    with cli.broker() as broker:
        fill(broker, "orders", [b"x" * 1000] * 1000)
    for json_option in ([], ["--json"]):
        with cli.start("peek", "orders", "-n", "1000", *json_option) as process:
            assert process.stdout is not None
            assert process.stdout.readline()
            process.stdout.close()
            assert process.stderr is not None
            assert process.stderr.read() == b""
        assert process.returncode == 141


def test_one_message_by_its_number(cli: Program) -> None:
    with cli.broker() as broker:
        fill(broker, "orders", [b"1", b"2", b"3", b"4"])
    assert [m["body"] for m in cli.ok("receive", "orders", "--number", "3", "--complete", "--json").json] == [
        "3"
    ]
    cli.ok("receive", "orders", "--number", "2", "--dead-letter", "--reason", "broken", "--json")
    with cli.broker() as broker, broker.receiver("orders") as receiver:
        receiver.defer(receiver.receive_by_number(4))
    refused = cli.fails(4, "message_not_receivable", "receive", "orders", "--number", "1", "--number", "4")
    assert "message 4 of 'orders' is deferred" in refused
    assert "it is a dead letter" in cli.fails(3, "message_not_found", "receive", "orders", "--number", "2")
    (dead,) = cli.ok("receive", "orders;poison", "--number", "2", "--complete", "--json").json
    assert dead["dead_letter_reason"] == "broken"
    cli.fails(2, "usage", "receive", "orders", "--number", "1", "--wait", "1s")
    assert _left(cli) == [b"1"]


@pytest.mark.parametrize("form", ["--jsonl", "--json"])
def test_what_peek_prints_can_be_sent_again(cli: Program, form: str) -> None:
    sent = Message(b"\xff", message_id="a", subject="s", properties={"n": 5, "raw": b"\x00"}, time_to_live=60)
    with cli.broker() as broker:
        fill(broker, "orders", [b"1", b'{"x": 1}'])
        broker.sender("orders").send(sent)
        broker.create_queue("copy")
    peeked = cli.ok("peek", "orders", form).out
    assert cli.ok("send", "copy", "--jsonl", stdin=peeked).out == "sent 3 messages to copy: 1 to 3\n"
    with cli.broker() as broker:
        old, new = ([as_message(m) for m in broker.peek(queue, 9)] for queue in ("orders", "copy"))
    assert new == old


def test_a_delayed_message_says_why(cli: Program) -> None:
    with cli.broker() as broker:
        fill(broker, "orders", [b"1", b"2"])
    cli.ok("receive", "orders", "--abandon", "--error", "ValueError: not today", "--delay", "1h")
    first, second = cli.ok("peek", "orders", "--json").json
    assert (first["error"], second["error"]) == ("ValueError: not today", None)
    assert "ValueError: not today" in cli.ok("peek", "orders").out


def test_columns_and_csv(cli: Program) -> None:
    with cli.broker() as broker:
        fill(broker, "orders", [b'say "hi", twice'])
    assert cli.ok("peek", "orders", "--csv", "--columns", "body,sequence").out == (
        'body,sequence\n"say ""hi"", twice",1\n'
    )
    assert cli.ok("queue", "list", "--columns", "dead-letters,queue").out.splitlines()[0] == (
        "dead letters  queue"
    )
    assert "there are: sequence, state" in cli.fails(2, "usage", "peek", "orders", "--columns", "nothing")
    cli.fails(2, "usage", "peek", "orders", "--csv", "--jsonl")
    assert json.loads(cli.ok("queue", "list", "--jsonl").out.splitlines()[-1])["path"] == "orders"
