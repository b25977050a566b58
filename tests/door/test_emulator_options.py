"""How `lazaretto emulator` is served: ports, keys, certificates, pages, and messages to begin with."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusAuthorizationError
from azure.servicebus.management import ServiceBusAdministrationClient

from door.emulators import WAIT, config_of, emulated
from door.wire import some
from lazaretto.cli.emulator_command import _ports


def free(port: int) -> bool:
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def test_both_ports_of_the_official_emulator_are_served() -> None:
    assert _ports("127.0.0.1", 7000, [7001]) == [7000, 7001]
    with socket.socket() as other:
        if free(5300):
            assert _ports("127.0.0.1", None, [7001]) == [5672, 5300, 7001]
            other.bind(("127.0.0.1", 5300))
        # Another program has it.
        assert _ports("127.0.0.1", None, []) == [5672]


def test_health_is_told() -> None:
    with emulated() as emulator:
        found = emulator.request("GET", "/health")
        assert (found.status, found.json) == (200, {"status": "healthy"})
        head = emulator.request("HEAD", "/health")
        assert (head.status, head.body) == (200, b"")


def test_messages_to_begin_with(tmp_path: Path) -> None:
    config = config_of(tmp_path / "Config.json", "q")
    lines = [{"entity": "q", "body": "lamp", "subject": "s"}, {"entity": "t", "body": "news"}]
    messages = tmp_path / "messages.jsonl"
    messages.write_text("\n".join(json.dumps(line) for line in lines))
    with emulated("--config", str(config), "--messages", str(messages)) as emulator:
        for text in (emulator.said["connection_string"], emulator.namespace("other")):
            with ServiceBusClient.from_connection_string(text) as client:
                with client.get_queue_receiver("q") as receiver:
                    assert [(str(one), one.subject) for one in some(receiver, 1)] == [("lamp", "s")]
                with client.get_subscription_receiver("t", "s") as receiver:
                    assert [str(one) for one in some(receiver, 1)] == ["news"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 1"),
        ('{"body": "x"}', "line 1: expected the field entity"),
        ('{"entity": "q", "bodi": "x"}', "line 1: "),
        ('{"entity": "nowhere", "body": "x"}', "a message for 'nowhere' cannot be sent"),
    ],
)
def test_wrong_messages_are_refused(tmp_path: Path, line: str, said: str) -> None:
    messages = tmp_path / "messages.jsonl"
    messages.write_text(line)
    command = [sys.executable, "-m", "lazaretto", "emulator", "--port", "0", "--messages", str(messages)]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=WAIT, check=False)
    assert refused.returncode == 2
    assert said in " ".join(refused.stderr.split())


def test_keys_are_asked_for_and_give_their_rights(tmp_path: Path) -> None:
    config = config_of(tmp_path / "Config.json", "q")
    keys = {name: tmp_path / name for name in ("root", "reader")}
    for name, file in keys.items():
        file.write_text(f"{name}-key-that-is-long-enough")
    options = ["--key-file", str(keys["root"]), "--policy", f"reader:Listen:{keys['reader']}"]
    with emulated("--config", str(config), *options) as emulator:
        text = emulator.said["connection_string"]
        root = text.replace("=KEY;", f"={keys['root'].read_text()};")
        reader = text.replace("=KEY;", f"={keys['reader'].read_text()};").replace(
            "RootManageSharedAccessKey", "reader"
        )
        with ServiceBusClient.from_connection_string(root) as client:
            client.get_queue_sender("q").send_messages(ServiceBusMessage("lamp"))
        with ServiceBusClient.from_connection_string(reader, retry_total=0) as client:
            with client.get_queue_receiver("q") as receiver:
                assert [str(one) for one in some(receiver, 1)] == ["lamp"]
            with pytest.raises(ServiceBusAuthorizationError), client.get_queue_sender("q") as sender:
                sender.send_messages(ServiceBusMessage("lamp"))
        for method, path in (("POST", "reset"), ("PUT", "namespaces/a"), ("GET", "clock")):
            assert emulator.control(method, path).status == 401


@pytest.mark.parametrize("tier", [None, "standard", "premium"])
def test_a_tier_has_its_limits(tier: str | None, tmp_path: Path) -> None:
    pytest.importorskip("trustme")
    state = {"XDG_STATE_HOME": str(tmp_path)}
    with emulated("--tls", *([] if tier is None else ["--tier", tier]), environment=state) as emulator:
        administration = ServiceBusAdministrationClient.from_connection_string(
            emulator.said["connection_string"], connection_verify=emulator.said["authority"], retry_total=0
        )
        with administration as client:
            assert client.get_namespace_properties().messaging_sku == (tier or "standard").capitalize()
            queue = client.create_queue("plain")
            if tier == "standard":
                with pytest.raises(HttpResponseError, match="standard tier"):
                    client.create_queue("large", max_message_size_in_kilobytes=1024)
                queue.max_message_size_in_kilobytes = 2048
                with pytest.raises(HttpResponseError, match="standard tier"):
                    client.update_queue(queue)
                with pytest.raises(HttpResponseError, match="standard tier"):
                    client.create_topic("large", max_message_size_in_kilobytes=1024)
            else:
                queue.max_message_size_in_kilobytes = 2048
                client.update_queue(queue)
                assert client.get_queue("plain").max_message_size_in_kilobytes == 2048
            # Whoever sends back what was read changes nothing.
            client.update_queue(client.get_queue("plain"))


def test_keys_and_what_knows_none_are_refused(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("a-key-that-is-long-enough")
    for option in ("--console", "--namespaces"):
        command = [sys.executable, "-m", "lazaretto", "emulator", "--key-file", str(tmp_path / "key"), option]
        refused = subprocess.run(command, capture_output=True, text=True, timeout=WAIT, check=False)
        assert (refused.returncode, option in refused.stderr) == (2, True)


def test_a_certificate_is_made_and_told(tmp_path: Path) -> None:
    pytest.importorskip("trustme")
    config = config_of(tmp_path / "Config.json", "q")
    state = {"XDG_STATE_HOME": str(tmp_path / "state")}
    with emulated("--config", str(config), "--tls", environment=state) as emulator:
        said = emulator.said
        assert len(said["fingerprint"]) == 64
        with ServiceBusAdministrationClient.from_connection_string(
            said["connection_string"], connection_verify=said["authority"]
        ) as administration:
            administration.create_queue("more")
            assert [queue.name for queue in administration.list_queues()] == ["more", "q"]
        with ServiceBusClient.from_connection_string(said["connection_string"]) as client:
            client.get_queue_sender("more").send_messages(ServiceBusMessage("lamp"))


def test_pages_of_each_namespace(tmp_path: Path) -> None:
    config = config_of(tmp_path / "Config.json", "orders")
    with emulated("--config", str(config), "--console") as emulator:
        assert emulator.said["console"].endswith("/$emulator/console/")
        page = emulator.request("GET", "/$emulator/console/")
        assert (page.status, b"orders" in page.body) == (200, True)
        emulator.namespace("a")
        send = {"Host": "a.localhost", "Content-Type": "application/json"}
        place = "/$emulator/console/api/v1/messages?queue=orders"
        assert emulator.request("POST", place, '{"body": "lamp"}', send).status == 201
        for host, amount in (("a.localhost", 1), ("localhost", 0)):
            assert len(emulator.request("GET", place, headers={"Host": host}).json) == amount
        assert emulator.request("GET", "/$emulator/console/", headers={"Host": "x.example"}).status == 401
        # A browser that has named a namespace once stays in it, until it names another.
        named = emulator.request("GET", "/$emulator/console/?namespace=A")
        cookie, *attributes = named.headers["set-cookie"].split("; ")
        assert (named.status, cookie) == (200, "lazaretto-namespace=a")
        assert "Path=/$emulator/console/" in attributes
        assert len(emulator.request("GET", place, headers={"Cookie": cookie}).json) == 1
        assert emulator.request("GET", f"{place}&namespace=", headers={"Cookie": cookie}).json == []
        assert emulator.request("GET", "/$emulator/console/?namespace=b").status == 404
        emulator.control("DELETE", "namespaces/a")
        assert emulator.request("GET", place, headers={"Cookie": cookie}).json == []
    with emulated() as emulator:
        assert emulator.request("GET", "/$emulator/console/").status == 404
