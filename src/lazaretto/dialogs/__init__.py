"""Dialogs: long, ordered, reliable conversations between two services, as in Service Broker."""

from lazaretto.dialogs.activation import Reader
from lazaretto.dialogs.dialogs import Dialogs
from lazaretto.dialogs.messages import DialogMessage
from lazaretto.dialogs.procedures import by_type
from lazaretto.dialogs.transaction import DialogTransaction

__all__ = ["DialogMessage", "DialogTransaction", "Dialogs", "Reader", "by_type"]
