"""The four services of an order. What a saga knows of itself is the state of its conversation group.

An order's dialogs with the customer, the shipper and the bank are in one group, so that whatever comes next
from any of them is read by one reader at a time, with the state that the last message has left. What fails
is compensated: when the bank says no, or says nothing for ten seconds, the shipment is cancelled and the
customer told.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from lazaretto.dialogs import DialogMessage, DialogTransaction, by_type
from lazaretto.model.conversations import DIALOG_TIMER, ERROR

DEFINITIONS = Path(__file__).with_name("services.toml")
PATIENCE = 10.0


class Order(msgspec.Struct):
    """Something that a customer wants, and the amount in cents."""

    article: str
    amount: int
    account: str


class Saga(msgspec.Struct):
    """How far an order is: the dialogs that belong to it."""

    order: Order
    customer: str
    shipment: str
    payment: str | None = None


def _load(message: DialogMessage, work: DialogTransaction) -> Saga:
    return msgspec.json.decode(work.group_state(message.group) or b"", type=Saga)


def _save(message: DialogMessage, work: DialogTransaction, saga: Saga) -> None:
    work.set_group_state(message.group, msgspec.json.encode(saga))


def place(message: DialogMessage, work: DialogTransaction) -> None:
    """An order comes: reserve a shipment."""
    order = msgspec.json.decode(message.body, type=Order)
    shipment = work.begin_dialog("Orders", "Shipments", "Shipping", group=message.group)
    work.send(shipment, "shipment/Reserve", msgspec.json.encode({"article": order.article}))
    _save(message, work, Saga(order, message.conversation, shipment))


def reserved(message: DialogMessage, work: DialogTransaction) -> None:
    """The shipment is reserved: charge."""
    saga = _load(message, work)
    saga.payment = work.begin_dialog("Orders", "Payments", "Paying", group=message.group)
    charge = {"account": saga.order.account, "amount": saga.order.amount}
    work.send(saga.payment, "payment/Charge", msgspec.json.encode(charge))
    work.set_timer(saga.payment, PATIENCE)
    _save(message, work, saga)


def charged(message: DialogMessage, work: DialogTransaction) -> None:
    """The money is there: everything is done."""
    saga = _load(message, work)
    work.send(saga.customer, "order/Confirmed")
    for conversation in (message.conversation, saga.shipment, saga.customer):
        work.end(conversation)


def failed(message: DialogMessage, work: DialogTransaction) -> None:
    """The bank said no, or the shipper did: undo what was done, and tell the customer why."""
    saga = _load(message, work)
    assert message.error is not None
    if message.conversation != saga.shipment:
        work.send(saga.shipment, "shipment/Cancel")
        work.end(saga.shipment)
    work.end(saga.customer, error=message.error)


def too_late(message: DialogMessage, work: DialogTransaction) -> None:
    """The bank says nothing."""
    saga = _load(message, work)
    work.end(message.conversation, error=(408, "too late"))
    work.send(saga.shipment, "shipment/Cancel")
    work.end(saga.shipment)
    work.end(saga.customer, error=(408, "the bank did not answer"))


orders = by_type(
    {
        "order/Place": place,
        "shipment/Reserved": reserved,
        "payment/Charged": charged,
        ERROR: failed,
        DIALOG_TIMER: too_late,
    }
)


def reserve(message: DialogMessage, work: DialogTransaction) -> None:
    """Put something aside for an order."""
    article = msgspec.json.decode(message.body)["article"]
    print(f"  shipment: {article} reserved")
    work.send(message.conversation, "shipment/Reserved")


def cancel(message: DialogMessage, work: DialogTransaction) -> None:
    """Put it back."""
    print("  shipment: cancelled")


shipments = by_type({"shipment/Reserve": reserve, "shipment/Cancel": cancel})

#: What is in the accounts, in cents.
ACCOUNTS = {"Ana": 10_000, "Ben": 50}


def charge(message: DialogMessage, work: DialogTransaction) -> None:
    """Take money from an account, if it is there."""
    wanted = msgspec.json.decode(message.body)
    if ACCOUNTS[wanted["account"]] < wanted["amount"]:
        print(f"  payment: {wanted['account']} has too little")
        work.end(message.conversation, error=(402, "not enough money"))
        return
    print(f"  payment: {wanted['account']} pays {wanted['amount'] / 100:.2f}")
    work.send(message.conversation, "payment/Charged")


payments = by_type({"payment/Charge": charge})
