"""`lazaretto emulator`: a namespace from the Config.json of Service Bus's own emulator."""

from __future__ import annotations

import copy
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

import lazaretto
from door.emulators import WAIT, emulated
from door.wire import some
from lazaretto import CorrelationFilter, InvalidOption, PoisonPolicy, Rule, SqlAction, SqlFilter
from lazaretto.emulator.template import provision
from lazaretto.servicebus.emulated import read_namespace

CONFIG: dict[str, Any] = {
    "UserConfig": {
        "Namespaces": [
            {
                "Name": "sbemulatorns",
                "Queues": [
                    {
                        "Name": "queue.1",
                        "Properties": {
                            "DeadLetteringOnMessageExpiration": True,
                            "DefaultMessageTimeToLive": "PT1H",
                            "DuplicateDetectionHistoryTimeWindow": "PT20S",
                            "ForwardDeadLetteredMessagesTo": "topic.1",
                            "ForwardTo": "",
                            "LockDuration": "PT2M",
                            "MaxDeliveryCount": 3,
                            "RequiresDuplicateDetection": False,
                            "RequiresSession": False,
                        },
                    },
                    {"Name": "bare"},
                ],
                "Topics": [
                    {
                        "Name": "topic.1",
                        "Properties": {"DefaultMessageTimeToLive": "PT1H"},
                        "Subscriptions": [
                            {
                                "Name": "subscription.1",
                                "Properties": {"MaxDeliveryCount": 5, "ForwardTo": "bare"},
                                "Rules": [
                                    {
                                        "Name": "by-fields",
                                        "Properties": {
                                            "FilterType": "Correlation",
                                            "CorrelationFilter": {
                                                "ContentType": "text/plain",
                                                "Label": "l",
                                                "Properties": {"n": "1"},
                                            },
                                        },
                                    },
                                    {
                                        "Name": "by-sql",
                                        "Properties": {
                                            "FilterType": "Sql",
                                            "SqlFilter": {"SqlExpression": "sys.label = 'x'"},
                                            "Action": {"SqlExpression": "SET a = 1"},
                                        },
                                    },
                                ],
                            },
                            {"Name": "all", "Properties": {}},
                        ],
                    }
                ],
            }
        ],
        "Logging": {"Type": "File"},
    }
}
NS = "UserConfig.Namespaces.0"
RULES = (
    Rule("by-fields", CorrelationFilter(content_type="text/plain", subject="l", properties={"n": "1"})),
    Rule("by-sql", SqlFilter("sys.label = 'x'"), SqlAction("SET a = 1")),
)


def test_what_the_file_says_is_made(tmp_path: Path) -> None:
    with lazaretto.connect(tmp_path / "store.db") as broker:
        for _ in range(2):  # what is there already is changed
            provision(broker, read_namespace(json.dumps(CONFIG)))
            options = broker.queue("queue.1").options
            assert (options.lock_duration, options.default_time_to_live) == (120, 3600)
            assert options.policy == PoisonPolicy(receive_retry_count=2)
            assert (options.dead_letter_on_expiration, options.forward_to) == (True, None)
            assert options.forward_dead_lettered_messages_to == "topic.1"
            assert broker.queue("bare").options == lazaretto.QueueOptions()
            first = broker.subscription("topic.1", "subscription.1")
            assert first.rules == RULES
            assert first.queue.options.forward_to == "bare"
            assert broker.subscription("topic.1", "all").rules == (Rule(),)
        done = [(entry.actor, entry.action) for entry in broker.audit()]
        assert {actor for actor, _ in done} == {"emulator"}
        assert [action for _, action in done].count("create") == 5


def test_a_changed_file_changes_what_is_there(tmp_path: Path) -> None:
    with lazaretto.connect(tmp_path / "store.db") as broker:
        provision(broker, read_namespace(json.dumps(CONFIG)))
        changed = copy.deepcopy(CONFIG)
        (namespace,) = changed["UserConfig"]["Namespaces"]
        namespace["Queues"][0]["Properties"]["LockDuration"] = "PT10S"
        rules = namespace["Topics"][0]["Subscriptions"][0]["Rules"]
        rules[1]["Properties"]["SqlFilter"]["SqlExpression"] = "1 = 1"
        rules[0]["Name"] = "renamed"
        provision(broker, read_namespace(json.dumps(changed)))
        assert broker.queue("queue.1").options.lock_duration == 10
        found = broker.subscription("topic.1", "subscription.1").rules
        assert {rule.name: rule.filter for rule in found} == {
            "renamed": RULES[0].filter,
            "by-sql": SqlFilter("1 = 1"),
        }


def test_a_file_that_names_the_default_sets_it(tmp_path: Path) -> None:
    policy = PoisonPolicy(receive_retry_count=2, max_retry_cycles=3)
    with lazaretto.connect(tmp_path / "store.db") as broker:
        provision(broker, read_namespace(json.dumps(CONFIG)))
        broker.update_queue("queue.1", policy=policy, kept_samples=7)
        changed = copy.deepcopy(CONFIG)
        (namespace,) = changed["UserConfig"]["Namespaces"]
        properties = namespace["Queues"][0]["Properties"]
        properties |= {"LockDuration": "PT1M", "DeadLetteringOnMessageExpiration": False}
        properties |= {"MaxDeliveryCount": 10, "ForwardDeadLetteredMessagesTo": ""}
        # What is not named stays as it is.
        del properties["DefaultMessageTimeToLive"]
        del namespace["Topics"][0]["Subscriptions"][0]["Properties"]["ForwardTo"]
        provision(broker, read_namespace(json.dumps(changed)))
        options = broker.queue("queue.1").options
        assert (options.lock_duration, options.dead_letter_on_expiration) == (60, False)
        assert (options.forward_dead_lettered_messages_to, options.default_time_to_live) == (None, 3600)
        assert options.policy == PoisonPolicy(receive_retry_count=9, max_retry_cycles=3)
        assert options.kept_samples == 7
        assert broker.subscription("topic.1", "subscription.1").queue.options.forward_to == "bare"


def test_what_is_fixed_is_not_changed_by_a_file(tmp_path: Path) -> None:
    with lazaretto.connect(tmp_path / "store.db") as broker:
        provision(broker, read_namespace(json.dumps(CONFIG)))
        changed = copy.deepcopy(CONFIG)
        changed["UserConfig"]["Namespaces"][0]["Queues"][1]["Properties"] = {"RequiresSession": True}
        with pytest.raises(InvalidOption, match="RequiresSession property of an existing Queue cannot"):
            provision(broker, read_namespace(json.dumps(changed)))


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        ("UserConfig", None, "UserConfig: expected it to be given"),
        ("UserConfig", [], "UserConfig: expected an object"),
        ("UserConfig.Namespaces", {}, "UserConfig.Namespaces: expected a list"),
        ("UserConfig.Namespaces", [], "UserConfig.Namespaces: expected a namespace, got none"),
        (f"{NS}.Queues.0.Name", 5, "Queues[0].Name: expected text"),
        (f"{NS}.Queues.0.Name", "a//b", "Queues[0].Name: expected each part"),
        (f"{NS}.Queues.0.Name", "a/$DeadLetterQueue", "Queues[0].Name: expected the name of a queue"),
        (f"{NS}.Queues.1.Name", "QUEUE.1", "got 'QUEUE.1', as in UserConfig.Namespaces[0].Q"),
        (f"{NS}.Topics.0.Name", "bare", "Topics[0].Name: expected a name that is given once"),
        (f"{NS}.Topics.0.Subscriptions.1.Name", "Subscription.1", "Subscriptions[1].Name: expected a name"),
        (f"{NS}.Topics.0.Subscriptions.0.Rules.1.Name", "BY-fields", "Rules[1].Name: expected a name"),
        (f"{NS}.Topics.0.Subscriptions.0.Name", 5, "Subscriptions[0].Name: expected text"),
        (f"{NS}.Queues.0.Properties.LockDuration", "1m", "LockDuration: expected a duration"),
        (f"{NS}.Queues.0.Properties.LockDuration", "PT6M", "LockDuration: The supplied"),
        (f"{NS}.Queues.0.Properties.LockDuration", "PT0.1S", "Properties: expected lock_d"),
        (f"{NS}.Queues.0.Properties.RequiresSession", "x", "RequiresSession: expected true"),
        (f"{NS}.Queues.0.Properties.MaxDeliveryCount", 0, "MaxDeliveryCount: expected"),
        (f"{NS}.Queues.0.Properties.MaxDeliveryCount", [], "MaxDeliveryCount: expected text"),
        (f"{NS}.Topics.0.Subscriptions.0.Name", "a/b", "Subscriptions[0].Name: expected"),
        (
            f"{NS}.Topics.0.Subscriptions.0.Rules.0.Properties.FilterType",
            "Other",
            "Topics[0].Subscriptions[0].Rules[0].Properties.FilterType: expected Sql or Correlation",
        ),
        (
            f"{NS}.Topics.0.Subscriptions.0.Rules.1.Properties.SqlFilter.SqlExpression",
            "a ===",
            "Rules[1].Properties: ",
        ),
        (
            f"{NS}.Topics.0.Subscriptions.0.Rules.0.Properties.CorrelationFilter",
            {},
            "Rules[0].Properties: a correlation filter needs",
        ),
        (
            f"{NS}.Topics.0.Subscriptions.0.Rules.0.Properties.CorrelationFilter",
            {"Label": 5},
            "Rules[0].Properties: a correlation filter cannot",
        ),
    ],
)  # fmt: skip
def test_where_a_file_is_wrong_is_told(place: str, value: Any, said: str) -> None:
    changed = copy.deepcopy(CONFIG)
    owner: Any = changed
    *ways, last = place.split(".")
    for way in ways:
        owner = owner[int(way) if isinstance(owner, list) else way]
    owner[last] = value
    with pytest.raises(InvalidOption) as refused:
        read_namespace(json.dumps(changed))
    assert said in str(refused.value)
    assert ": UserConfig" not in str(refused.value)


@pytest.mark.parametrize(
    ("queue", "said"),
    [
        ({"Name": "bare", "Properties": {"ForwardTo": "nowhere"}}, "no queue or topic exists at 'nowhere'"),
        (
            {"Name": "bare", "Properties": {"ForwardTo": "bare", "RequiresDuplicateDetection": True}},
            "duplicates of themselves",
        ),
        ({"Name": "topic.2"}, "is a topic"),
        ({"Name": "a/subscriptions/b"}, "the path of a subscription"),
    ],
)
def test_where_a_file_is_wrong_is_told_if_only_the_store_knows(
    tmp_path: Path, queue: dict[str, Any], said: str
) -> None:
    changed = copy.deepcopy(CONFIG)
    changed["UserConfig"]["Namespaces"][0]["Queues"][1] = queue
    with lazaretto.connect(tmp_path / "store.db") as broker:
        broker.create_topic("topic.2")
        with pytest.raises(InvalidOption, match=rf"^UserConfig\.Namespaces\[0\]\.Queues\[1\].*{said}"):
            provision(broker, read_namespace(json.dumps(changed)))


def test_null_is_as_if_it_were_not_given() -> None:
    changed = copy.deepcopy(CONFIG)
    (namespace,) = changed["UserConfig"]["Namespaces"]
    namespace["Queues"][1]["Properties"] = {"ForwardTo": None, "UserMetadata": None}
    namespace["Topics"] = namespace["More"] = None
    found = read_namespace(json.dumps(changed))
    assert (found.queues[1].given, found.topics) == ({}, [])
    assert found.ignored == ["UserConfig.Namespaces[0].More"]


@pytest.mark.parametrize("text", ["", "[]", "{", "null", "[" * 100_000, '"x"', "\ud800"])
def test_no_namespace_at_all(text: str) -> None:
    with pytest.raises(InvalidOption):
        read_namespace(text.encode("utf-8", "surrogatepass"))


def test_what_has_no_meaning_is_told() -> None:
    changed = copy.deepcopy(CONFIG)
    (namespace,) = changed["UserConfig"]["Namespaces"]
    namespace["Properties"] = {"MaxAllowedConnections": 100}
    namespace["Queues"][0]["Properties"]["Other"] = 1
    one, two = namespace["Topics"][0]["Subscriptions"][0]["Rules"]
    one["Properties"]["CorrelationFilter"]["Lable"] = "a filter without it lets more pass"
    two["Properties"]["CorrelationFilter"] = {}
    rules = "UserConfig.Namespaces[0].Topics[0].Subscriptions[0].Rules"
    assert read_namespace(json.dumps(changed)).ignored == [
        "UserConfig.Namespaces[0].Properties",
        "UserConfig.Namespaces[0].Queues[0].Properties.Other",
        f"{rules}[0].Properties.CorrelationFilter.Lable",
        f"{rules}[1].Properties.CorrelationFilter",
    ]


def test_the_command(tmp_path: Path) -> None:
    config = tmp_path / "Config.json"
    config.write_text(json.dumps(CONFIG))
    store = str(tmp_path / "store.db")
    with (
        emulated("--config", str(config), "--store", store) as emulator,
        ServiceBusClient.from_connection_string(emulator.said["connection_string"], retry_total=0) as client,
        client.get_topic_sender("topic.1") as sender,
        client.get_subscription_receiver("topic.1", "all") as receiver,
    ):
        sender.send_messages([ServiceBusMessage("a"), ServiceBusMessage("b")])
        first, _ = some(receiver, 2)
        receiver.complete_message(first)
    # What is in a file is there again.
    with emulated("--store", store):
        pass
    with lazaretto.connect(store) as broker:
        assert broker.subscription("topic.1", "all").queue.counts.total == 1


def test_who_ends_it_while_it_begins_leaves_no_folder(tmp_path: Path) -> None:
    queues = [{"Name": f"q{n}"} for n in range(500)]
    config = tmp_path / "Config.json"
    config.write_text(json.dumps({"UserConfig": {"Namespaces": [{"Queues": queues}]}}))
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    command = [sys.executable, "-m", "lazaretto", "emulator", "--port", "0", "--config", str(config)]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
    assert process.stdout is not None
    try:
        while process.poll() is None and not list(temporary.glob("*/emulator.db")):
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT) != -signal.SIGTERM
    finally:
        process.kill()
        process.stdout.close()
    assert list(temporary.iterdir()) == []


def test_the_command_tells_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "Config.json").write_text('{"UserConfig": {"Namespaces": 5}}')
    lost = {"Name": "a", "Properties": {"ForwardTo": "nowhere"}}
    (tmp_path / "lost.json").write_text(json.dumps({"UserConfig": {"Namespaces": [{"Queues": [lost]}]}}))
    for words, said in (
        (("--config", str(tmp_path / "lost.json")), "lost.json: UserConfig.Namespaces[0].Queues[0]: no"),
        (("--config", str(tmp_path / "Config.json")), "UserConfig.Namespaces: expected a list"),
        (("--config", str(tmp_path / "nowhere.json")), "cannot be read"),
        (("--host", "0.0.0.0"), "TLS and a key"),
    ):
        command = [sys.executable, "-m", "lazaretto", "emulator", "--port", "0", *words]
        refused = subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ)
        assert refused.returncode != 0
        assert said in " ".join(refused.stderr.split()), refused.stderr


COMMENTED = """\ufeff// Configuration of the emulator
{
  "UserConfig": { /* of one
                     machine */
    "Namespaces": [
      {
        "Name": "one", // its name
        "Queues": [
          { "Name": "a", "Properties": { "UserMetadata": "see http://x/, /* not a comment */ \\\\" }, },
          { "Name": "b", },
        ],
      },
      {
        "Name": "two",
        "Topics": [
          { "Name": "t",
            "Subscriptions": [
              { "Name": "s",
                "Rules": [
                  { "Name": "r",
                    "Properties": {
                      "FilterType": "Sql",
                      "SqlFilter": { "SqlExpression": "n > @least", "Parameters": { "@least": 5, }, },
                      "Action": { "SqlExpression": "SET m = @m", "Parameters": { "@m": "x" } },
                    },
                  },
                ],
              },
            ],
          },
        ],
      }, // the last
    ],
    "Logging": { "Type": "File" },
  }
}
"""


@pytest.mark.parametrize("encode", [False, True])
def test_comments_and_commas_as_people_write_them(tmp_path: Path, encode: bool) -> None:
    found = read_namespace(COMMENTED.encode() if encode else COMMENTED)
    assert found.ignored == []
    with lazaretto.connect(tmp_path / "store.db") as broker:
        provision(broker, found)
        metadata = broker.queue("a").options.annotations
        assert metadata == {"servicebus:UserMetadata": "see http://x/, /* not a comment */ \\"}
        assert broker.queue("b").path == "b"
        rule = Rule("r", SqlFilter("n > @least", {"@least": 5}), SqlAction("SET m = @m", {"@m": "x"}))
        assert broker.subscription("t", "s").rules == (rule,)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a": 1 // one\n "b": 2}', "line 2 column 2"),
        ('{"a": /* no end }', "expected JSON"),
    ],
)
def test_an_error_names_the_place_in_the_file_as_it_is(text: str, said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        read_namespace(text)


def test_a_name_in_two_namespaces_is_told() -> None:
    twice = {"UserConfig": {"Namespaces": [{"Queues": [{"Name": "a"}]}, {"Queues": [{"Name": "A"}]}]}}
    with pytest.raises(InvalidOption, match=r"Namespaces\[1\]\.Queues\[0\]\.Name.*Namespaces\[0\]"):
        read_namespace(json.dumps(twice))
