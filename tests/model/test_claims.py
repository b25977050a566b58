"""Whether claims lock ranges or each message, nobody can tell, whatever is done in whatever order."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers import Server
from stock import used_store

from lazaretto.engine.claims import end_claims, settle_claims
from lazaretto.store.sql import commit_context

from .claimants import run

_SOAK = os.environ.get("LAZARETTO_SOAK") == "1"


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep threads from writing counts in between.

    After the commit of another broker, one no longer goes by the numbers that it remembers, but by those in
    the file, which keeps one for all partitions: then a partition may leave numbers out. When that happens
    must not depend on the clock.
    """
    monkeypatch.setattr(commit_context, "_RATES_EVERY", 3_600.0)


@pytest.fixture(autouse=True)
def _in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have small claims removed like large ones: by later commits, a few messages each."""
    monkeypatch.setattr(settle_claims, "_LARGE", 1)
    monkeypatch.setattr(end_claims, "_AT_ONCE", 2)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    log = logging.getLogger("lazaretto.messages")
    before = log.level
    log.setLevel(logging.CRITICAL)
    yield
    log.setLevel(before)


def test_on_files(tmp_path: Path) -> None:
    ranges = 0
    for seed in range(500 if _SOAK else 16):
        home = tmp_path / f"{seed}"
        home.mkdir()
        done = run(seed, 60, str(home / "locked.db"), str(home / "ranged.db"))
        ranges += done.ranges
        for file in home.iterdir():
            file.unlink()
    assert ranges > 20


def test_on_a_server(postgres: Server) -> None:
    ranges = 0
    for seed in range(1_000, 1_030 if _SOAK else 1_002):
        with used_store(postgres.url) as locked, used_store(postgres.url) as ranged:
            ranges += run(seed, 60, locked, ranged).ranges
    assert ranges > 0
