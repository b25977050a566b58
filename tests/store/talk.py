"""Two services that talk to each other, and short words for what they do."""

from __future__ import annotations

from typing import Any

from lazaretto import Broker
from lazaretto.dialogs import DialogMessage

FRONT, SHOP = "//test/Front", "//test/Shop"
ORDERING = "//test/Ordering"
ORDER, RECEIPT, NOTE = "//test/Order", "//test/Receipt", "//test/Note"


def services(broker: Broker, **options: Any) -> None:
    """Create a shop and its front; `options` are the shop's."""
    dialogs = broker.dialogs
    dialogs.create_message_type(ORDER, "json")
    dialogs.create_message_type(RECEIPT)
    dialogs.create_message_type(NOTE)
    dialogs.create_contract(ORDERING, {ORDER: "initiator", RECEIPT: "target", NOTE: "any"})
    dialogs.create_service(FRONT, "front")
    dialogs.create_service(SHOP, "shop", [ORDERING], **options)


def begin(broker: Broker, *bodies: bytes, **options: Any) -> str:
    """Begin a dialog and send orders; return the front's handle."""
    with broker.dialogs.transaction() as work:
        handle = work.begin_dialog(FRONT, SHOP, ORDERING, **options)
        for body in bodies:
            work.send(handle, ORDER, body)
    return handle


def far(handle: str) -> str:
    """Return the handle of the other end."""
    return f"{handle[:-1]}{'t' if handle.endswith('i') else 'i'}"


def send(broker: Broker, handle: str, type_: str = ORDER, body: bytes = b"0") -> None:
    with broker.dialogs.transaction() as work:
        work.send(handle, type_, body)


def read(broker: Broker, queue: str = "shop", most: int = 10, **options: Any) -> list[DialogMessage]:
    """Receive from the next group, and be done with it."""
    with broker.dialogs.transaction(queue) as work:
        return work.receive(max_messages=most, **options)


def read_all(broker: Broker, queue: str = "shop") -> list[DialogMessage]:
    """Receive until nothing comes."""
    found: list[DialogMessage] = []
    while messages := read(broker, queue):
        found += messages
    return found


def bodies(messages: list[DialogMessage]) -> list[bytes]:
    return [message.body for message in messages]


class Refused(Exception):
    """A reader's error."""


def fail(broker: Broker, queue: str = "shop", most: int = 1) -> list[DialogMessage]:
    """Receive and roll back; return what was received."""
    found: list[DialogMessage] = []
    try:
        with broker.dialogs.transaction(queue) as work:
            found = work.receive(max_messages=most)
            if found:
                raise Refused("cannot")
    except Refused:
        pass
    return found


def leftovers(broker: Broker) -> list[str]:
    """Return what is left of dialogs in a store: conversations, sessions, messages in services' queues."""
    left = [f"conversation {c.conversation} {c.state.value}" for c in broker.dialogs.conversations()]
    for service in broker.dialogs.definitions().all("service"):
        left += [f"session {name} of {service.queue}" for name in broker.sessions(service.queue)]
        counts = broker.queue(service.queue).counts
        left += [f"{counts.total - counts.dead_letter} messages in {service.queue}"] * (
            counts.total > counts.dead_letter
        )
    with broker.transaction() as tx:
        ((entries,),) = tx.execute("SELECT count(DISTINCT dialog_id) FROM lazaretto_dialog_log").fetchall()
    dialogs = {c.dialog for c in broker.dialogs.conversations()}
    return left + [f"log of {entries - len(dialogs)} dialogs"] * (entries != len(dialogs))
