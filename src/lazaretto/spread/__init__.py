"""Several stores used as one: a queue spread over them, with each partition's messages on one server."""

from lazaretto.model.partitions import Placed
from lazaretto.spread.spread_broker import SpreadBroker, connect
from lazaretto.spread.spread_receiver import SpreadReceiver
from lazaretto.spread.spread_sender import SpreadSender

__all__ = ["Placed", "SpreadBroker", "SpreadReceiver", "SpreadSender", "connect"]
