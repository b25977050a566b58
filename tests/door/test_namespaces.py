"""Namespaces of `lazaretto emulator`: isolated, made from one file, reset, emptied, and moved in time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import MessageLockLostError, ServiceBusError

from door.emulators import Emulated, config_of, emulated
from door.wire import some

HOUR = 3600


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return config_of(tmp_path_factory.mktemp("config") / "Config.json", "q")


@pytest.fixture(scope="module")
def emulator(config: Path) -> Iterator[Emulated]:
    with emulated("--config", str(config)) as started:
        yield started


def client(text: str, **named: Any) -> ServiceBusClient:
    return ServiceBusClient.from_connection_string(text, **named)


def send(text: str, path: str, *bodies: str) -> None:
    with client(text) as opened, opened.get_queue_sender(path) as sender:
        sender.send_messages([ServiceBusMessage(body) for body in bodies])


def peeked(text: str, path: str) -> list[str]:
    with client(text) as opened, opened.get_queue_receiver(path) as receiver:
        return [str(one) for one in receiver.peek_messages(100)]


def test_namespaces_are_isolated_and_made_from_one_file(emulator: Emulated) -> None:
    one, two = emulator.namespace("one"), emulator.namespace("Two")
    for text in (one, two, emulator.said["connection_string"]):
        send(text, "q", text)
        with client(text) as opened:
            opened.get_topic_sender("t").send_messages(ServiceBusMessage("news"))
    for text in (one, two, emulator.said["connection_string"]):
        assert peeked(text, "q") == [text]
    names = [one["name"] for one in emulator.control("GET", "namespaces").json]
    assert names[0] == ""
    assert {"one", "two"} <= set(names)


def test_a_host_name_names_a_namespace(emulator: Emulated) -> None:
    text = emulator.namespace("by-host")
    send(text, "q", "lamp")
    at = f"sb://localhost:{emulator.port}"
    named = emulator.said["connection_string"].replace(at, f"sb://by-host.localhost:{emulator.port}")
    # Not every machine knows that such names are its own.
    with (
        client(named, custom_endpoint_address=f"sb://127.0.0.1:{emulator.port}") as opened,
        opened.get_queue_receiver("q") as receiver,
    ):
        assert [str(one) for one in some(receiver, 1)] == ["lamp"]
    clock = emulator.request("GET", "/$emulator/clock", headers={"Host": "by-host.localhost"})
    assert clock.status == 200


def test_a_deleted_namespace_is_gone(emulator: Emulated) -> None:
    text = emulator.namespace("gone")
    send(text, "q", "lamp")
    assert emulator.control("DELETE", "namespaces/gone").status == 204
    assert emulator.control("DELETE", "namespaces/gone").status == 404
    assert emulator.control("POST", "reset?namespace=gone").status == 404
    assert peeked(emulator.namespace("gone"), "q") == []


def test_a_reset_makes_a_namespace_as_it_was(emulator: Emulated) -> None:
    text = emulator.namespace("again")
    with client(text) as opened, opened.get_queue_receiver("q") as receiver:
        send(text, "q", "old")
        assert [str(one) for one in some(receiver, 1)] == ["old"]
        emulator.control("POST", "clock/advance?namespace=again", {"seconds": HOUR})
        assert emulator.control("POST", "reset?namespace=again").status == 204
        now = datetime.fromisoformat(emulator.control("GET", "clock?namespace=again").json["now"])
        assert now < datetime.now(UTC) + timedelta(seconds=HOUR / 2)
        send(text, "q", "new")
        # Who was connected comes back by itself.
        (found,) = some(receiver, 1)
        assert (str(found), found.sequence_number) == ("new", 1)


def test_clearing_takes_messages_of_every_kind(emulator: Emulated) -> None:
    text = emulator.namespace("cleared")
    with client(text) as opened:
        with opened.get_queue_receiver("q") as receiver, opened.get_queue_sender("q") as sender:
            send(text, "q", "locked", "deferred", "dead", "fresh")
            locked, deferred, dead = some(receiver, 3)
            receiver.defer_message(deferred)
            receiver.dead_letter_message(dead)
            sender.schedule_messages(ServiceBusMessage("later"), datetime.now(UTC) + timedelta(hours=1))
            assert emulator.control("POST", "clear?namespace=cleared", {"entity": "Q"}).status == 204
            assert peeked(text, "q") == peeked(text, "q/$deadletterqueue") == []
            with pytest.raises(MessageLockLostError):
                receiver.complete_message(locked)
            sender.send_messages(ServiceBusMessage("new"))
            assert [str(one) for one in some(receiver, 1)] == ["new"]
        opened.get_topic_sender("t").send_messages(ServiceBusMessage("news"))
        assert emulator.control("POST", "clear?namespace=cleared", {"entity": "t"}).status == 204
        opened.get_topic_sender("t").send_messages(ServiceBusMessage("later news"))
        with opened.get_subscription_receiver("t", "s") as receiver:
            assert [str(one) for one in some(receiver, 1)] == ["later news"]
    assert emulator.control("POST", "clear?namespace=cleared", {"entity": "nothing"}).status == 404


def test_the_clock_wakes_who_waits(emulator: Emulated) -> None:
    _wakes(emulator, emulator.namespace("hours"), "hours")


@pytest.mark.stores("postgres")
def test_the_clock_of_a_store_that_is_kept(url: str, tmp_path: Path) -> None:
    config = config_of(tmp_path / "Config.json", "q")
    with emulated("--config", str(config), "--store", url) as emulator:
        _wakes(emulator, emulator.said["connection_string"], "")


def _wakes(emulator: Emulated, text: str, name: str) -> None:
    """Check that a namespace's clock ends lives and locks, and brings what is scheduled to who waits."""
    advance = f"clock/advance?namespace={name}"
    with (
        client(text) as opened,
        opened.get_queue_receiver("q") as receiver,
        opened.get_queue_sender("q") as sender,
    ):
        sender.send_messages(ServiceBusMessage("short", time_to_live=timedelta(minutes=1)))
        (first,) = some(receiver, 1)
        receiver.abandon_message(first)
        sender.schedule_messages(ServiceBusMessage("later"), datetime.now(UTC) + timedelta(hours=1))
        told = emulator.control("POST", advance, {"seconds": HOUR + 1})
        assert told.status == 200
        # A receiver that was attached before gets it; the one with a minute to live has expired.
        (found,) = some(receiver, 1)
        assert str(found) == "later"
        emulator.control("POST", advance, {"seconds": HOUR})
        with pytest.raises(MessageLockLostError):
            receiver.complete_message(found)
        (back,) = some(receiver, 1)
        assert (str(back), back.delivery_count) == ("later", 1)
        receiver.complete_message(back)


def test_a_lock_lasts_that_has_not_run_out(emulator: Emulated) -> None:
    text = emulator.namespace("locks")
    send(text, "q", "lamp")
    with client(text) as opened, opened.get_queue_receiver("q") as receiver:
        (found,) = some(receiver, 1)
        emulator.control("POST", "clock/advance?namespace=locks", {"seconds": 30})
        receiver.complete_message(found)
    assert peeked(text, "q") == []


def test_the_lock_of_a_session_runs_out(tmp_path: Path) -> None:
    queues = [{"Name": "s", "Properties": {"RequiresSession": True}}]
    config = tmp_path / "Config.json"
    config.write_text(json.dumps({"UserConfig": {"Namespaces": [{"Queues": queues}]}}))
    with emulated("--config", str(config)) as emulator, client(emulator.said["connection_string"]) as opened:
        with opened.get_queue_sender("s") as sender:
            sender.send_messages(ServiceBusMessage("lamp", session_id="a"))
        with opened.get_queue_receiver("s", session_id="a") as receiver:
            some(receiver, 1)
            emulator.control("POST", "clock/advance", {"seconds": HOUR})
            with opened.get_queue_receiver("s", session_id=NEXT_AVAILABLE_SESSION) as other:
                assert other.session.session_id == "a"
                assert [str(one) for one in some(other, 1)] == ["lamp"]
            with pytest.raises(ServiceBusError):
                receiver.session.renew_lock()


@pytest.mark.parametrize(
    ("method", "path", "given", "status"),
    [
        ("GET", "nothing", None, 404),
        ("PUT", "namespaces/a_b", None, 400),
        ("PUT", "namespaces", None, 400),
        ("DELETE", "namespaces/", None, 400),
        ("POST", "clock/advance", {"seconds": -1}, 400),
        ("POST", "clock/advance", {"seconds": "x"}, 400),
        ("POST", "clock/advance", {"seconds": 1e300}, 400),
        ("POST", "clear", {"entity": "a//b"}, 400),
        ("POST", "clear", None, 400),
    ],
)
def test_what_is_refused(emulator: Emulated, method: str, path: str, given: Any, status: int) -> None:
    answer = emulator.control(method, path, given)
    assert (answer.status, answer.json["status"]) == (status, status)
    assert answer.json["detail"]


def test_pages_of_other_sites_are_kept_out(emulator: Emulated) -> None:
    for headers in ({"Host": "site.example"}, {"Origin": "https://site.example"}):
        assert emulator.request("POST", "/$emulator/reset", headers=headers).status == 401


def test_a_kept_store_is_never_reset(tmp_path: Path, config: Path) -> None:
    with emulated("--config", str(config), "--store", str(tmp_path / "kept.db")) as emulator:
        send(emulator.said["connection_string"], "q", "lamp")
        assert emulator.control("POST", "reset").status == 400
        assert peeked(emulator.said["connection_string"], "q") == ["lamp"]
        assert peeked(emulator.namespace("other"), "q") == []
        assert emulator.control("POST", "reset?namespace=other").status == 204


def test_each_name_of_a_key_makes_a_namespace_if_asked_for(config: Path) -> None:
    with emulated("--config", str(config), "--namespaces") as emulator:
        text = emulator.said["connection_string"]
        for name in ("test-1", "test-2"):
            named = text.replace("RootManageSharedAccessKey", name)
            send(named, "q", name)
            assert peeked(named, "q") == [name]
        assert peeked(text, "q") == []


def test_a_page_of_another_site_makes_no_namespace(config: Path) -> None:
    with emulated("--config", str(config), "--namespaces") as emulator:
        for headers in ({"Host": "site.example"}, {"Host": "a.localhost", "Origin": "https://site.example"}):
            assert emulator.request("GET", "/q", headers=headers).status == 401
        assert [one["name"] for one in emulator.control("GET", "namespaces").json] == [""]
