"""Lazaretto: a durable message queue that one bad message cannot stop."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lazaretto.api import *  # noqa: F403

__version__ = "0.2.0"

#: Names that newcomers look for here, and where they are.
_ELSEWHERE = {
    **dict.fromkeys(
        ("Handler", "HandlerContext", "HandlerOptions", "ServiceHost", "handler", "load_handlers"),
        "lazaretto.host",
    ),
    **dict.fromkeys(("process", "spark_session", "triage"), "lazaretto.spark"),
    **dict.fromkeys(("AsyncBroker", "AsyncReceiver", "AsyncSender"), "lazaretto.aio"),
    **dict.fromkeys(("drain", "temporary_broker"), "lazaretto.testing"),
}


def __getattr__(name: str) -> Any:
    # All public names are loaded with the first one: the command asks for none of them.
    if name.startswith("__") and name != "__all__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module("lazaretto.api"), name, globals())
    if found is globals():
        if name in _ELSEWHERE:
            # An AttributeError's text is lost to whoever imports a name.
            raise ImportError(f"{name!r} is in {_ELSEWHERE[name]}: from {_ELSEWHERE[name]} import {name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*globals(), *import_module("lazaretto.api").__all__]
