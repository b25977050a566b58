"""The service host: isolated handlers; a message that fails, hangs or crashes affects only itself."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

_HOMES = {
    "Handler": "handlers",
    "HandlerContext": "context",
    "HandlerOptions": "handler_options",
    "HandlerReport": "handler_stats",
    "Isolation": "handler_options",
    "LastError": "context",
    "PoisonMessage": "handler_stats",
    "ServiceHost": "host",
    "handler": "handlers",
    "load_function": "handlers",
    "load_handlers": "handlers",
}


def __getattr__(name: str) -> Any:
    # Only when asked for: a sandbox needs the handler's part alone.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    # A module of this package is found under its own name, unless something else has it.
    globals()[name] = found
    return found
