"""How queries are planned where the tables seem empty, as they do when all that is in them is gone."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator

import lazaretto
from lazaretto import Message
from lazaretto.store.postgres.connection import PgConnection
from lazaretto.store.postgres.dialect import place, queries_in
from lazaretto.store.postgres.store import PostgresStore
from lazaretto.store.sql.query_files import with_rows

#: What people ask now and then, of all messages.
_OF_ALL = {"select_problems"}
#: Indexes of states in which few messages are, whatever is asked of them.
_OF_FEW = {"lazaretto_messages_ready", "lazaretto_messages_suspect"}

_SCAN = re.compile(r"Scan(?: Backward)?(?: using (\w+))? on lazaretto_(?:messages|bodies|shared_bodies)\b")


def _unbounded(plan: list[str]) -> list[str]:
    """Return the scans of messages or bodies that go through a whole index, or the table."""
    found = []
    for number, line in enumerate(plan):
        scan = _SCAN.search(line)
        if scan is None:
            continue
        end = next((n for n, later in enumerate(plan) if n > number and "->" in later), len(plan))
        bounded = any("Index Cond" in detail for detail in plan[number + 1 : end])
        if not bounded and scan[1] not in _OF_FEW:
            found.append(line.strip())
    return found


#: What the index scan of dead letters must look up, so that it does not read the whole index.
_FIRST = {
    "lazaretto_dead_letters_alike": "(fingerprint ",
    "lazaretto_dead_letters_by_id": "(message_id ",
    "lazaretto_dead_letters_by_time": "((key >> 44) ",
}
_LETTERS = re.compile(r"Scan(?: Backward)? using (\w+) on lazaretto_dead_letters\b")


def _plans(url: str, tables: Iterable[str], dead: int = 0) -> Iterator[tuple[str, list[str]]]:
    """Yield each query with its plan where some tables seem to have next to nothing in them.

    `dead`: how many dead letters there are, of which the server has no statistics.
    """
    with lazaretto.connect(url) as broker:
        broker.create_queue("q")
        broker.sender("q").send(Message(b"x"))
        store = broker._store
        assert isinstance(store, PostgresStore)
        connection = PgConnection(store._conninfo)
        connection.script(
            f'ALTER TABLE "{store.schema}".lazaretto_dead_letters SET (autovacuum_enabled = off)'
        )
        with broker.receiver("q") as receiver:
            for _ in range(dead // 500):
                broker.sender("q").send([Message(b"x")] * 500)
                receiver.dead_letter(receiver.receive(500), reason="none")
        for table in tables:
            connection.script(f'VACUUM ANALYZE "{store.schema}".lazaretto_{table}')
        for name, query in queries_in(store.schema).items():
            sql = query.sql
            if not sql.startswith(("SELECT", "WITH", "UPDATE", "DELETE")):
                continue
            statement, names = place(with_rows(sql, 2))
            count = len(names)
            connection.script(f"PREPARE of_a_test AS {statement}")
            nulls = f"({', '.join(['NULL'] * count)})" if count else ""
            plan = [line for (line,) in connection.script(f"EXPLAIN (COSTS OFF) EXECUTE of_a_test{nulls}")]
            connection.script("DEALLOCATE of_a_test")
            yield name, plan
        connection.close()


def test_no_query_of_messages_reads_all_of_them(url: str) -> None:
    unbounded = {}
    for name, plan in _plans(url, ("messages", "bodies", "shared_bodies")):
        if scans := _unbounded(plan):
            unbounded[name] = scans
    assert {name: scans for name, scans in unbounded.items() if name not in _OF_ALL} == {}


def test_no_query_of_dead_letters_reads_a_whole_index_for_each(url: str) -> None:
    """Nothing is known of a new store's letters: an index of those that wait seems to be small."""
    wrong = {}
    for name, plan in _plans(url, (), dead=5_000):
        for number, line in enumerate(plan):
            scan = _LETTERS.search(line)
            if scan is None or scan[1] not in _FIRST:
                continue
            details = itertools.takewhile(lambda more: "->" not in more, plan[number + 1 :])
            cond = next((more for more in details if "Index Cond" in more), "")
            if "key = " in cond and _FIRST[scan[1]] not in cond:
                wrong[name] = [line.strip(), cond.strip()]
    assert wrong == {}


def test_a_breaker_and_what_is_advised_read_the_latest_failures_alone(url: str) -> None:
    plans = dict(_plans(url, ("attempts",)))
    for name in ("select_refundable", "sum_client_failures"):
        assert any("lazaretto_attempts_by_time" in line for line in plans[name]), plans[name]
