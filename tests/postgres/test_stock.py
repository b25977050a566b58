"""Stores that go from one test to the next: the next one meets a store as new."""

from __future__ import annotations

import psycopg
from psycopg import sql
from servers import Server
from stock import used_store

import lazaretto
from lazaretto import ManualClock, Message, QueueOptions


def _use(url: str) -> tuple[list[str], int]:
    """Fill a store; return the queues that were there, and the number that its first message got."""
    with lazaretto.connect(url, clock=ManualClock()) as broker:
        queues = [queue.path for queue in broker.queues()]
        broker.create_queue("work", QueueOptions(lock_duration=30))
        number = broker.sender("work").send(Message(b"1"))
        broker.set_breaker("work", "open", actor="ana")
        return queues, number


def test_a_used_store_is_handed_on_as_new(postgres: Server) -> None:
    with used_store(postgres.url) as first:
        begun = _use(first)
    with used_store(postgres.url) as second:
        assert second == first
        assert _use(second) == begun


def test_a_store_whose_tables_were_changed_is_not_handed_on(postgres: Server) -> None:
    with used_store(postgres.url) as first:
        schema = first.partition("schema=")[2].partition("&")[0]
        change = sql.SQL("ALTER TABLE {} ADD COLUMN mine integer")
        with psycopg.connect(postgres.url, autocommit=True) as connection:
            connection.execute(change.format(sql.Identifier(schema, "lazaretto_meta")))
    with used_store(postgres.url) as second:
        assert second != first
