"""Finds what users name as text: modules, and functions in them."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from typing import Any

from lazaretto.errors import HandlerError
from lazaretto.model.checks import suggestion


def load(reference: str) -> Any:
    """Return what "module:name" means. Raises HandlerError."""
    module_name, _, name = reference.partition(":")
    if not name:
        raise HandlerError(f"expected module:function, got {reference!r}")
    return attribute(import_module(module_name), module_name, name)


def import_module(name: str) -> Any:
    """Import a module, looking in the current folder first. Raises HandlerError, whatever the module does."""
    here = os.getcwd()  # noqa: PTH109 - sys.path holds text
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except BaseException as error:
        # A module may do anything when it is imported, sys.exit too.
        if isinstance(error, KeyboardInterrupt):
            raise
        raise HandlerError(f"{name!r} cannot be imported: {type(error).__name__}: {error}") from error


def _is_own(owner: Any, name: str) -> bool:
    """Return whether a name of a module was made there, and not imported."""
    value = getattr(owner, name, None)
    if inspect.isfunction(value) or inspect.isclass(value):
        return value.__module__ == getattr(owner, "__name__", None)
    return not inspect.ismodule(value)


def attribute(module: Any, module_name: str, name: str) -> Any:
    """Return what a dotted name means in a module. Raises HandlerError."""
    value = module
    for part in name.split("."):
        if not hasattr(value, part):
            names = [known for known in dir(value) if not known.startswith("_") and _is_own(value, known)]
            raise HandlerError(f"{module_name!r} has no {name!r}{suggestion(part, names)}")
        value = getattr(value, part)
    return value
