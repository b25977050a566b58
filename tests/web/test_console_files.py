"""What the console ships: scripts of others as they were published, templates that escape everything."""

from __future__ import annotations

import hashlib
import re
import tomllib
from datetime import UTC, datetime
from pathlib import Path

import pytest

import lazaretto.web.console
from lazaretto.cli import main
from lazaretto.commands import COMMANDS
from lazaretto.errors import InvalidOption
from lazaretto.model.message_history import Moment
from lazaretto.model.messages import Attempt
from lazaretto.model.policy import UNLIMITED, Backoff, Outcome, PoisonPolicy
from lazaretto.web.console.bodies import indent, show_body
from lazaretto.web.console.forms import command_of
from lazaretto.web.console.letters import folded_moments
from lazaretto.web.console.queues import attempts_of

HERE = Path(lazaretto.web.console.__file__).parent
NOW = datetime(2026, 11, 23, tzinfo=UTC)


def test_scripts_of_others_are_what_they_were() -> None:
    table = tomllib.loads((HERE / "static" / "VENDORED.toml").read_text())
    assert table
    for vendored in table.values():
        content = (HERE / "static" / vendored["file"]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == vendored["sha256"]
        assert (HERE / "static" / vendored["licence_file"]).exists()


def test_templates_escape_everything_and_have_no_script_or_style_of_their_own() -> None:
    templates = sorted((HERE / "templates").glob("*.html"))
    assert len(templates) > 10
    for template in templates:
        text = template.read_text()
        assert not re.search(r"\|\s*safe\b|autoescape|\bstyle=|\bon[a-z]+=|hx-on|javascript:|<style", text), (
            template.name
        )
        assert not re.search(r"<script(?! src=)", text), template.name
        assert not re.search(r"(?:src|href|action)=\"https?:", text), template.name


def test_command_lines_name_commands_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    lines = set[tuple[str, ...]]()
    for template in (HERE / "templates").glob("*.html"):
        for words in re.findall(r'cli\(((?:"[a-z-]+"(?:, )?)+)', template.read_text()):
            lines.add(tuple(re.findall(r'"([a-z-]+)"', words)))
    assert len(lines) > 15
    assert [line for line in sorted(lines) if main([*line, "--help"]) != 0] == []
    assert main(["no-such-command", "--help"]) != 0
    capsys.readouterr()


@pytest.mark.parametrize(
    "text",
    [
        '{"a":1.10,"b":[1E400,{}],"c":[],"d":"{[,:\\"]}"}',
        "[" * 300 + "]" * 300,
        "9" * 5000,
        '"\\u202e"',
    ],
    ids=["values", "deep", "long number", "text"],
)
def test_json_keeps_each_of_its_characters(text: str) -> None:
    assert re.sub(r"\s", "", indent(text)) == re.sub(r"\s", "", text)


def test_bodies_that_are_no_json_are_text_or_hex() -> None:
    assert show_body(b"plain \xc3\xa9").kind == "text"
    assert show_body(b"\xff\x00").text.startswith("000000  ff 00")
    large = show_body("é".encode() * 50_000)
    assert (large.kind, large.size, len(large.text.encode()) + large.left) == ("text", 100_000, 100_000)
    assert show_body(b"[" * 100_000).kind == "text"


def test_forms_become_commands() -> None:
    made = command_of(
        COMMANDS["resubmit"], {"path": ["q"], "sequence_numbers:list": ["1, 2"], "csrf": ["x"]}, NOW
    )
    assert made == COMMANDS["resubmit"](path="q", sequence_numbers=(1, 2))
    until = command_of(
        COMMANDS["acknowledge_cause"], {"path": ["q"], "number": ["3"], "until:hours": ["8"]}, NOW
    )
    assert until.until == datetime(2026, 11, 23, 8, tzinfo=UTC)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "form",
    [
        {"path": ["q"]},
        {"path": ["q", "r"], "sequence_numbers:list": ["1"]},
        {"path": ["q"], "sequence_numbers:list": ["x"]},
        {"path": ["q"], "sequence_numbers:json": ["{"]},
        {"path": ["q"], "sequence_numbers:eval": ["1"]},
        {"path": ["q"], "sequence_numbers:list": ["1"], "more": ["1"]},
    ],
    ids=["missing", "twice", "no number", "no JSON", "unknown form", "unknown field"],
)
def test_other_forms_are_refused(form: dict[str, list[str]]) -> None:
    with pytest.raises(InvalidOption):
        command_of(COMMANDS["resubmit"], form, NOW)


@pytest.mark.parametrize(
    "form",
    [
        {"rule": ["x"], "rule.name": ["y"]},
        {"rule.name": ["y"], "rule": ["x"]},
        {"rule.name": ["y"], "rule.name.b": ["z"]},
        {"rule.name.b": ["z"], "rule.name": ["y"]},
        {"rule:json": ["[1]"], "rule.name": ["y"]},
        {"rule:json": ["{}"], "rule": ["x"]},
    ],
)
def test_a_field_as_a_whole_and_in_parts(form: dict[str, list[str]]) -> None:
    """It is refused in either order, and no part is lost."""
    with pytest.raises(InvalidOption, match="once, as a whole or in parts"):
        command_of(COMMANDS["add_rule"], {"topic": ["t"], "subscription": ["s"], **form}, NOW)


def test_parts_of_a_field() -> None:
    form = {"rule.filter.kind": ["sql"], "rule.name": ["n"], "rule.filter.expression": ["a = 1"]}
    made = command_of(COMMANDS["add_rule"], {"topic": ["t"], "subscription": ["s"], **form}, NOW)
    assert made == COMMANDS["add_rule"](
        topic="t", subscription="s", rule={"name": "n", "filter": {"kind": "sql", "expression": "a = 1"}}
    )


def test_equal_attempts_in_a_row_are_told_as_one() -> None:
    now = datetime(2026, 11, 25, tzinfo=UTC)

    def moment(what: str, message: str | None = None) -> Moment:
        attempt = None
        if message is not None:
            attempt = Attempt(1, None, now, None, Outcome.FAILED, "ValueError", message)
        return Moment(now, "q", 1, what, attempt)

    sent, dead, other = moment("sent"), moment("dead-lettered"), moment("failed", "other")
    same = [moment("failed", "no") for _ in range(9)]
    told = folded_moments([sent, *same, other, dead], 3)
    assert told == [(sent, 0), (same[0], 0), (None, 7), (same[-1], 0), (other, 0), (dead, 0)]
    assert folded_moments([sent, *same[:3], dead], 3) == [(one, 0) for one in (sent, *same[:3], dead)]


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        (PoisonPolicy(receive_retry_count=0, max_retry_cycles=0), "once"),
        (PoisonPolicy(receive_retry_count=9, max_retry_cycles=0), "10 times"),
        (PoisonPolicy.wcf(), "18 times: 6 in each of 3 cycles, over 1 h"),
        (PoisonPolicy(receive_retry_count=UNLIMITED), "as often as it takes"),
        (
            PoisonPolicy(
                receive_retry_count=0,
                max_retry_cycles=10**8,
                retry_cycle_delay=Backoff(initial=1.0, maximum=2.0),
            ),
            "100,000,001 times: 1 in each of 100,000,001 cycles, over 2315 d",
        ),
    ],
)
def test_how_often_a_message_is_tried(policy: PoisonPolicy, told: str) -> None:
    assert attempts_of(policy) == told
