"""The table of facts that all clients are asked, and a server on whose store its entities are."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import trustme
from azure.servicebus.management import AuthorizationRule, ServiceBusAdministrationClient

from door.served import Served
from lazaretto import Broker, PoisonPolicy, QueueOptions

CLIENTS = Path(__file__).parents[2] / "contrib/clients"
TABLE = CLIENTS / "facts.json"
_MANAGER, _SENDER = "RootManageSharedAccessKey", "sender"
_KEY = "a key of this test"
_DELIVERIES = 10
#: The entity whose key may only send.
_SEND_ONLY = "send-only"


class Answer(NamedTuple):
    """What programs say of the facts: those that hold, why others do not, and calls that the client lacks."""

    right: set[str]
    wrong: dict[str, str]
    impossible: dict[str, str]


def facts() -> list[dict[str, Any]]:
    """Return the table."""
    table: list[dict[str, Any]] = json.loads(TABLE.read_text("utf-8"))
    return table


def _options(form: Mapping[str, Any]) -> QueueOptions:
    named = dict(form)
    named.pop("status", None)
    tries = named.pop("deliveries", _DELIVERIES)
    return QueueOptions(policy=PoisonPolicy(receive_retry_count=tries - 1), **named)


def make_entities(broker: Broker, table: Iterable[Mapping[str, Any]]) -> None:
    """Make the queues and topics of facts."""
    for fact in table:
        for name, form in fact.get("queues", {}).items():
            broker.create_queue(name, _options(form))
            broker.set_status(name, form.get("status", "active"))
        for topic, subscriptions in fact.get("topics", {}).items():
            broker.create_topic(topic)
            for name, form in subscriptions.items():
                broker.create_subscription(topic, name, _options(form))


def make_anew(broker: Broker, fact: Mapping[str, Any]) -> None:
    """Make the queues and topics of a fact that was asked again."""
    for name in fact.get("queues", {}):
        broker.delete_queue(name)
    for name in fact.get("topics", {}):
        broker.delete_topic(name)
    make_entities(broker, [fact])


def settings(serve: Callable[..., Served], broker: Broker, folder: Path) -> dict[str, Any]:
    """Start a server with keys and TLS for all facts; return what programs must know of it."""
    table = facts()
    make_entities(broker, table)
    authority, trusted = trustme.CA(), folder / "authority.pem"
    authority.cert_pem.write_to_path(str(trusted))
    made = authority.issue_cert("localhost", "127.0.0.1").private_key_and_cert_chain_pem
    made.write_to_path(str(folder / "server.pem"))
    (folder / "key").write_text(_KEY)
    for name in ("key", "server.pem"):
        (folder / name).chmod(0o600)
    served = serve("--certificate", str(folder / "server.pem"), "--plain", "--key-file", str(folder / "key"))
    at = f"localhost:{served.port}"
    # With TLS clients are told the port elsewhere, lest they look for it in the certificate.
    endpoints = {"tls": "localhost"}
    keys = {
        "plain": (_MANAGER, _KEY), "tls": (_MANAGER, _KEY), "websocket": (_MANAGER, _KEY),
        "wrong-key": (_MANAGER, "another key"), "sender": (_SENDER, _KEY),
    }  # fmt: skip
    strings = {
        way: f"Endpoint=sb://{endpoints.get(way, at)};SharedAccessKeyName={name};SharedAccessKey={key}"
        + ("" if way in ("tls", "websocket") else ";UseDevelopmentEmulator=true")
        for way, (name, key) in keys.items()
    }
    with ServiceBusAdministrationClient.from_connection_string(
        strings["plain"], connection_verify=str(trusted)
    ) as administration:
        for name in (name for fact in table for name in fact.get("keys", ())):
            queue = administration.get_queue(name)
            queue.authorization_rules = [
                AuthorizationRule(
                    type="SharedAccessAuthorizationRule", rights=["Send"], key_name=_SENDER,
                    claim_type="SharedAccessKey", claim_value="None", primary_key=_KEY, secondary_key="other",
                )
            ]  # fmt: skip
            administration.update_queue(queue)
    # Who logs in with the key of an entity says whose it is.
    keys["sender"] = (f"{_SEND_ONLY}/{_SENDER}", _KEY)
    return {
        "host": "localhost", "port": served.port, "authority": str(trusted),
        "strings": strings, "keys": keys,
    }  # fmt: skip


def read(output: str) -> Answer:
    """Return what a program printed, one fact a line."""
    right, wrong, impossible = set[str](), dict[str, str](), dict[str, str]()
    for line in output.splitlines():
        told = json.loads(line)
        if "impossible" in told:
            impossible[told["title"]] = told["impossible"]
        elif told["ok"]:
            right.add(told["title"])
        else:
            wrong[told["title"]] = told["why"]
    return Answer(right, wrong, impossible)
