"""Upgrades in two halves: older workers go on through the first, and are told so after the second."""

from __future__ import annotations

import psycopg
import pytest
from servers import Server

import lazaretto
from lazaretto import Message, StoreNotFound, StoreOutdated, StoreTooNew
from lazaretto.store.addresses import migrate_store
from lazaretto.store.postgres import schema
from lazaretto.store.sql.query_files import Migration

STEPS = schema.migrations()
NEWEST = STEPS[-1].number
BEFORE = Migration(NEWEST + 1, "ALTER TABLE lazaretto_messages ADD COLUMN note TEXT;")
AFTER = Migration(NEWEST + 2, "CREATE TABLE lazaretto_more (x BIGINT);", after=True)
LATER = Migration(NEWEST + 3, "ALTER TABLE lazaretto_more ADD COLUMN y BIGINT;")


def test_older_workers_go_on_until_the_second_half(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with lazaretto.connect(url) as old:
        old.create_queue("work")
        old.sender("work").send(Message(b"1"))
        monkeypatch.setattr(schema, "migrations", lambda: [*STEPS, BEFORE, AFTER])
        with lazaretto.connect(url) as new:
            assert new.facts()["schema"] == NEWEST + 1
            new.sender("work").send(Message(b"2"))
            # One that runs, and one that starts now.
            old.sender("work").send(Message(b"3"))
            monkeypatch.setattr(schema, "migrations", lambda: STEPS)
            with lazaretto.connect(url) as another:
                assert [m.body for m in another.receiver("work").receive(10)] == [b"1", b"2", b"3"]
            monkeypatch.setattr(schema, "migrations", lambda: [*STEPS, BEFORE, AFTER])
            assert migrate_store(url, after=True) == [NEWEST + 2]
            assert new.facts()["oldest_schema"] == NEWEST + 2
    assert migrate_store(url, after=True) == []
    monkeypatch.setattr(schema, "migrations", lambda: STEPS)
    with pytest.raises(StoreTooNew, match="upgrade Lazaretto here"):
        lazaretto.connect(url)


def test_a_version_left_out(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lazaretto.connect(url).close()
    monkeypatch.setattr(schema, "migrations", lambda: [*STEPS, BEFORE, AFTER, LATER])
    for again in (lambda: lazaretto.connect(url), lambda: migrate_store(url)):
        with pytest.raises(StoreOutdated, match="lazaretto store migrate --after"):
            again()
    assert migrate_store(url, after=True) == [NEWEST + 1, NEWEST + 2, NEWEST + 3]
    lazaretto.connect(url).close()


def test_one_that_fails_changes_nothing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lazaretto.connect(url).close()
    bad = Migration(NEWEST + 2, "CREATE TABLE lazaretto_bad (x BIGINT); SELECT 1 / 0;")
    monkeypatch.setattr(schema, "migrations", lambda: [*STEPS, BEFORE, bad])
    with pytest.raises(lazaretto.StoreError, match="division by zero"):
        lazaretto.connect(url)
    monkeypatch.setattr(schema, "migrations", lambda: STEPS)
    with lazaretto.connect(url) as broker:
        assert broker.facts()["schema"] == NEWEST
        assert broker.check() == []


def test_where_there_is_no_store(postgres: Server) -> None:
    with pytest.raises(StoreNotFound):
        migrate_store(f"{postgres.url}?schema=nowhere_at_all")
    with psycopg.connect(postgres.url) as connection:
        found = connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = 'nowhere_at_all'")
        assert found.fetchall() == []
