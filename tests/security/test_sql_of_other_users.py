"""Nobody else's functions and operators answer the store's SQL, and who can hold its locks is said."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta

import psycopg
import pytest
from servers import Server, new_database

import lazaretto
from lazaretto import NEXT_SESSION, Broker, Message, QueueOptions, StoreForeign
from lazaretto.cli.doctor_command import examine
from lazaretto.store.postgres.commits import WRITING

#: What the store's statements call, as another user would answer it: with the same arguments, or ones that
#: fit better. Each fails when it is run.
FUNCTIONS = [
    "unnest(bigint[]) RETURNS SETOF bigint",
    "unnest(text[]) RETURNS SETOF text",
    "unnest(bytea[]) RETURNS SETOF bytea",
    "array_position(bigint[], bigint) RETURNS int",
    "cardinality(bigint[]) RETURNS int",
    "array_agg(bigint) RETURNS bigint[]",
    "min(bigint) RETURNS bigint",
    "max(bigint) RETURNS bigint",
    "sum(bigint) RETURNS bigint",
    "count(bigint) RETURNS bigint",
    "count(text) RETURNS bigint",
    "json_agg(bigint) RETURNS json",
    "string_agg(text, text) RETURNS text",
    "generate_series(bigint, bigint) RETURNS SETOF bigint",
    "concat_ws(text, text) RETURNS text",
    "length(text) RETURNS int",
    "lower(text) RETURNS text",
    "substr(text, int, int) RETURNS text",
    "md5(text) RETURNS text",
    "encode(bytea, text) RETURNS text",
    "hashtextextended(text, bigint) RETURNS bigint",
    "nextval(regclass) RETURNS bigint",
    "clock_timestamp() RETURNS timestamptz",
    "set_config(text, text, boolean) RETURNS text",
    "current_setting(text) RETURNS text",
    "pg_notify(text, text) RETURNS void",
    "pg_backend_pid() RETURNS int",
    "pg_postmaster_start_time() RETURNS timestamptz",
    "pg_advisory_xact_lock(bigint) RETURNS void",
    "pg_advisory_xact_lock(int, int) RETURNS void",
    "pg_advisory_xact_lock_shared(bigint) RETURNS void",
    "pg_try_advisory_lock(bigint) RETURNS boolean",
    "pg_current_xact_id_if_assigned() RETURNS xid8",
    "pg_logical_emit_message(boolean, text, text) RETURNS pg_lsn",
]
TYPES = ("bigint", "int", "text", "boolean", "bytea")
OPERATORS = {
    "=": "boolean",
    "<>": "boolean",
    "<": "boolean",
    ">": "boolean",
    "<=": "boolean",
    ">=": "boolean",
}
SUMS = ("+", "-", "*", "/", "&", "|")


def plant(connection: psycopg.Connection[tuple[object, ...]]) -> None:
    """Put functions and operators into `public` that fail, and say so, whoever runs them."""

    def function(head: str, arguments: str, name: str) -> None:
        returns = re.sub(r".* RETURNS ", "", head)
        body = f"BEGIN RAISE EXCEPTION 'planted {name.replace('%', '%%')}'; END"
        connection.execute(
            f"CREATE FUNCTION public.{arguments} RETURNS {returns} LANGUAGE plpgsql AS $${body}$$".encode()
        )

    for number, head in enumerate(FUNCTIONS):
        function(head, head.partition(" RETURNS ")[0], str(number))
    pairs = [(sign, kind, result) for sign, result in OPERATORS.items() for kind in TYPES]
    pairs += [(sign, kind, kind) for sign in SUMS for kind in ("bigint", "int")]
    for number, (sign, kind, result) in enumerate(pairs):
        function(f"x RETURNS {result}", f"planted_{number}({kind}, {kind})", sign)
        connection.execute(
            f"CREATE OPERATOR public.{sign} "
            f"(LEFTARG = {kind}, RIGHTARG = {kind}, FUNCTION = public.planted_{number})".encode()
        )


@pytest.fixture
def database(postgres: Server) -> Iterator[str]:
    """Return a database of its own, whose users look into `public` before `pg_catalog`."""
    with new_database(postgres.url) as url:
        name = url.rpartition("/")[2]
        with psycopg.connect(url, autocommit=True) as connection:
            path = f"ALTER DATABASE {name} SET search_path TO public, pg_catalog"
            connection.execute(path.encode())
            connection.execute("CREATE TABLE public.orders (id bigint, lazaretto_kind text)")
            plant(connection)
        yield url


def use_everything(broker: Broker) -> None:
    """Use what has statements of its own, several messages at a time."""
    broker.create_queue("work", QueueOptions(lock_duration=timedelta(seconds=30)))
    broker.create_queue("sessions", QueueOptions(requires_session=True))
    broker.create_queue("strict", QueueOptions(duplicate_detection_window=timedelta(minutes=1)))
    broker.create_topic("news")
    broker.create_subscription("news", "all")
    broker.sender("news").send(Message(b"news"))
    broker.sender("strict").send([Message(b"x", message_id="one"), Message(b"x", message_id="one")])
    broker.sender("sessions").send([Message(b"x", session_id="a"), Message(b"y", session_id="a")])
    broker.sender("work").send([Message(b"%d" % n, properties={"n": n}) for n in range(6)])
    session = broker.receiver("sessions", session=NEXT_SESSION)
    session.accept_session()
    session.complete(session.receive())
    session.close()
    receiver = broker.receiver("work")
    messages = receiver.receive(4)
    receiver.complete(messages[0])
    receiver.abandon(messages[1], error=ValueError("no"))
    receiver.dead_letter(messages[2], reason="Bad", description="it was")
    receiver.defer(messages[3])
    broker.resubmit("work", messages[2].sequence_number)
    assert broker.queue("work").counts.total == 5
    assert broker.check() == []
    assert broker.facts()["postgresql"]
    assert [event.kind for event in broker.events()]


def test_functions_and_operators_planted_in_public(database: str) -> None:
    with lazaretto.connect(database) as broker:
        use_everything(broker)


def test_a_users_own_sql_keeps_its_own_path(database: str) -> None:
    with lazaretto.connect(database) as broker:
        broker.create_queue("work")
        for body in (b"1", b"2"):
            with broker.transaction() as tx:
                assert tx.execute("SHOW search_path").fetchone() == ('public, pg_catalog, "lazaretto"',)
                tx.execute("INSERT INTO orders VALUES (1, 'x')")
                with pytest.raises(psycopg.errors.RaiseException, match="planted"):
                    tx.execute("SELECT unnest(ARRAY[1::bigint])")
                # Whatever it sets is not for the statements behind it, or for what comes next.
                tx.execute("SET search_path TO public")
                tx.execute("SET statement_timeout TO '20s'")
                tx.send("work", Message(body))
        assert [m.body for m in broker.receiver("work").receive(2)] == [b"1", b"2"]
        assert broker.check() == []
    with psycopg.connect(database) as connection:
        rows = connection.execute("SELECT pg_catalog.count(*) FROM public.orders").fetchone()
        assert rows == (2,)


def test_a_schema_with_functions_of_somebody_elses(postgres: Server) -> None:
    with new_database(postgres.url) as url, psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA lazaretto")
        connection.execute(
            "CREATE FUNCTION lazaretto.unnest(bigint[]) RETURNS bigint LANGUAGE sql AS 'SELECT 1'"
        )
        with pytest.raises(StoreForeign, match="belongs to another application"):
            lazaretto.connect(url)


def test_doctor_names_who_else_may_take_the_stores_locks(postgres: Server) -> None:
    with new_database(postgres.url) as url, psycopg.connect(url, autocommit=True) as operator:
        stranger = f"stranger_{url.rpartition('_')[2]}"
        operator.execute(f"CREATE ROLE {stranger} LOGIN".encode())
        try:
            with lazaretto.connect(url, timeout=0.3) as broker:
                broker.create_queue("work")
                report = examine(broker)
                assert report["ok"]
                assert any(stranger in notice for notice in report["notices"])
                theirs = re.sub(r"//\w+@", f"//{stranger}@", url)
                with psycopg.connect(theirs, autocommit=True) as neighbour:
                    # Its number shows in pg_locks while the store commits.
                    number = broker._store._number  # type: ignore[attr-defined]
                    neighbour.execute("SELECT pg_advisory_lock(%s::int, %s::int)", (WRITING, number))
                    with pytest.raises(lazaretto.StoreBusy):
                        broker.create_queue("more")
                    problems = examine(broker)["problems"]
                    assert [problem for problem in problems if stranger in problem]
                broker.create_queue("more")
                name = url.rpartition("/")[2]
                operator.execute(f"REVOKE CONNECT ON DATABASE {name} FROM PUBLIC".encode())
                assert not any(stranger in notice for notice in examine(broker)["notices"])
        finally:
            operator.execute(f"DROP ROLE {stranger}".encode())
