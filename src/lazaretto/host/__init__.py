"""The service host: isolated handlers; a message that fails, hangs or crashes affects only itself."""

from lazaretto.host.context import HandlerContext, LastError
from lazaretto.host.handler_options import HandlerOptions, Isolation
from lazaretto.host.handler_stats import HandlerReport, PoisonMessage
from lazaretto.host.handlers import Handler, handler, load_function, load_handlers
from lazaretto.host.host import ServiceHost

__all__ = [
    "Handler",
    "HandlerContext",
    "HandlerOptions",
    "HandlerReport",
    "Isolation",
    "LastError",
    "PoisonMessage",
    "ServiceHost",
    "handler",
    "load_function",
    "load_handlers",
]
