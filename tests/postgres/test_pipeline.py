"""Statements that are sent ahead as a transaction of their own: all of them take effect, or none."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from servers import Server

from lazaretto.store.postgres.connection import PgConnection


@pytest.fixture
def connection(postgres: Server) -> Iterator[PgConnection]:
    found = PgConnection(postgres.url)
    # Gone with the connection.
    found.script("CREATE TEMP TABLE kept (id BIGINT UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    yield found
    found.close()


def kept(connection: PgConnection) -> list[int]:
    return [number for (number,) in connection.execute("SELECT id FROM kept ORDER BY id").fetchall()]


def add(connection: PgConnection, number: object) -> None:
    connection.send("INSERT INTO kept VALUES ($1)", (number,))


def test_it_commits_where_it_is_settled(connection: PgConnection) -> None:
    connection.send_ahead(whole=True)
    add(connection, 1)
    add(connection, 2)
    assert connection.commit_ahead() is None
    connection.settle()
    assert kept(connection) == [1, 2]
    assert not connection.in_transaction


@pytest.mark.parametrize("ahead", [False, True])
def test_one_error_undoes_all(connection: PgConnection, ahead: bool) -> None:
    connection.send_ahead(whole=True, more=ahead)
    add(connection, 1)
    connection.send("SELECT 1 / 0")
    done = connection.commit_ahead()
    if ahead:
        connection.send("SELECT 'behind'")
    with pytest.raises(psycopg.errors.DivisionByZero):
        connection.settle()
    assert done is None or done.result is None
    connection.roll_back()
    assert kept(connection) == []


@pytest.mark.parametrize("ahead", [False, True])
def test_an_error_of_the_commit_itself(connection: PgConnection, ahead: bool) -> None:
    connection.send_ahead(whole=True, more=ahead)
    add(connection, 1)
    add(connection, 1)
    done = connection.commit_ahead()
    if ahead:
        connection.send("SELECT 'behind'")
    with pytest.raises(psycopg.errors.UniqueViolation):
        connection.settle()
    assert done is None or done.result is None
    connection.roll_back()
    assert kept(connection) == []


def test_what_is_committed_stays_if_what_follows_fails(connection: PgConnection) -> None:
    connection.send_ahead(whole=True, more=True)
    add(connection, 1)
    done = connection.commit_ahead()
    connection.send("SELECT 1 / 0")
    with pytest.raises(psycopg.errors.DivisionByZero):
        connection.settle()
    assert done is not None
    assert done.result is not None
    connection.roll_back()
    assert kept(connection) == [1]


def test_what_is_given_up_in_the_middle_is_undone(connection: PgConnection) -> None:
    connection.send_ahead(whole=True)
    add(connection, 1)
    with pytest.raises(UnicodeEncodeError):
        add(connection, "\ud800")
    connection.roll_back()
    assert kept(connection) == []
    assert not connection.in_transaction
    assert not connection.broken
