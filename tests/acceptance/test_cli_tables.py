"""Listings on terminals of any width: numbers and names are whole, texts end in an ellipsis."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cli_program import Program, fill
from rich.cells import cell_len

from lazaretto import Message, PoisonPolicy

WIDTHS = (60, 80, 120, 200)
_OWN = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
LONG_ERROR = "unknown item 東京タワー 🗼 in an order of three lamps, two desks and one unicorn of gold"
BODY = '{"item": "灯り 💡", "note": "' + "and so on " * 30 + '"}'


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Program:
    program = Program(tmp_path_factory.mktemp("tables") / "store.db")
    with program.broker() as broker:
        fill(broker, "orders", [b"x"] * 123_456)
        fill(broker, "letters", [BODY.encode()] * 3, policy=PoisonPolicy(receive_retry_count=0))
        with broker.receiver("letters") as receiver:
            receiver.abandon(receiver.receive(2), error=f"LookupError: {LONG_ERROR}")
        broker.create_queue("wide")
        wide = [Message(b"{}", message_id=name) for name in ("a", "注文 💡", "é" * 9)]
        broker.sender("wide").send(wide)
    return program


def _shown(cli: Program, width: int, *arguments: str, plain: bool = False) -> str:
    cli.environment["COLUMNS"] = str(width)
    cli.environment.pop("NO_COLOR", None)
    if plain:
        cli.environment["NO_COLOR"] = "1"
    code, shown = cli.on_terminal(*arguments)
    assert code == 0, shown
    assert plain is ("\x1b" not in shown)
    return _OWN.sub("", shown).replace("\r\n", "\n")


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith("not shown here: ")]


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("width", WIDTHS)
def test_queues_with_large_numbers(cli: Program, width: int, plain: bool) -> None:
    lines = _lines(_shown(cli, width, "queue", "list", plain=plain))
    assert max(map(cell_len, lines)) <= width
    assert [line.split()[:3] for line in lines if "orders" in line] == [["orders", "active", "123456"]]
    heading, *rows = lines
    # Numbers of different length end in one column.
    end = heading.index("  active") + len("  active")
    assert {row[:end].split()[-1] for row in rows} >= {"123456", "3", "1"}
    assert ("deferred" in heading) is (width >= 120)


@pytest.mark.parametrize("width", WIDTHS)
def test_columns_stand_behind_wide_characters(cli: Program, width: int) -> None:
    lines = _lines(_shown(cli, width, "peek", "wide"))
    assert max(map(cell_len, lines)) <= width
    assert {cell_len(line.partition("{}")[0]) for line in lines[1:]} == {cell_len(lines[0]) - len("body")}


@pytest.mark.parametrize("width", WIDTHS)
def test_bodies_are_shown(cli: Program, width: int) -> None:
    lines = _lines(_shown(cli, width, "peek", "letters", "-n", "9"))
    assert max(map(cell_len, lines)) <= width
    assert lines[0].split()[-1] == "body"
    (row,) = lines[1:]
    assert '{"item": "灯り 💡"' in row
    assert row.endswith("…")
    assert row.split()[:2] == ["3", "active"]


@pytest.mark.parametrize("width", WIDTHS)
def test_dead_letters_say_why(cli: Program, width: int) -> None:
    lines = _lines(_shown(cli, width, "dead-letter", "list", "letters"))
    assert max(map(cell_len, lines)) <= width
    assert len(lines) == 3
    for row in lines[1:]:
        assert "MaxDeliveryCountExceeded" in row
        assert "unknown item 東京" in row


@pytest.mark.parametrize("width", WIDTHS)
def test_groups_are_whole(cli: Program, width: int) -> None:
    heading, row = _lines(_shown(cli, width, "dead-letter", "groups", "letters"))
    assert cell_len(row) <= width
    assert row.split()[:3] == ["2", "MaxDeliveryCountExceeded", "LookupError"]
    assert heading.split()[-1] == "example"
    assert row.split()[-1] == "1"


def test_what_is_left_out_is_named(cli: Program) -> None:
    assert "not shown here: dead-lettered, deliveries, message id" in _shown(
        cli, 80, "dead-letter", "list", "letters"
    )
    assert "not shown" not in _shown(cli, 400, "dead-letter", "list", "letters")


def test_what_fits_in_no_way_is_printed_as_fields(tmp_path: Path) -> None:
    cli = Program(tmp_path / "store.db")
    name = "a-very-long-name-of-a-queue-" * 3 + "1"
    with cli.broker() as broker:
        broker.create_queue(name)
        broker.sender(name).send([Message(b"x")] * 12)
    shown = _shown(cli, 60, "queue", "list", plain=True)
    assert re.search(rf"^queue +{name}$", shown, re.MULTILINE)
    assert re.search(r"^active +12$", shown, re.MULTILINE)


def test_nothing_is_left_out_where_no_terminal_reads(cli: Program) -> None:
    cli.environment["COLUMNS"] = "60"
    assert len(cli.ok("queue", "list").out.splitlines()[0]) > 80
    assert BODY in cli.ok("peek", "letters", "-n", "9").out
