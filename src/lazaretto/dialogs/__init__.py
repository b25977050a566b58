"""Dialogs: long, ordered, reliable conversations between two services, as in Service Broker."""

from lazaretto.dialogs.activation import Reader
from lazaretto.dialogs.dialog_messages import DialogMessage
from lazaretto.dialogs.dialog_transaction import DialogTransaction
from lazaretto.dialogs.dialogs import Dialogs
from lazaretto.dialogs.procedures import by_type

__all__ = ["DialogMessage", "DialogTransaction", "Dialogs", "Reader", "by_type"]
