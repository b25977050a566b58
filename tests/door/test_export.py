"""A Config.json that a store was made of comes back from it, and from a server that serves it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import lazaretto
from door.emulators import emulated
from lazaretto import CorrelationFilter, FalseFilter, PoisonPolicy, QueueOptions, Rule, SqlFilter, TrueFilter
from lazaretto.cli import main
from lazaretto.emulator.export import config_of, entities_of_store
from lazaretto.emulator.template import provision
from lazaretto.servicebus.emulated import read_namespace

#: Only what differs from Service Bus's defaults, in its order: what is written is the same.
CONFIG: dict[str, Any] = {
    "UserConfig": {
        "Namespaces": [
            {
                "Name": "shop",
                "Queues": [
                    {"Name": "bare"},
                    {
                        "Name": "orders",
                        "Properties": {
                            "LockDuration": "PT2M",
                            "MaxSizeInMegabytes": 1024,
                            "RequiresDuplicateDetection": True,
                            "DefaultMessageTimeToLive": "PT1H",
                            "DeadLetteringOnMessageExpiration": True,
                            "DuplicateDetectionHistoryTimeWindow": "PT20S",
                            "MaxDeliveryCount": 3,
                            "ForwardTo": "bare",
                            "AutoDeleteOnIdle": "P1D",
                            "ForwardDeadLetteredMessagesTo": "prices",
                            "MaxMessageSizeInKilobytes": 2048,
                            "UserMetadata": "12",
                            "EnableBatchedOperations": False,
                        },
                    },
                    {"Name": "steps", "Properties": {"RequiresSession": True, "EnablePartitioning": True}},
                ],
                "Topics": [
                    {
                        "Name": "prices",
                        "Properties": {"DefaultMessageTimeToLive": "PT1H"},
                        "Subscriptions": [
                            {"Name": "all"},
                            {
                                "Name": "some",
                                "Properties": {"MaxDeliveryCount": 5, "ForwardTo": "orders"},
                                "Rules": [
                                    {
                                        "Name": "by-fields",
                                        "Properties": {
                                            "FilterType": "Correlation",
                                            "CorrelationFilter": {
                                                "ContentType": "text/plain",
                                                "Label": "l",
                                                "Properties": {"n": "1", "m": 2},
                                            },
                                        },
                                    },
                                    {
                                        "Name": "by-sql",
                                        "Properties": {
                                            "FilterType": "Sql",
                                            "SqlFilter": {
                                                "SqlExpression": "sys.label = @l OR a > @n",
                                                "Parameters": {"@l": "x", "@n": 5},
                                            },
                                            "Action": {"SqlExpression": "SET a = 1"},
                                        },
                                    },
                                ],
                            },
                        ],
                    }
                ],
            }
        ],
        "Logging": {"Type": "File"},
    }
}


def test_a_config_comes_back_from_the_store_it_was_read_into(url: str) -> None:
    with lazaretto.connect(url) as broker:
        provision(broker, read_namespace(json.dumps(CONFIG)))
        entities = entities_of_store(broker)
    assert config_of(entities, "shop") == CONFIG
    assert entities.ignored == []


def test_a_config_comes_back_from_a_server(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("trustme")
    config, line = tmp_path / "Config.json", tmp_path / "line"
    config.write_text(json.dumps(CONFIG))
    state = {"XDG_STATE_HOME": str(tmp_path)}
    with emulated("--config", str(config), "--tls", environment=state) as emulator:
        line.write_text(emulator.said["connection_string"])
        words = ["--namespace", str(line), "--authority", emulator.said["authority"], "--name", "shop"]
        assert main(["emulator", "export-config", *words]) == 0
    told = capfd.readouterr()
    # Each queue has this size there, chosen or not.
    text = json.dumps(CONFIG).replace('"MaxSizeInMegabytes": 1024, ', "")
    assert json.loads(told.out) == json.loads(text)
    assert told.err == ""


def test_what_a_file_cannot_say_is_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    rules = [
        Rule("every", TrueFilter()),
        Rule("none", FalseFilter()),
        Rule("later", CorrelationFilter(properties={"at": moment})),
        Rule("since", SqlFilter("at > @at", {"@at": moment})),
    ]
    store = tmp_path / "s.db"
    with lazaretto.connect(store) as broker:
        broker.create_queue("slow", QueueOptions(lock_duration=3600, policy=PoisonPolicy()))
        broker.create_topic("t")
        broker.create_subscription("t", "s", rules=rules)
        broker.create_subscription("t", "empty", rules=[])
    assert main(["emulator", "export-config", "--store", str(store)]) == 0
    told = capfd.readouterr()
    assert "slow.LockDuration: " in told.err
    assert "t/subscriptions/s.later.at: JSON has no datetime" in told.err
    assert "t/subscriptions/s.since.@at: JSON has no datetime" in told.err
    entities = read_namespace(told.out)
    assert entities.ignored == []
    assert [dict(one.given) for one in entities.queues] == [{}]
    of_s = {rule.name: rule.filter for rule in entities.subscriptions["t", "s"].rules or ()}
    assert of_s["every"] == SqlFilter("1=1")
    assert of_s["none"] == SqlFilter("1=0")
    assert of_s["since"] == SqlFilter("at > @at", {"@at": str(moment)})
    (nothing,) = entities.subscriptions["t", "empty"].rules or ()
    assert nothing.filter == SqlFilter("1=0")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--store", "x.db", "export-config"], "--store is no option of this command"),
        (
            ["export-config", "--store", "x.db", "--namespace", "line"],
            "give --namespace or --store, not both",
        ),
        (["export-config", "--namespace", "line"], "'line' has no connection string of a namespace"),
        (["exports"], "No such command 'exports'"),
    ],
)
def test_wrong_calls_are_refused(
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "line").write_text("Endpoint=sb://localhost;SharedAccessKey=secret")
    assert main(["emulator", *words]) == 2
    told = " ".join(capfd.readouterr().err.split())
    assert said in told
    assert "secret" not in told
