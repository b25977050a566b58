"""Lazaretto: a durable message queue that one bad message cannot stop."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lazaretto.api import *  # noqa: F403

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # All public names are loaded with the first one: the command asks for none of them.
    if name.startswith("__") and name != "__all__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module("lazaretto.api"), name, globals())
    if found is globals():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*globals(), *import_module("lazaretto.api").__all__]
