"""RabbitMQ's AMQP 1.0 client for Python, which shares no code with ours or Azure's, on plain links."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator

from rabbitmq_amqp_python_client.connection import Connection, ConnectionParameters
from rabbitmq_amqp_python_client.link import ReceiverLink, SenderLink
from rabbitmq_amqp_python_client.session import Session
from rabbitmq_amqp_python_client.wire.delivery_state import Accepted, DeliveryState
from rabbitmq_amqp_python_client.wire.message import Message
from rabbitmq_amqp_python_client.wire.performatives import Source, Target, Transfer

WAIT = 120.0


@contextlib.contextmanager
def opened(
    port: int, user: str = "", password: str = "", tls: ssl.SSLContext | None = None
) -> Iterator[Session]:
    """Open a connection with one session. With a user it authenticates by SASL PLAIN."""
    parameters = ConnectionParameters("localhost", port, user=user, password=password, tls=tls)
    parameters.recovery_configuration.activated = False
    connection = Connection(parameters)
    try:
        yield connection.open_session()
    finally:
        connection.close()


def send(session: Session, queue: str, message: Message) -> DeliveryState:
    """Send one message, and return what the door says of it."""
    link = SenderLink()
    link.attach(session, Source(queue), Target(queue))
    pending = link.register_pending(b"tag")
    link.send_transfer(b"tag", message)
    state = pending.wait(WAIT)
    link.detach()
    return state


class _RawReceiver(ReceiverLink):  # type: ignore[misc]
    """Keeps what came: as this client decodes it, numbers have lost their types."""

    payload = b""

    def _on_transfer(self, performative: Transfer, payload: bytes) -> None:
        self.payload += payload
        super()._on_transfer(performative, payload)


def receive(session: Session, queue: str, state: DeliveryState | None = None) -> bytes:
    """Receive one message, settle it (accepted, unless another state is given), and return it as it came."""
    link = _RawReceiver()
    link.attach(session, Source(queue), Target(queue))
    link.flow(1)
    found = link.receive(WAIT)
    assert found is not None
    link.settle(found.delivery_id, Accepted() if state is None else state)
    link.detach()
    return link.payload
