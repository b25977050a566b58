"""The chart of letters by hour: every bar as high as its letters, every part as long as its share."""

from __future__ import annotations

import random
from datetime import UTC, datetime

from lazaretto.cli.triage_commands import MARKS, REST, draw_hours, fill_bar

NOW = datetime(2026, 11, 23, 1, 30, tzinfo=UTC)


def test_a_bar_is_as_high_as_its_letters_and_its_parts_as_long_as_their_share() -> None:
    r = random.Random(19)
    for _ in range(2_000):
        counts = [r.choice((0, 1, r.randint(0, 20), r.randint(0, 10**9))) for _ in range(r.randint(1, 9))]
        total = sum(counts)
        most = max(1, total + r.choice((0, r.randint(0, 10**9))))
        cells = fill_bar(counts, most)
        assert cells == sorted(cells)
        if not total:
            assert cells == []
            continue
        assert len(cells) == max(1, round(total * 10 / most)) <= 10
        for index, count in enumerate(counts):
            assert abs(cells.count(index) - count * len(cells) / total) < 1


def test_causes_are_stacked_in_the_hours_they_came_in() -> None:
    lines = draw_hours([[0] * 22 + [30, 60], [0] * 23 + [30], [9] + [0] * 23], NOW)
    rows = [line.partition("│")[2].ljust(48) for line in lines[:10]]
    bars = ["".join(row[2 * hour] for row in rows).strip() for hour in range(24)]
    assert bars[23] == "▓" * 3 + "█" * 7
    assert bars[22] == "█" * 3
    assert bars[0] == "▒"
    assert not any(bars[1:22])
    assert lines[0].startswith("90 │")
    assert lines[10] == " 0 └" + "─" * 48
    assert lines[11].split() == ["02:00", "08:00", "14:00", "20:00"]
    assert max(map(len, lines)) <= 80


def test_what_has_no_mark_of_its_own_shares_one() -> None:
    many = [[10] * 24 for _ in range(len(MARKS))] + [[10_000_000] * 24] * 193
    shown = "\n".join(draw_hours(many, NOW))
    assert REST in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_without_letters_there_is_no_chart() -> None:
    assert draw_hours([], NOW) == []
    assert draw_hours([[0] * 24], NOW) == []
