"""A server's URL: what it names, and that no error shows what stands in it."""

from __future__ import annotations

import traceback

import pytest
from psycopg.conninfo import conninfo_to_dict

import lazaretto
from lazaretto.cli import main
from lazaretto.errors import InvalidOption
from lazaretto.spark.source_options import parse
from lazaretto.store.addresses import copy_store, migrate_store, without_password
from lazaretto.store.postgres.address import parse_address

SECRET = "hunter2"

MALFORMED = [
    "postgresql://u:hunter2%@h/db",
    "postgresql://u:%zzhunter2@h/db",
    "postgresql://u:%00hunter2@h/db",
    "postgresql://u:%ffhunter2@h/db",
    "postgresql://u:x@hunter2@h/db",
    "postgresql://u:hunter2@x@h/db",
    "postgresql://u:x/hunter2@h/db",
    "postgresql://u:hunter2/x@h/db",
    "postgresql://u:1/hunter2@h/db",
    "postgresql://u:hunter2?x@h/db",
    "postgresql://u:x?hunter2@h/db",
    "postgresql://u:x?hunter2=1@h/db",
    "postgresql://u:hunter2@[::1/db",
    "postgresql://u:hunter2@[nonsense]/db",
    "postgresql://u:hunter2@[::1]x/db",
    "postgresql://u:hunter2@::1]/db",
    "postgresql://u:hunter2@::1/db",
    "postgresql://u:hunter2@h:port/db",
    "postgresql://u:hunter2@h:0/db",
    "postgresql://u:hunter2@h:99999/db",
    "postgresql://u:hunter2@h/db/more",
    "postgresql://u:hunter2@h/db%",
    "postgresql://u:hunter2@h/db?nonsense=1",
    "postgresql://u:hunter2@h/db?passwort=hunter2",
    "postgresql://u:x@h/db?password=hunter2&nonsense=1",
    "postgresql://u:x@h/db?password=hunter2%",
    "postgresql://u:x@h/db?password=hunter2=",
    "postgresql://u:x@h/db?password=x&hunter2",
    "postgresql://u:hunter2@h/db?ssl=hunter2",
    "postgresql://u:hunter2@h/db?schema=NO",
    "postgresql://u:hunter2@h/db\n",
    "postgresql://u:\x00hunter2@h/db",
    "postgresql:/u:hunter2@h/db",
    "postgresql:u:hunter2@h/db",
    "postgres:/u:hunter2@h/db?x=1",
    " postgresql://u:hunter2@h/db",
    "POSTGRESQL://u:hunter2@h/db",
    "postgresq://u:hunter2@h/db",
    "psql://u:hunter2@h/db",
]


@pytest.mark.parametrize("url", MALFORMED)
def test_a_malformed_url_is_refused_and_not_shown(url: str) -> None:
    for use in (
        lazaretto.connect,
        migrate_store,
        lambda url: copy_store(url, "never-made.db"),
        lambda url: lazaretto.connect(parse({"store": url, "queue": "q"}).url()),
    ):
        with pytest.raises(InvalidOption) as caught:
            use(url)
        shown = "".join(traceback.format_exception(caught.value, chain=True))
        # The lines of source that a traceback shows are of this repository.
        assert SECRET not in str(caught.value)
        assert SECRET not in shown


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://", {}),
        ("postgres://ada@h", {"user": "ada", "host": "h"}),
        (
            "postgresql://ada:p%40s%2Fs%25:x@h:5433/queues",
            {"user": "ada", "password": "p@s/s%:x", "host": "h", "port": "5433", "dbname": "queues"},
        ),
        ("postgresql://[::1]:5433/q", {"host": "::1", "port": "5433", "dbname": "q"}),
        ("postgresql://[fe80::1%25eth0]", {"host": "fe80::1%eth0"}),
        ("postgresql://a:1,b:2/q", {"host": "a,b", "port": "1,2", "dbname": "q"}),
        ("postgresql://a,b:2/q", {"host": "a,b", "port": ",2", "dbname": "q"}),
        ("postgresql://%2Fvar%2Frun/q", {"host": "/var/run", "dbname": "q"}),
        ("postgresql:///q?host=/tmp&user=ada", {"host": "/tmp", "user": "ada", "dbname": "q"}),
        ("postgresql://h?ssl=true", {"host": "h", "sslmode": "require"}),
        ("postgresql://h/q?options=-csearch_path%3Dx", {"options": "-csearch_path=x"}),
        (
            "postgresql://h/q?connect_timeout=3&keepalives_idle=60",
            {"connect_timeout": 3, "keepalives_idle": 60},
        ),
    ],
)
def test_what_a_url_names(url: str, expected: dict[str, object]) -> None:
    conninfo, schema = parse_address(url)
    found = conninfo_to_dict(conninfo)
    assert schema == "lazaretto"
    assert {name: found.get(name) for name in expected} == {name: str(v) for name, v in expected.items()}


def test_the_schema() -> None:
    conninfo, schema = parse_address("postgresql://h/q?schema=shop&sslmode=require")
    assert schema == "shop"
    assert "schema" not in conninfo


def test_a_server_that_vanishes_is_noticed_unless_the_url_says_otherwise() -> None:
    given = conninfo_to_dict(parse_address("postgresql://h?tcp_user_timeout=1").conninfo)
    assert given["tcp_user_timeout"] == "1"
    assert given["keepalives_idle"] == "5"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:hunter2@h/db",
        "postgresql://u:hunter2@x@h/db",
        "postgresql://u:x@hunter2@h/db",
        "postgresql://u:x/hunter2@h/db",
        "postgresql://h/db?password=hunter2&sslmode=require",
        "postgresql://h/db?sslmode=require&pass%77ord=hunter2",
        "postgresql://h/db?oauth_client_secret=hunter2",
        "postgresql://h/db?scram_client_key=hunter2&scram_server_key=hunter2",
    ],
)
def test_a_url_is_shown_without_its_password(url: str) -> None:
    assert SECRET not in without_password(url)


@pytest.mark.parametrize("command", [["queue", "list"], ["doctor", "--json"], ["store", "migrate"]])
@pytest.mark.parametrize("url", [MALFORMED[0], MALFORMED[5], MALFORMED[12], MALFORMED[22]])
def test_the_command_refuses_it_without_a_traceback(
    url: str, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--store", url, *command]) == 2
    out, err = capsys.readouterr()
    assert "error[invalid_option]: expected a store's URL" in err
    assert SECRET not in out + err
    assert "Traceback" not in err
