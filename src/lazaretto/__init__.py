"""Lazaretto: a durable message queue that one bad message cannot stop."""

import functools
import sys
import warnings
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

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

#: Modules by names that they had, which are still taken.
_FORMER = {
    "lazaretto.amqp": "lazaretto.servicebus.amqp",
    "lazaretto.door": "lazaretto.servicebus",
    "lazaretto.metrics": "lazaretto.observe.metrics",
}


class _FormerNames:
    """Finds modules by their former names, and warns. Python asks it for names that it does not find."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        parts = name.split(".")
        present = _FORMER.get(".".join(parts[:2]))
        if present is None:
            return None
        present = ".".join((present, *parts[2:]))
        warnings.warn(f"{name} is {present} now: import that", DeprecationWarning, stacklevel=2)
        return ModuleSpec(name, _FormerName(present))


class _FormerName:
    """Loads a module that has what another one has."""

    def __init__(self, present: str) -> None:
        self._present = present

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave it to Python: the module takes its place once it is loaded."""

    def exec_module(self, module: ModuleType) -> None:
        # With an empty path, modules below it are asked for here, too, and loaded once.
        module.__path__ = []
        module.__getattr__ = functools.partial(getattr, import_module(self._present))


if not any(type(finder).__name__ == _FormerNames.__name__ for finder in sys.meta_path):
    sys.meta_path.append(_FormerNames())


def __getattr__(name: str) -> Any:
    # All public names are loaded with the first one: the command asks for none of them.
    if name.startswith("__") and name != "__all__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module("lazaretto.api"), name, globals())
    if value is globals():
        if name in _ELSEWHERE:
            # An AttributeError's text is lost to whoever imports a name.
            raise ImportError(f"{name!r} is in {_ELSEWHERE[name]}: from {_ELSEWHERE[name]} import {name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *import_module("lazaretto.api").__all__]
