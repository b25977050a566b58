"""Servers, databases, roles and environments that set something otherwise than a store relies on."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from servers import Server, free_port, new_database, wait_for

import lazaretto
from lazaretto import Broker, Message, QueueOptions, ServerUnsuitable
from lazaretto.store.postgres.connection import PgConnection

#: Names the program; the machine's own is taken otherwise.
PGBOUNCER = "LAZARETTO_TEST_PGBOUNCER"

#: All of these are legal, and set by somebody somewhere.
SETTINGS = {
    "default_transaction_isolation": "serializable",
    "default_transaction_read_only": "on",
    "default_transaction_deferrable": "on",
    "search_path": "",
    "timezone": "Asia/Kathmandu",
    "datestyle": "SQL, DMY",
    "intervalstyle": "sql_standard",
    "bytea_output": "escape",
    "extra_float_digits": "-15",
    "standard_conforming_strings": "off",
    "transform_null_equals": "on",
    "array_nulls": "off",
    "statement_timeout": "20s",
    "lock_timeout": "1ms",
    "idle_in_transaction_session_timeout": "20s",
    "plan_cache_mode": "force_custom_plan",
    "client_encoding": "LATIN1",
}


@pytest.fixture
def database(postgres: Server) -> Iterator[str]:
    with new_database(postgres.url, "ENCODING 'UTF8'") as url:
        yield url


def set_all(url: str, how: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Set everything otherwise in one of the ways there are; return the store's address."""
    database = url.rpartition("/")[2]
    words = "".join(f" -c {name}={value.replace(' ', chr(92) + ' ')}" for name, value in SETTINGS.items())
    if how == "database":
        with psycopg.connect(url, autocommit=True) as connection:
            for name, value in SETTINGS.items():
                connection.execute(f"ALTER DATABASE {database} SET {name} TO '{value}'".encode())
    elif how == "environment":
        monkeypatch.setenv("PGOPTIONS", words)
        monkeypatch.setenv("PGCLIENTENCODING", "SQL_ASCII")
        monkeypatch.setenv("PGTZ", "Asia/Kathmandu")
    else:
        return f"{url}?options={quote(words)}&client_encoding=LATIN1"
    return url


def send_and_settle(broker: Broker, own: bool) -> None:
    """Send, fail and complete from several threads, whose commits meet."""
    errors: list[BaseException] = []

    def work(part: str) -> None:
        try:
            sender, receiver = broker.sender("work"), broker.receiver("work")
            for number in range(10):
                sender.send(Message(b"\\\x00\xff", message_id=f"żółć {part} {number}"))
                found = receiver.receive(2)
                receiver.complete(found[:1])
                receiver.abandon(found[1:])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(part,)) for part in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert errors == []


@pytest.mark.parametrize("how", ["database", "environment", "address"])
def test_settings_that_say_otherwise(database: str, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    url = set_all(database, how, monkeypatch)
    with lazaretto.connect(url) as one, lazaretto.connect(url) as other:
        one.create_queue("work", QueueOptions(requires_session=False))
        threads = [threading.Thread(target=send_and_settle, args=(broker, True)) for broker in (one, other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        left = [message.message_id for message in one.peek("work", 99)]
        assert all(name.startswith("żółć ") for name in left)
        assert one.check() == []
        # What a user's own SQL is set to is the user's.
        with one.transaction() as tx:
            assert tx.execute("SHOW timezone").fetchone() == ("Asia/Kathmandu",)
            tx.execute("CREATE TABLE lazaretto.own (at timestamptz)")
            tx.execute("INSERT INTO lazaretto.own VALUES (now())")
            tx.send("work", Message(b"", message_id="with SQL"))
        assert "with SQL" in [message.message_id for message in one.peek("work", 99)]


def test_every_setting_is_the_stores_own(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(database, "database", monkeypatch)
    connection = PgConnection(database, 5000, schema="lazaretto")
    try:
        for name, value in SETTINGS.items():
            ((found,),) = connection.script(f"SHOW {name}")
            assert found.lower() != value.lower(), name
        assert connection.script("SHOW search_path") == [("pg_catalog, lazaretto, pg_temp",)]
    finally:
        connection.close()


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_database_that_cannot_keep_every_text(postgres: Server, encoding: str) -> None:
    with new_database(postgres.url, f"ENCODING '{encoding}' LOCALE 'C'") as url:
        with pytest.raises(ServerUnsuitable, match=rf"expected a database in the encoding UTF8.*{encoding}"):
            lazaretto.connect(url)
        with psycopg.connect(url) as connection:
            found = connection.execute(
                "SELECT count(*) FROM pg_namespace WHERE nspname = 'lazaretto'"
            ).fetchone()
            assert found == (0,)


# -- poolers --------------------------------------------------------------------------------------


@contextlib.contextmanager
def pooled(url: str, mode: str) -> Iterator[str]:
    """Give the address of PgBouncer before a database."""
    program = os.environ.get(PGBOUNCER) or shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip(f"PgBouncer is not here: install Debian's pgbouncer, or name the program in {PGBOUNCER}")
    parts = psycopg.conninfo.conninfo_to_dict(url)
    folder, port = Path(tempfile.mkdtemp(prefix="lazaretto-pooler-")), free_port()
    # It refuses to run as root, and reads its settings as somebody else.
    folder.chmod(0o755)
    settings = {
        "listen_addr": "127.0.0.1",
        "listen_port": port,
        "unix_socket_dir": "",
        "auth_type": "any",
        "pool_mode": mode,
        "ignore_startup_parameters": "extra_float_digits",
    }
    target = f"host={parts['host']} port={parts['port']} user={parts['user']}"
    file = folder / "pgbouncer.ini"
    lines = ["[databases]", f"* = {target}", "[pgbouncer]", *(f"{n} = {v}" for n, v in settings.items())]
    file.write_text("\n".join(lines) + "\n")
    file.chmod(0o644)
    command = [program, "-q", str(file)]
    who: dict[str, Any] = {}
    if os.geteuid() == 0:
        who = {"user": "nobody", "group": pwd.getpwnam("nobody").pw_gid, "extra_groups": []}
    process: subprocess.Popen[bytes] = subprocess.Popen(command, stderr=subprocess.DEVNULL, **who)
    try:
        address = f"postgresql://{parts['user']}@127.0.0.1:{port}/{parts['dbname']}"
        wait_for(address)
        yield address
    finally:
        process.terminate()
        process.wait(120)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("mode", ["transaction", "statement"])
def test_a_pooler_that_shares_sessions_out(database: str, mode: str) -> None:
    with pooled(database, mode) as url:
        with pytest.raises(ServerUnsuitable, match="pool_mode = session"):
            lazaretto.connect(url)
        with pytest.raises(ServerUnsuitable, match="pool_mode = session"):
            lazaretto.connect(url, create=False)


def test_a_pooler_of_sessions(database: str) -> None:
    with pooled(database, "session") as url, lazaretto.connect(url) as broker:
        broker.create_queue("work")
        with broker.transaction() as tx:
            tx.execute("SELECT 1")
            tx.send("work", Message(b"x"))
        assert [message.body for message in broker.receiver("work").receive()] == [b"x"]
