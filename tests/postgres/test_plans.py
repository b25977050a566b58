"""How queries are planned where the tables seem empty, as they do when all that is in them is gone."""

from __future__ import annotations

import re

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


def test_no_query_of_messages_reads_all_of_them(url: str) -> None:
    unbounded = {}
    with lazaretto.connect(url) as broker:
        broker.create_queue("q")
        broker.sender("q").send(Message(b"x"))
        store = broker._store
        assert isinstance(store, PostgresStore)
        connection = PgConnection(store._conninfo)
        for table in ("messages", "bodies", "shared_bodies"):
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
            if scans := _unbounded(plan):
                unbounded[name] = scans
        connection.close()
    assert {name: scans for name, scans in unbounded.items() if name not in _OF_ALL} == {}
