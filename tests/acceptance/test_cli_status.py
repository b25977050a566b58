"""`lazaretto status --watch` on a terminal: it follows the store, fits, and ends with Control-C."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_program import Program, Terminal, fill, set_aside
from prometheus_client.parser import text_string_to_metric_families

_CLEAR = "\x1b[H\x1b[2J"


@pytest.fixture
def cli(tmp_path: Path) -> Program:
    program = Program(tmp_path / "store.db")
    with program.broker() as broker:
        set_aside(broker, "shop/orders", [b"no 1", b"no 2", b"no 3"])
        fill(broker, "shop/a-queue-with-a-name-that-is-far-longer-than-others/invoices", [b"1"] * 5)
    return program


def read_until(terminal: Terminal, met: Callable[[str], bool]) -> str:
    """Read until what was shown is as wanted, and return it."""
    end = time.monotonic() + 120
    while not met(shown := terminal.shown.decode()):
        assert time.monotonic() < end, shown
        assert terminal.read(), shown
    return shown


@pytest.mark.parametrize("columns", [80, 120])
def test_it_follows_the_store_until_control_c(cli: Program, columns: int) -> None:
    with cli.terminal("status", "--watch", columns=columns) as terminal:
        read_until(terminal, lambda shown: "3 queues: 0 stand still, 1 with other trouble" in shown)
        with cli.broker() as broker:
            broker.set_breaker("shop/orders", "open")
        shown = read_until(terminal, lambda shown: "3 queues: 1 stands still, 0 with other" in shown)
        terminal.type(b"\x03")
        assert terminal.wait() == 130
    assert shown.count(_CLEAR) >= 2
    for frame in shown.split(_CLEAR)[1:]:
        lines = re.sub(r"\x1b\[[0-9;]*m", "", frame).splitlines()
        assert max(map(len, lines)) <= columns
        assert any("shop/orders" in line for line in lines)
    assert "Traceback" not in terminal.shown.decode()
    assert terminal.shown.decode().count("^C") <= 1


def test_lines_of_json_for_a_program(cli: Program) -> None:
    with cli.terminal("status", "--watch", "--json", columns=80) as terminal:
        read_until(terminal, lambda shown: shown.count("\n") >= 2)
        terminal.type(b"\x03")
        assert terminal.wait() == 130
    assert _CLEAR not in terminal.shown.decode()


def test_metrics_as_json_are_those_of_the_text(cli: Program) -> None:
    told = {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(cli.ok("metrics").out)
        for sample in family.samples
    }
    found = {
        (one["name"], frozenset(one["labels"].items())): one["value"]
        for one in cli.ok("metrics", "--json").json
    }
    assert found.keys() == told.keys()
    assert (
        found["lazaretto_queue_messages", frozenset({"queue": "shop/orders", "state": "dead_letter"}.items())]
        == 3
    )
