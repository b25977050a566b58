"""The pure parts of the drill: its journal, its counts, its definitions and its table."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.drill import measures
from bench.drill.drills import HELD, Outage, drills
from bench.drill.evidence import Evidence, Gone
from bench.drill.journal import Event, Line, Reader, Writer, alive, decode, encode, running
from bench.drill.report import report
from bench.drill.run import Outcome
from bench.drill.systems.contract import Drilled
from bench.drill.work import Kind, Message, Task, dependency_path, journal_path
from bench.rounds import names

_ROOT = Path(__file__).parents[2]
_GOOD = (Message(1, Kind.GOOD), Message(2, Kind.GOOD), Message(3, Kind.GOOD))
_WITH_KILLER = (*_GOOD, Message(4, Kind.KILLER))


def line(event: Event, number: int, time: float = 0.0, attempt: int = 1, pid: int = 7) -> Line:
    return Line(event, number, pid, time, attempt)


def handled(number: int, time: float = 0.0, attempt: int = 1) -> list[Line]:
    return [line(Event.START, number, time, attempt), line(Event.DONE, number, time, attempt)]


def killed(number: int, attempt: int = 1) -> list[Line]:
    return [line(Event.START, number, attempt=attempt), line(Event.DYING, number, attempt=attempt)]


class TestJournal:
    def test_a_line_is_read_back_as_it_was_written(self) -> None:
        original = Line(Event.DYING, 12, 345, 6.5, 3)
        assert decode(encode(original)) == original

    def test_a_line_of_an_unknown_event_is_refused(self) -> None:
        with pytest.raises(ValueError, match="'slept' is not a valid Event"):
            decode(b"slept 1 2 3.0 4")

    def test_a_reader_gives_each_line_once_and_waits_for_the_rest_of_a_torn_one(self, tmp_path: Path) -> None:
        path = tmp_path / "journal"
        reader = Reader(path)
        assert reader.read() == []
        whole = encode(line(Event.START, 1)) + encode(line(Event.DONE, 1))
        path.write_bytes(whole[:-4])
        assert [one.event for one in reader.read()] == [Event.START]
        path.write_bytes(whole)
        assert [one.event for one in reader.read()] == [Event.DONE]
        assert reader.read() == []

    def test_a_writer_says_who_and_when(self, tmp_path: Path) -> None:
        Writer(tmp_path / "journal").add(Event.START, 5, 2)
        (said,) = Reader(tmp_path / "journal").read()
        assert (said.number, said.pid, said.attempt) == (5, os.getpid(), 2)

    def test_a_task_runs_until_its_last_line_is_an_end(self) -> None:
        lines = [*handled(1), line(Event.START, 2, pid=8), line(Event.START, 3), line(Event.FAILED, 3)]
        assert list(running(lines)) == [(2, 8)]

    def test_a_process_that_ended_is_not_alive_even_before_it_is_collected(self) -> None:
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        assert alive(child.pid)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not alive(child.pid)
        child.communicate()
        assert not alive(child.pid)


class TestTask:
    def events(self, home: Path) -> list[Event]:
        return [one.event for one in Reader(journal_path(home)).read()]

    def test_a_good_message_is_done(self, tmp_path: Path) -> None:
        Task(tmp_path)(1, "good", 0.0, 1)
        assert self.events(tmp_path) == [Event.START, Event.DONE]

    def test_a_dependent_message_raises_while_the_dependency_is_down(self, tmp_path: Path) -> None:
        task = Task(tmp_path)
        dependency_path(tmp_path).touch()
        with pytest.raises(ConnectionError):
            task(1, "dependent", 0.0, 1)
        dependency_path(tmp_path).unlink()
        task(1, "dependent", 0.0, 2)
        assert self.events(tmp_path) == [Event.START, Event.FAILED, Event.START, Event.DONE]

    def test_a_killer_ends_its_process_after_saying_so(self, tmp_path: Path) -> None:
        code = (
            f"from pathlib import Path; from bench.drill.work import Task; "
            f"Task(Path({str(tmp_path)!r}))(1, 'killer', 0.0, 1)"
        )
        ended = subprocess.run([sys.executable, "-c", code], check=False, cwd=_ROOT)
        assert ended.returncode == -9
        assert self.events(tmp_path) == [Event.START, Event.DYING]


class TestEvidence:
    def test_messages_not_done_are_set_aside_or_lost_or_still_there(self) -> None:
        evidence = Evidence(
            messages=(*_WITH_KILLER, Message(5, Kind.GOOD)),
            lines=handled(1),
            set_aside=frozenset({2}),
            waiting=frozenset({3, 4}),
        )
        gone = evidence.gone(evidence.innocents)
        assert gone == Gone(set_aside=frozenset({2}), lost=frozenset({5}), unsettled=frozenset({3}))
        assert evidence.gone(evidence.villains).unsettled == {4}

    def test_a_message_that_was_done_is_not_gone_whatever_the_system_says(self) -> None:
        evidence = Evidence(
            messages=_GOOD, lines=[*handled(1), *handled(2), *handled(3)], set_aside=frozenset({2})
        )
        assert measures.INNOCENTS_GONE.read(evidence) == "0"

    def test_innocents_started_twice_are_counted_once_and_villains_not(self) -> None:
        lines = [*handled(1), line(Event.START, 2), *handled(2), *handled(2), *killed(4), *killed(4)]
        assert Evidence(messages=_WITH_KILLER, lines=lines).repeated() == 1

    def test_attempts_beyond_the_starts_were_charged_for_nothing(self) -> None:
        # The first was counted four times and started twice; the second was given its attempts back.
        lines = [
            line(Event.START, 1),
            *handled(1, attempt=4),
            line(Event.START, 2),
            line(Event.START, 2),
            *handled(2),
        ]
        assert Evidence(messages=_GOOD, lines=lines).charged_unstarted() == 2

    def test_charged_attempts_are_those_that_failed_as_the_system_counts(self) -> None:
        failed = [line(Event.START, 1), line(Event.FAILED, 1), *handled(1, attempt=2)]
        given_back = [line(Event.START, 2), line(Event.FAILED, 2), *handled(2, attempt=1)]
        dead = [line(Event.START, 3, attempt=6), line(Event.FAILED, 3, attempt=6)]
        evidence = Evidence(messages=_GOOD, lines=[*failed, *given_back, *dead], set_aside=frozenset({3}))
        assert evidence.charged() == 1 + 0 + 6
        assert measures.FAILED_TRIES.read(evidence) == "3"

    def test_seconds_count_from_the_first_start_to_the_last_first_completion(self) -> None:
        lines = [*handled(1, 10.0), *handled(2, 11.0), *handled(3, 13.5), *handled(1, 20.0)]
        evidence = Evidence(messages=_GOOD, lines=lines)
        assert measures.INNOCENTS_DONE.read(evidence) == "3.50"

    def test_what_was_not_done_in_time_is_said(self) -> None:
        waiting = Evidence(messages=_GOOD, lines=handled(1), waiting=frozenset({2, 3}), limit=60.0)
        assert measures.INNOCENTS_DONE.read(waiting) == "1 of 3 in 60 s"
        lost = Evidence(messages=_GOOD, lines=handled(1))
        assert measures.INNOCENTS_DONE.read(lost) == "1 of 3"

    def test_nothing_at_all_is_no_figure(self) -> None:
        assert measures.INNOCENTS_DONE.read(Evidence(messages=_GOOD, lines=())) == "0 of 3"


class TestVerdict:
    lines = (*killed(4), *killed(4, 2), *killed(4, 3))

    def test_deaths_until_the_killer_is_set_aside(self) -> None:
        evidence = Evidence(messages=_WITH_KILLER, lines=self.lines, set_aside=frozenset({4}))
        assert measures.DEATHS.read(evidence) == "3"

    def test_a_killer_that_still_waits_was_never_set_aside(self) -> None:
        evidence = Evidence(messages=_WITH_KILLER, lines=self.lines, waiting=frozenset({4}))
        assert measures.DEATHS.read(evidence) == "never in 60 s (3 deaths)"

    def test_a_lost_killer_was_not_set_aside(self) -> None:
        evidence = Evidence(messages=_WITH_KILLER, lines=killed(4))
        assert measures.DEATHS.read(evidence) == "never: 1 lost (1 death)"

    def test_one_of_several_set_aside_is_not_all(self) -> None:
        messages = (*_WITH_KILLER, Message(5, Kind.KILLER))
        evidence = Evidence(
            messages=messages, lines=self.lines, set_aside=frozenset({4}), waiting=frozenset({5}), limit=9.0
        )
        assert measures.DEATHS.read(evidence) == "never 1 of 2 in 9 s (3 deaths)"


class TestOutage:
    def evidence(self, lines: list[Line], waiting: frozenset[int] = frozenset()) -> Evidence:
        messages = Outage(seconds=1.0, before=0.5, after=1.5, every=0.1).messages()
        return Evidence(messages=messages, lines=lines, outage=(100.5, 101.5), rate=10.0, waiting=waiting)

    def test_an_outage_offers_one_message_each_interval(self) -> None:
        assert len(Outage(seconds=20.0, before=2.0, after=5.0, every=0.005).messages()) == 5_400

    def test_full_rate_begins_where_nine_in_ten_follow_within_a_second(self) -> None:
        slow = [one for n in range(1, 5) for one in handled(n, 101.5 + n)]
        fast = [one for n in range(5, 20) for one in handled(n, 110.0 + n / 10)]
        assert self.evidence([*slow, *fast]).full_rate() == pytest.approx(9.0)
        assert self.evidence(slow).full_rate() is None

    def test_what_flowed_before_the_outage_does_not_count(self) -> None:
        early = [one for n in range(1, 20) for one in handled(n, 100.0 + n / 100)]
        assert self.evidence(early).full_rate() is None

    def test_the_backlog_is_done_with_the_last_message_that_had_failed(self) -> None:
        failed = [line(Event.START, 1, 101.0), line(Event.FAILED, 1, 101.0)]
        flow = [one for n in range(1, 31) for one in handled(n, 104.0 if n == 1 else 109.0)]
        assert self.evidence([*failed, *flow]).drained() == pytest.approx(2.5)

    def test_a_backlog_that_waits_is_not_done(self) -> None:
        evidence = self.evidence(handled(1, 100.0), waiting=frozenset(range(2, 31)))
        assert measures.DRAINED.read(evidence) == "29 waiting after 58 s"


class TestDrills:
    def test_each_is_found_by_its_key_and_measures_something_once(self) -> None:
        for key, drill in drills().items():
            assert drill.key == key
            assert len({measure.title for measure in drill.measures}) == len(drill.measures) > 0
            numbers = [message.number for message in drill.messages]
            assert numbers == list(range(1, len(numbers) + 1))

    def test_killers_stand_among_as_many_as_a_worker_holds(self) -> None:
        for key, count in (("a", 1), ("a3", 3)):
            messages = drills()[key].messages
            assert len(messages) == HELD
            assert sum(message.kind is Kind.KILLER for message in messages) == count
            assert messages[0].kind is messages[-1].kind is Kind.GOOD

    def test_a_longer_outage_gets_more_time(self) -> None:
        assert drills(60.0)["e"].limit == drills(20.0)["e"].limit + 40.0

    def test_unknown_names_are_refused_with_those_there_are(self) -> None:
        read = names(["huey", "celery"])
        assert read("huey, celery") == ["huey", "celery"]
        with pytest.raises(argparse.ArgumentTypeError, match="expected some of huey, celery, got 'celry'"):
            read("celry")


class _One(Drilled):
    name, packages, settings = "one", ("pytest",), "all of them"


class _Two(Drilled):
    name, packages = "two", ("pytest",)
    settings = "some of them"


class _Three(Drilled):
    name, packages = "three", ("no_such_package",)


class TestReport:
    def report(self) -> list[str]:
        drill = drills()["a"]
        figures = {measure.title: "five" for measure in drill.measures}
        outcomes = [
            Outcome(system="one", drill="a", figures=figures),
            Outcome(system="two", drill="a", error="RuntimeError: no server"),
        ]
        systems: list[Any] = [_One, _Two, _Three]
        return report("a machine", [drill], systems, outcomes).splitlines()

    def test_a_drill_has_a_row_and_each_measure_one_under_it(self) -> None:
        heads, _, title, *rows = [row for row in self.report() if row.startswith("|")]
        assert heads == "| | wanted | one | two | three |"
        assert title.endswith("| |  | RuntimeError: no server | not run |")
        assert [row.split(" | ")[2:] for row in rows] == [["five", "–", "– |"]] * len(drills()["a"].measures)

    def test_every_row_has_the_same_columns(self) -> None:
        assert {row.count("|") for row in self.report() if row.startswith("|")} == {6}

    def test_settings_say_what_is_left_out(self) -> None:
        said = self.report()
        assert f"- `one` {pytest.__version__}: all of them" in said
        assert "- `three`: no_such_package is not installed, left out" in said
