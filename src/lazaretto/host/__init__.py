"""The service host: isolated handlers; a message that fails, hangs or crashes affects only itself."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lazaretto.broker.handling.context import HandlerContext, LastError
    from lazaretto.host.handler_stats import HandlerReport, PoisonMessage
    from lazaretto.host.handlers import (
        Handler,
        HandlerOptions,
        Isolation,
        handler,
        load_function,
        load_handlers,
    )
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

_MODULES = {
    "host.handlers": (
        "Handler", "HandlerOptions", "Isolation", "handler", "load_function", "load_handlers",
    ),
    "host.handler_stats": ("HandlerReport", "PoisonMessage"),
    "host.host": ("ServiceHost",),
    "broker.handling.context": ("HandlerContext", "LastError"),
}  # fmt: skip
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    # Only when asked for: a sandbox needs the handler's part alone.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"lazaretto.{_HOMES[name]}"), name)
    # A module of this package is found under its own name, unless something else has it.
    globals()[name] = value
    return value
