"""Differences by worker: planted bad hosts are found, and what merely came and went is not."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence

import pytest

from lazaretto.model.triage.differences import find_by_worker
from lazaretto.model.triage.features import Features, Group

from .planted import features, good

SOAK = bool(os.environ.get("LAZARETTO_SOAK"))
SEEDS = range(20 if SOAK else 4)
HOUR = 3_600_000_000
HOSTS = "ant", "bee", "cat"


def rows(
    r: random.Random, number: int, hosts: Sequence[str], first: float = 0, last: float = 24
) -> list[Features]:
    """Return orders that some of the hosts tried between two hours."""
    return [
        Features(features(one), worker=f"{r.choice(hosts)}:7:ab", when=round(r.uniform(first, last) * HOUR))
        for one in good(r, number)
    ]


def found(failing: list[Features], well: list[Features], leave_out: Sequence[str] = ()) -> str | None:
    by_worker = find_by_worker(Group(failing), Group(well), leave_out=leave_out)
    return by_worker.found.filter if by_worker else None


@pytest.mark.parametrize(("failing", "well"), [(20, 600), (100, 300), (500, 2_000)])
def test_a_bad_host_is_found_exactly(failing: int, well: int) -> None:
    for seed in SEEDS:
        r = random.Random(seed)
        others = rows(r, well, HOSTS if seed % 2 else ("ant", "cat"))
        bad = rows(r, failing, ["bee"], 6, 18)
        # Below 40 pairs, a third of the good ones may have come from there by chance.
        if failing > 20 or not seed % 2:
            assert found(bad, others) == "sys.Host = 'bee'", seed
        assert found(bad, others, ["sys.host"]) in (None, "sys.Worker = 'bee:7:ab'")
        assert found(bad, others, ["sys.host", "sys.worker"]) is None


def test_two_bad_hosts_of_five_are_found_and_one_bad_process() -> None:
    r = random.Random(7)
    five = [*HOSTS, "dog", "elk"]
    assert found(rows(r, 300, ["bee", "elk"]), rows(r, 600, five)) == "sys.Host IN ('bee', 'elk')"
    bad = [Features(row, worker="bee:8:cd", when=row.when) for row in rows(r, 300, ["bee"])]
    assert found(bad, rows(r, 600, HOSTS)) == "sys.Worker = 'bee:8:cd'"


def test_hosts_that_work_alike_explain_nothing() -> None:
    wrong = []
    for seed in range(100 if SOAK else 20):
        r = random.Random(100 + seed)
        number, well = r.choice([20, 100, 400]), r.choice([200, 800])
        hosts = [f"host-{n}" for n in range(r.choice([2, 3, 10]))]
        if told := found(rows(r, number, hosts), rows(r, well, hosts)):
            wrong.append((seed, told))
    assert len(wrong) <= 0.01 * (100 if SOAK else 20), wrong


def test_hosts_of_another_time_explain_nothing() -> None:
    r = random.Random(8)
    old = rows(r, 1_500, ["old-1", "old-2"], 0, 100)
    new = rows(r, 200, ["new-1", "new-2"], 100, 110)
    # Nearly all letters are of the new hosts, while nearly all good messages are of the old ones.
    failing = rows(r, 480, ["new-1", "new-2"], 100.5, 109) + rows(r, 20, ["old-1", "old-2"], 0, 100)
    assert found(failing, old + new) is None
    # Those that began within an hour are compared with what was done from then on.
    assert (
        found(rows(r, 400, ["new-1", "new-2"], 100.5, 102), rows(r, 400, ["old-1"], 99, 100.5) + new) is None
    )


def test_what_is_not_known_explains_nothing() -> None:
    r = random.Random(9)
    bad, others = rows(r, 300, ["bee"]), rows(r, 600, ["ant", "cat"])
    nobody = [Features(row, when=row.when) for row in others]
    assert found(bad, nobody) is None
    assert found(bad, [Features(row, worker=row.worker) for row in others]) is None
    assert found([Features(row, when=row.when) for row in bad], others) is None
    assert found(bad, []) is None
    assert found([], others) is None
    # Those of an older version among the others are left out.
    assert found(bad, others + nobody) == "sys.Host = 'bee'"


def test_a_difference_in_the_messages_is_not_one_by_worker() -> None:
    r = random.Random(10)
    bad = [
        Features({**row, "body.region": "moon"}, worker=row.worker, when=row.when)
        for row in rows(r, 300, HOSTS)
    ]
    assert found(bad, rows(r, 900, HOSTS)) is None
