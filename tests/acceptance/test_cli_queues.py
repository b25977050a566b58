"""`lazaretto queue`, the choice of the store, help, and how errors end."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest
from cli_program import Program, fill

import lazaretto
from lazaretto import Backoff, Disposition, Growth, PoisonMessageError, PoisonPolicy, QueueOptions
from lazaretto.cli.exits import MEANINGS


@pytest.fixture
def cli(tmp_path: Path) -> Program:
    return Program(tmp_path / "store.db")


@pytest.fixture
def store(cli: Program) -> Program:
    """A program whose store is there, with the queue `orders`."""
    with cli.broker() as broker:
        broker.create_queue("orders")
    return cli


def test_create_with_every_option(cli: Program) -> None:
    created = cli.ok(
        *(
            "queue",
            "create",
            "shop/Orders",
            "--json",
            "--lock-duration",
            "2h",
            "--default-time-to-live",
            "1d",
        ),
        *("--dead-letter-on-expiration", "--requires-session", "--requires-duplicate-detection"),
        *("--duplicate-detection-window", "5m", "--max-message-size", "4096", "--receive-retry-count", "2"),
        *("--max-retry-cycles", "3", "--retry-cycle-delay", "1m30s", "--retry-cycle-growth", "exponential"),
        *("--retry-cycle-maximum", "1h", "--retry-cycle-jitter", "0.5", "--on-poison", "fault"),
        *("--on-invalid", "drop", "--max-worker-deaths", "4", "--disable-after-rollbacks", "5"),
        *("--dead-letter-policy-receive-retry-count", "1", "--dead-letter-policy-on-poison", "reject"),
        *("--dead-letter-policy-on-invalid", "drop", "--dead-letter-policy-max-worker-deaths", "2"),
    ).json
    assert (created["path"], created["status"], created["counts"]["total"]) == ("shop/Orders", "active", 0)
    assert created["options"]["policy"]["retry_cycle_delay"]["growth"] == "exponential"
    with cli.broker() as broker:
        assert broker.queue("shop/orders").options == QueueOptions(
            lock_duration=7200,
            default_time_to_live=86_400,
            dead_letter_on_expiration=True,
            requires_session=True,
            requires_duplicate_detection=True,
            duplicate_detection_window=300,
            max_message_size=4096,
            policy=PoisonPolicy(
                receive_retry_count=2,
                max_retry_cycles=3,
                retry_cycle_delay=Backoff(initial=90, growth=Growth.EXPONENTIAL, maximum=3600, jitter=0.5),
                on_poison=Disposition.FAULT,
                on_invalid=Disposition.DROP,
                max_worker_deaths=4,
                disable_after_rollbacks=5,
            ),
            dead_letter_policy=PoisonPolicy(
                receive_retry_count=1,
                on_poison=Disposition.REJECT,
                on_invalid=Disposition.DROP,
                max_worker_deaths=2,
            ),
        )


@pytest.mark.parametrize(
    ("arguments", "policy"),
    [
        (["service_bus"], PoisonPolicy.service_bus()),
        (["wcf"], PoisonPolicy.wcf()),
        (["wcf", "--on-poison", "reject"], PoisonPolicy.wcf(Disposition.REJECT)),
        (["wcf_msmq3", "--on-poison", "drop"], PoisonPolicy.wcf_msmq3(Disposition.DROP)),
        (["service_broker"], PoisonPolicy.service_broker()),
        (["nservicebus"], PoisonPolicy.nservicebus()),
        (
            ["nservicebus", "--retry-cycle-delay", "20", "--max-retry-cycles", "1"],
            PoisonPolicy(
                receive_retry_count=5,
                max_retry_cycles=1,
                retry_cycle_delay=Backoff(initial=20, growth=Growth.LINEAR),
            ),
        ),
    ],
)
def test_presets(cli: Program, arguments: list[str], policy: PoisonPolicy) -> None:
    cli.ok("queue", "create", "orders", "--preset", *arguments)
    with cli.broker() as broker:
        assert broker.queue("orders").options.policy == policy


def test_update_changes_only_what_is_given_and_none_takes_away(cli: Program) -> None:
    with cli.broker() as broker:
        policy = PoisonPolicy.nservicebus()
        broker.create_queue("orders", QueueOptions(lock_duration=30, default_time_to_live=5, policy=policy))
    told = cli.ok(
        *(
            "queue",
            "update",
            "orders",
            "--default-time-to-live",
            "none",
            "--receive-retry-count",
            "unlimited",
        ),
        *("--retry-cycle-jitter", "0.1"),
    )
    assert "default_time_to_live, policy" in told.out
    with cli.broker() as broker:
        options = broker.queue("orders").options
    assert (options.lock_duration, options.default_time_to_live) == (30, None)
    assert options.policy == PoisonPolicy(
        receive_retry_count=2_147_483_647,
        max_retry_cycles=3,
        retry_cycle_delay=Backoff(initial=10, growth=Growth.LINEAR, jitter=0.1),
    )


def test_list_and_show(cli: Program) -> None:
    with cli.broker() as broker:
        fill(broker, "orders", [b"1", b"2"])
        fill(broker, "a-queue-with-quite-a-long-name/and-a-second-part", [])
    listed = cli.ok("queue", "list").out.splitlines()
    assert [row.split()[:3] for row in listed] == [
        ["queue", "status", "active"],
        ["$system/deadletter", "active", "0"],
        ["a-queue-with-quite-a-long-name/and-a-second-part", "active", "0"],
        ["orders", "active", "2"],
    ]
    assert [queue["path"] for queue in cli.ok("queue", "list", "--json").json][2] == "orders"
    shown = cli.ok("queue", "show", "ORDERS").out
    assert shown.startswith("queue orders\n")
    assert "receive retry count      9\n" in shown
    assert "partitions                    1\n" in shown
    assert cli.ok("queue", "show", "orders", "--json").json["counts"]["active"] == 2


def test_delete_needs_yes_where_nobody_can_be_asked(store: Program) -> None:
    assert "--yes" in store.fails(2, "usage", "queue", "delete", "orders", stdin="y\n")
    assert store.ok("queue", "delete", "orders", "--yes").out == "deleted queue orders\n"
    store.fails(3, "entity_not_found", "queue", "show", "orders")


def test_delete_asks_on_a_terminal(cli: Program) -> None:
    with cli.broker() as broker:
        fill(broker, "orders", [b"1"])
    code, shown = cli.on_terminal("queue", "delete", "orders", typed=b"n\n")
    assert (code, "with 1 message and 0 dead letters?" in shown) == (1, True)
    assert "error[cancelled]: nothing was deleted" in shown
    code, shown = cli.on_terminal("queue", "delete", "orders", typed=b"y\n")
    assert (code, "deleted queue orders" in shown) == (0, True)


def test_resume_takes_a_verdict_on_a_halted_queue(cli: Program) -> None:
    policy = PoisonPolicy(receive_retry_count=0, on_poison=Disposition.FAULT)
    with cli.broker() as broker:
        fill(broker, "orders", [b"bad", b"good"], policy=policy)
        with pytest.raises(PoisonMessageError):
            broker.consume("orders", lambda message: 1 / 0, batch_size=1, stop_when_idle=True)
    assert "halted by message 1" in cli.fails(4, "poison_message", "receive", "orders")
    assert "halted by" in cli.ok("queue", "show", "orders").out
    assert "verdict" in cli.fails(2, "invalid_option", "queue", "resume", "orders")
    cli.fails(2, "usage", "queue", "resume", "orders", "--verdict", "forgive")
    assert cli.ok("queue", "resume", "orders", "--verdict", "move").out == "resumed orders: active\n"
    assert cli.ok("receive", "orders", "--complete", "--json").json[0]["body"] == "good"
    cli.fails(1, "entity_error", "queue", "resume", "orders")


def test_resume_switches_a_disabled_queue_on(cli: Program) -> None:
    policy = PoisonPolicy(disable_after_rollbacks=1)
    with cli.broker() as broker:
        fill(broker, "orders", [b"1"], policy=policy)
        with broker.receiver("orders") as receiver:
            receiver.abandon(receiver.receive())
    cli.fails(4, "queue_disabled", "send", "orders", "2")
    cli.ok("queue", "resume", "orders")
    cli.ok("send", "orders", "2")


# -- the store ------------------------------------------------------------------------------------


def test_status_is_read_and_set(store: Program) -> None:
    assert store.ok("queue", "status", "orders").out == "orders is active\n"
    assert store.ok("queue", "status", "orders", "send-disabled").out == "orders is send_disabled\n"
    assert store.ok("queues", "status", "orders", "--json").json["status"] == "send_disabled"
    store.ok("topic", "create", "news")
    assert store.ok("queue", "status", "news").out == "news is active\n"
    store.fails(3, "entity_not_found", "queue", "status", "nothing")


@pytest.mark.parametrize("group", ["queues", "topics"])
def test_groups_have_other_names(store: Program, group: str) -> None:
    assert store.ok(group, "list", "--json") == store.ok(group[:-1], "list", "--json")
    assert f"  {group} " not in store.ok("--help").out


def test_the_store_is_named_in_front_behind_or_by_the_environment(store: Program, tmp_path: Path) -> None:
    store.environment["LAZARETTO_STORE"] = "/nowhere/else.db"
    url = f"sqlite:///{tmp_path}/store.db"
    assert "orders" in store.ok("--store", url, "queue", "list").out
    assert "orders" in store.ok("queue", "list", "--store", url).out
    assert "orders" in store.ok("--store", "/not/this.db", "queue", "list", f"--store={url}").out
    assert store.ok("--store", url, "--json", "queue", "list").json[1]["path"] == "orders"
    del store.environment["LAZARETTO_STORE"]
    error = store.fails(2, "no_store", "queue", "list")
    assert "--store" in error
    assert "LAZARETTO_STORE" in error


@pytest.mark.parametrize(
    "command",
    [
        "queue list",
        "queue show q",
        "queue update q --lock-duration 5",
        "queue delete q --yes",
        "queue resume q",
        "send q x",
        "peek q",
        "receive q",
        "dead-letter list q",
        "dead-letter purge q --all --yes",
        "events",
        "audit",
        "doctor",
    ],
)
def test_only_queue_create_makes_a_store(cli: Program, command: str) -> None:
    assert str(cli.store) in cli.fails(5, "store_not_found", *command.split())
    assert list(cli.store.parent.iterdir()) == []


def test_a_refused_create_makes_no_store(cli: Program) -> None:
    cli.fails(2, "invalid_path", "queue", "create", "a b")
    cli.fails(2, "invalid_option", "queue", "create", "orders", "--lock-duration", "2d")
    assert list(cli.store.parent.iterdir()) == []


def test_stores_that_cannot_be_used(cli: Program) -> None:
    cli.store.write_bytes(b"no database" * 1000)
    cli.fails(5, "store_corrupt", "queue", "list")
    cli.fails(5, "store_corrupt", "queue", "create", "orders")
    assert cli.store.read_bytes() == b"no database" * 1000
    cli.store.unlink()
    with sqlite3.connect(cli.store) as other:
        other.execute("CREATE TABLE theirs (x)")
    other.close()
    cli.fails(5, "store_foreign", "queue", "list")
    cli.store.unlink()
    cli.store.mkdir()
    cli.fails(2, "invalid_option", "queue", "create", "orders")
    cli.environment["LAZARETTO_STORE"] = str(cli.store.parent / "missing" / "store.db")
    cli.fails(5, "store_error", "queue", "create", "orders")
    cli.environment["LAZARETTO_STORE"] = "mysql://host/db"
    cli.fails(2, "invalid_option", "queue", "create", "orders")
    cli.environment["LAZARETTO_STORE"] = "postgresql://ann:secret@127.0.0.1:1/db"
    assert "secret" not in cli.fails(5, "store_unavailable", "queue", "create", "orders")


def test_an_empty_database_is_no_store(cli: Program) -> None:
    with sqlite3.connect(cli.store) as empty:
        empty.execute("PRAGMA user_version = 1")
    empty.close()
    before = cli.store.read_bytes()
    cli.fails(5, "store_not_found", "queue", "list")
    assert cli.store.read_bytes() == before
    cli.ok("queue", "create", "orders")


def test_a_newer_store_is_refused(store: Program) -> None:
    with sqlite3.connect(store.store) as connection:
        connection.execute("UPDATE lazaretto_meta SET value = '99' WHERE name = 'schema'")
    connection.close()
    assert "99" in store.fails(5, "store_too_new", "queue", "list")


# -- help and usage -------------------------------------------------------------------------------


def test_help_documents_every_exit_code(cli: Program) -> None:
    shown = cli.ok("--help").out
    for code, meaning in MEANINGS.items():
        assert f"  {code:<3d}  {meaning}\n" in shown
    assert cli.ok("--version").out == f"lazaretto {lazaretto.__version__}\n"
    assert cli().code == 2


@pytest.mark.parametrize(
    "command",
    [
        "queue create",
        "queue list",
        "queue show",
        "queue update",
        "queue delete",
        "queue resume",
        "send",
        "peek",
        "receive",
        "dead-letter list",
        "dead-letter show",
        "dead-letter groups",
        "dead-letter resubmit",
        "dead-letter purge",
        "dead-letter restore",
        "dead-letter delete",
        "events",
        "audit",
        "doctor",
    ],
)
def test_every_command_has_help_with_store_and_json(cli: Program, command: str) -> None:
    shown = cli.ok(*command.split(), "--help").out
    assert "--json" in shown
    assert "--store" in shown


@pytest.mark.parametrize(
    "arguments",
    [
        ["bogus"],
        ["queue"],
        ["queue", "list", "--bogus"],
        ["queue", "create"],
        ["queue", "create", "q", "--lock-duration", "soon"],
        ["queue", "create", "q", "--lock-duration", "-5"],
        ["queue", "create", "q", "--max-message-size", "big"],
        ["queue", "create", "q", "--on-poison", "explode"],
        ["queue", "create", "q", "--preset", "rabbit"],
        ["queue", "create", "q", "--preset", "wcf_msmq3", "--on-poison", "move"],
        ["queue", "create", "q", "--preset", "wcf_msmq3", "--on-invalid", "reject"],
        ["queue", "create", "q", "--dead-letter-policy-receive-retry-count", "2"],
        ["queue", "update", "q"],
        ["receive", "q", "--complete", "--abandon"],
        ["receive", "q", "--reason", "x"],
        ["receive", "q", "--limit", "0"],
        ["send", "q"],
        ["send", "q", "body", "--file", "x"],
        ["send", "q", "body", "--jsonl"],
        ["send", "q", "body", "--property", "novalue"],
        ["send", "q", "body", "--at", "tomorrow"],
        ["dead-letter", "show", "q", "first"],
        ["dead-letter", "purge", "q"],
        ["dead-letter", "resubmit", "q"],
        ["dead-letter", "resubmit", "q", "1", "--all"],
        ["dead-letter", "resubmit", "q", "1", "2", "--edit-body", "x"],
    ],
)
def test_usage_errors(cli: Program, arguments: list[str]) -> None:
    cli.fails(2, "usage", *arguments)
    assert not cli.store.exists()


def test_other_errors(store: Program) -> None:
    store.fails(1, "entity_exists", "queue", "create", "ORDERS")
    store.fails(1, "not_allowed", "send", "orders;poison", "x")
    store.fails(2, "invalid_option", "queue", "update", "orders", "--requires-session")
    assert "'orders'" in store.fails(3, "entity_not_found", "queue", "show", "oders")
    move = ("--dead-letter-policy-on-poison", "move")
    store.fails(2, "invalid_option", "queue", "update", "orders", *move)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_a_read_only_store(store: Program) -> None:
    store.store.chmod(0o444)
    store.fails(5, "store_read_only", "send", "orders", "x")


def test_the_program_installed_is_the_same(cli: Program) -> None:
    """The entry point of the package is the function that `python -m` calls."""
    from lazaretto.cli import main

    assert main(["--version"]) == 0
