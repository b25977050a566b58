"""Values of every type of AMQP from each client to each other one, as in Apache's qpid-interop-test."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("proton", reason="Proton has a wheel for Python 3.11 only, and is compiled for others")

from proton import Message as ProtonMessage
from rabbitmq_amqp_python_client.wire.delivery_state import Accepted
from rabbitmq_amqp_python_client.wire.message import AmqpValue, Properties
from rabbitmq_amqp_python_client.wire.message import Message as RabbitMessage

from door import rabbit
from door.interop import ALL, Told, for_proton, for_rabbit, kinds_in, told, told_by_proton
from door.javascript_clients import node
from door.proton_peer import Receives, Sends
from door.served import Served
from lazaretto import Broker, Rule, SqlFilter
from lazaretto.servicebus.amqp import Sections

pytestmark = pytest.mark.stores("sqlite")

#: What a client has no value for, or writes wrongly.
_CANNOT = {
    "proton": set[str](),
    "rabbit": {"decimal32", "decimal64", "decimal128"},
    "rhea": set[str](),
}


def sent_by(client: str) -> list[Told]:
    """Return the values that a client can send."""
    return [one for one in ALL if not _CANNOT[client].intersection(kinds_in(one))]


@pytest.fixture
def topic(broker: Broker) -> str:
    broker.create_topic("types")
    for name, kinds in _CANNOT.items():
        # A client does not tell of a message that it cannot read.
        terms = [f"sys.Label NOT LIKE '%{kind}%'" for kind in sorted(kinds)] or ["1 = 1"]
        rule = Rule("readable", SqlFilter(" AND ".join(terms)))
        broker.create_subscription("types", name, rules=[rule])
    return "types"


def _by_proton(port: int, topic: str, _: Any) -> None:
    given = sent_by("proton")
    messages = [
        ProtonMessage(for_proton(one), id=f"proton {n}", subject=json.dumps(one))
        for n, one in enumerate(given)
    ]
    Sends(port, topic, messages).run()


def _by_rabbit(port: int, topic: str, _: Any) -> None:
    with rabbit.opened(port) as session:
        for n, one in enumerate(sent_by("rabbit")):
            properties = Properties(message_id=f"rabbit {n}", subject=json.dumps(one))
            state = rabbit.send(
                session, topic, RabbitMessage(AmqpValue(for_rabbit(one)), properties=properties)
            )
            assert isinstance(state, Accepted), one


def _by_rhea(port: int, topic: str, run: Callable[..., Any]) -> None:
    given = sent_by("rhea")
    assert run("send", topic, given) == {"accepted": len(given)}


@pytest.mark.parametrize("send", [_by_proton, _by_rabbit, _by_rhea])
def test_every_type_arrives_at_every_client(
    served: Served, broker: Broker, topic: str, packages: Path, tmp_path: Path, send: Callable[..., None]
) -> None:
    def run(what: str, address: str, given: Any) -> Any:
        file = tmp_path / "given.json"
        file.write_text(json.dumps(given))
        return node(packages, "rhea_types.js", str(served.port), what, address, str(file))

    send(served.port, topic, run)
    count = broker.queue("types/Subscriptions/proton").counts.total
    assert count == len(sent_by(send.__name__.removeprefix("_by_")))

    receives = Receives(served.port, "types/Subscriptions/proton", count)
    receives.run()
    strange = [(message.subject, seen) for message in receives.found
               if (seen := told_by_proton(message.body)) != json.loads(message.subject)]  # fmt: skip
    assert strange == []

    with rabbit.opened(served.port) as session:
        for _ in range(broker.queue("types/Subscriptions/rabbit").counts.total):
            sections = Sections(rabbit.receive(session, "types/Subscriptions/rabbit"))
            # Its reader drops the types of numbers: ours reads what it was given.
            # Proton leaves a body out that is null.
            seen, subject = told((sections.body() or [None])[0]), sections.properties().subject
            if seen != json.loads(subject or ""):
                strange.append((subject, seen))
    assert strange == []

    assert run("receive", "types/Subscriptions/rhea", {"count": count}) == {"seen": count, "strange": []}
