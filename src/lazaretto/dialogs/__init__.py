"""Dialogs: long, ordered, reliable conversations between two services, as in Service Broker."""

from lazaretto.dialogs.activation import Reader, by_type
from lazaretto.dialogs.dialog_transaction import DialogMessage, DialogTransaction
from lazaretto.dialogs.dialogs import Dialogs

__all__ = ["DialogMessage", "DialogTransaction", "Dialogs", "Reader", "by_type"]
