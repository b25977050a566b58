"""A folder of results belongs to one consumer, also if several come at the same time."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lazaretto import InvalidOption
from lazaretto.spark import parquet_results
from lazaretto.spark.parquet_results import ParquetResults
from lazaretto.spark.results import ResultOwner

ONE, OTHER = (ResultOwner("shop.db", "orders", name, number) for number, name in enumerate(("one", "other")))


def begun(folder: Path, owner: ResultOwner) -> str:
    """Return whose the folder is for an owner that begins to use it."""
    try:
        ParquetResults(str(folder)).owned_by(owner)
    except InvalidOption as error:
        return "another" if "belong to consumer" in str(error) else "nobody"
    return "own"


def test_of_two_that_come_at_once_one_has_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = parquet_results._names
    together = threading.Barrier(2, timeout=60)
    looks: Counter[int] = Counter()

    def look(*where: Any) -> list[str]:
        # Both have looked before either writes, and both have written before either looks again.
        looks[threading.get_ident()] += 1
        if looks[threading.get_ident()] > 3:
            return names(*where)
        together.wait()
        found = names(*where)
        together.wait()
        return found

    monkeypatch.setattr(parquet_results, "_names", look)
    with ThreadPoolExecutor(2) as threads:
        found = sorted(threads.map(begun, [tmp_path, tmp_path], [ONE, OTHER]))
    assert found == ["another", "own"]
    assert len(list((tmp_path / "_lazaretto").iterdir())) == 1


def test_of_many_that_come_at_once_one_has_the_folder(tmp_path: Path) -> None:
    start = threading.Barrier(4, timeout=60)

    def begin(folder: Path, owner: ResultOwner) -> str:
        start.wait()
        return begun(folder, owner)

    owners = [ResultOwner("shop.db", "orders", str(number), number) for number in range(4)]
    with ThreadPoolExecutor(4) as threads:
        for turn in range(20):
            found = sorted(threads.map(begin, [tmp_path / str(turn)] * 4, owners))
            assert found == ["another", "another", "another", "own"]


def test_one_that_gives_way_leaves_the_folder_to_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ParquetResults(str(tmp_path)).owned_by(OTHER)
    names = parquet_results._names

    def look(*where: Any) -> list[str]:
        found = names(*where)
        monkeypatch.setattr(parquet_results, "_names", names)
        (tmp_path / "_lazaretto" / f"{OTHER.key}.json").unlink()
        return found

    monkeypatch.setattr(parquet_results, "_names", look)
    assert begun(tmp_path, ONE) == "own"
    assert begun(tmp_path, OTHER) == "another"


def test_a_file_that_names_no_owner_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_results, "_PAUSE", 0.0)
    (tmp_path / "_lazaretto").mkdir()
    (tmp_path / "_lazaretto" / f"{OTHER.key}.json").touch()
    assert begun(tmp_path, ONE) == "nobody"
