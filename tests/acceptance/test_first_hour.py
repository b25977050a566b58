"""What newcomers type and try in their first hour, and what they are told."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_program import Program, program_in

import lazaretto
from lazaretto import InvalidMessage, InvalidOption, Message, PoisonPolicy, QueueOptions
from lazaretto.host import Handler
from lazaretto.model.installing import install

ROOT = Path(__file__).parents[2]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    return program_in(tmp_path, monkeypatch)


def test_the_version(cli: Program) -> None:
    assert cli.ok("version").out == cli.ok("--version").out == f"lazaretto {lazaretto.__version__}\n"


@pytest.mark.parametrize("group", ["dead-letters", "queue", "repair", "access"])
def test_a_group_that_is_given_a_queue_names_its_commands(cli: Program, group: str) -> None:
    told = cli.fails(2, "usage", group, "orders_of_today")
    assert f"`lazaretto {group}` has no command 'orders_of_today'; there are: " in told


def test_a_name_that_is_nearly_right_is_suggested(cli: Program) -> None:
    assert "Did you mean 'list'?" in cli.fails(2, "usage", "queue", "lst")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("queue create q --max-delivery-count 10", "here that is --receive-retry-count 9"),
        ("queues update q --maxReceiveCount=4", "here that is --receive-retry-count 3"),
        ("queue create q --retry-backoff", "here that is --max-retry-cycles, --retry-cycle-growth"),
        ("queue create q --dead-lettering-on-message-expiration", "here that is --dead-letter-on-expiration"),
        ("queue create q --status x", "`lazaretto queue status` switches a queue"),
        ("topics create t --max-size-in-megabytes 1", "here that is --max-size in bytes"),
        ("queue create q --lok-duration 3", "Possible options: --lock-duration"),
    ],
)
def test_options_of_other_systems_are_known(cli: Program, given: str, told: str) -> None:
    assert told in cli.fails(2, "usage", *given.split())


def test_spark_without_its_packages_says_what_to_install() -> None:
    program = "import sys\nsys.modules['pyspark'] = None\nfrom lazaretto.spark import process\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    last = done.stderr.strip().splitlines()[-1]
    assert last.endswith(f"lazaretto.spark.process needs pyspark, which is not installed: {install('spark')}")


def test_a_store_that_is_not_there_is_told_without_options_that_nobody_gave(tmp_path: Path) -> None:
    with pytest.raises(lazaretto.StoreNotFound, match="no store exists here; check its name") as caught:
        lazaretto.connect(tmp_path / "nope.db", create=False)
    assert "create=" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: QueueOptions(max_delivery_count=10), r"policy=PoisonPolicy\(receive_retry_count=9\)"),  # type: ignore[call-arg]
        (lambda: QueueOptions(maxReceiveCount=4), r"policy=PoisonPolicy\(receive_retry_count=3\)"),  # type: ignore[call-arg]
        (lambda: QueueOptions(visibility_timeout=30), "here that is lock_duration=30"),  # type: ignore[call-arg]
        (lambda: QueueOptions(x_message_ttl=5), "here that is default_time_to_live=… in seconds"),  # type: ignore[call-arg]
        (lambda: QueueOptions(max_retries=3), r"policy=PoisonPolicy\(receive_retry_count=3\)"),  # type: ignore[call-arg]
        (lambda: QueueOptions(max_retry_cycles=3), r"policy=PoisonPolicy\(max_retry_cycles=3\)"),  # type: ignore[call-arg]
        (lambda: QueueOptions(durable=True), "each queue and message is durable"),  # type: ignore[call-arg]
        (lambda: PoisonPolicy(max_delivery_count=10), "here that is receive_retry_count=9"),  # type: ignore[call-arg]
        (lambda: Handler("q", print, time_limit=5), "here that is deadline=5"),  # type: ignore[call-arg]
    ],
)
def test_names_of_other_systems_are_known(make: Any, told: str) -> None:
    with pytest.raises(InvalidOption, match=told):
        make()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"a": 1}, "Message.json"),
        ({}, "Message.json"),
        ([{"a": 1}], "Message.json"),
        (Message({"a": 1}), r"json\.dumps"),  # type: ignore[arg-type]
        ("text", r"text\.encode"),
        (b"x", r"Message\(data\)"),
    ],
)
def test_what_is_no_message_is_told_how_to_become_one(tmp_path: Path, given: Any, told: str) -> None:
    with lazaretto.connect(tmp_path / "shop.db") as broker:
        broker.create_queue("q")
        with pytest.raises(InvalidMessage, match=told):
            broker.sender("q").send(given)


def test_a_message_of_json(tmp_path: Path) -> None:
    with lazaretto.connect(tmp_path / "shop.db") as broker:
        broker.create_queue("q")
        broker.sender("q").send([Message.json({"lamp": "ü"}, subject="order"), Message(b"{")])
        whole, broken = broker.peek("q", 2)
    assert (whole.json(), whole.body) == ({"lamp": "ü"}, '{"lamp":"ü"}'.encode())
    assert (whole.content_type, whole.subject) == ("application/json", "order")
    with pytest.raises(InvalidMessage, match=r"expected a body of JSON, got b'\{'"):
        broken.json()
    with pytest.raises(InvalidMessage, match="a value that JSON has"):
        Message.json({1, 2})


@pytest.mark.parametrize("name", ["handler", "ServiceHost", "process"])
def test_names_that_are_elsewhere_are_found(name: str) -> None:
    with pytest.raises(ImportError, match=rf"'{name}' is in (lazaretto\.\w+): from \1 import {name}"):
        getattr(lazaretto, name)


def test_every_hint_to_install_is_one_that_works() -> None:
    """The package is on no index yet: its name alone finds nothing there."""
    wrong = []
    for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "src").rglob("*.py")]:
        for line in path.read_text("utf-8").splitlines():
            if re.search(r"pip install[^|]*['\" ]lazaretto(\[|['\"]?$)", line):
                wrong.append(f"{path.name}: {line.strip()}")
    assert wrong == []
