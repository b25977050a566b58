"""Handlers: a function, its queue and its options."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from lazaretto.errors import HandlerError, InvalidOption
from lazaretto.host.handler_options import HandlerOptions
from lazaretto.model.checks import shown
from lazaretto.model.entities import EntityPath, Subqueue
from lazaretto.model.options import initialised_with_options_of, takes_options_of
from lazaretto.tools.loading import attribute, import_module, load

HandlerFunction = Callable[..., Any]


class Handler:
    """A function bound to a queue. Calling it calls the function.

    `path`: the queue, or a dead-letter subqueue. `function`: of a message, or of a message and its
    HandlerContext; sync or async. `options`: as in HandlerOptions. Raises HandlerError for any other
    signature, InvalidOption, InvalidPath.
    """

    @initialised_with_options_of(HandlerOptions)
    def __init__(self, path: str, function: HandlerFunction, **options: Any) -> None:
        self.path = EntityPath.parse(path)
        if self.path.subqueue not in (Subqueue.MAIN, Subqueue.DEAD_LETTER):
            raise InvalidOption(f"expected a queue or its dead-letter subqueue, got {path!r}")
        self.function: HandlerFunction = function.function if isinstance(function, Handler) else function
        function = self.function
        self.takes_context = _takes_context(function)
        self.options = HandlerOptions(**options)
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self.__doc__ = function.__doc__

    @classmethod
    def with_options(cls, path: str, function: HandlerFunction, options: HandlerOptions) -> Handler:
        """Return a handler with options that are checked already."""
        made = cls(path, function)
        made.options = options
        return made

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.function(*arguments, **named)

    def __repr__(self) -> str:
        return f"<Handler {self.__name__} of {str(self.path)!r}>"

    @property
    def at_once(self) -> bool:
        """Whether messages of a batch run concurrently: the handler and all middleware are async."""
        return all(_is_async(one) for one in (self.function, *self.options.middleware))

    def reference(self) -> tuple[str, str] | None:
        """Return the module and name to import the function in another process, or None."""
        module = getattr(self.function, "__module__", None)
        name = getattr(self.function, "__qualname__", None)
        if module is None or name is None or module == "__main__" or "<" in name:
            return None
        found: Any = sys.modules.get(module)
        for part in name.split("."):
            found = getattr(found, part, None)
        return (module, name) if found is self.function or found is self else None


@takes_options_of(HandlerOptions)
def handler(path: str, **options: Any) -> Callable[[HandlerFunction], Handler]:
    """Make a function the handler of a queue: `@handler("orders", deadline=5)`. See HandlerOptions."""
    return lambda function: Handler(path, function, **options)


def _is_async(function: Callable[..., object]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - an object whose calls are coroutines
    )


def _takes_context(function: object) -> bool:
    """Return whether a function takes a context after the message. Raises HandlerError."""
    if not callable(function):
        raise HandlerError(f"expected a handler to be a function, got {shown(function)}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise HandlerError(
            f"expected a handler to be a function, got the generator {shown(function)}: it would not run"
        )
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):
        return False
    for arguments in ((None, None), (None,)):
        try:
            signature.bind(*arguments)
        except TypeError:
            continue
        required = [
            p
            for p in signature.parameters.values()
            if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        # A second parameter with a default is the function's own business, unless it is called context.
        named = [p.name for p in signature.parameters.values()]
        return len(arguments) == 2 and (len(required) == 2 or named[1:2] == ["context"])
    raise HandlerError(
        f"expected a handler of (message) or (message, context), got {shown(function)}{signature}"
    )


def load_handlers(reference: str) -> list[Handler]:
    """Return the handlers named by "module:name", or all of a module.

    The name may be a Handler, or a list or dict of them. The current folder is searched first.
    Raises HandlerError.
    """
    module_name, _, name = reference.partition(":")
    module = import_module(module_name)
    if name:
        found = attribute(module, module_name, name)
    else:
        found = [value for value in vars(module).values() if isinstance(value, Handler)]
    handlers = as_handlers(found, reference)
    if not handlers:
        raise HandlerError(f"{reference!r} has no handlers: decorate functions with @handler(queue)")
    return handlers


def load_function(reference: str) -> HandlerFunction:
    """Return the function or Handler named by "module:name". Raises HandlerError."""
    found: HandlerFunction = load(reference)
    _takes_context(found.function if isinstance(found, Handler) else found)
    return found


def as_handlers(given: object, what: str) -> list[Handler]:
    """Return handlers given as one, several, or functions by queue. Raises HandlerError."""
    if isinstance(given, Handler):
        return [given]
    if isinstance(given, Mapping):
        return [Handler(path, function) for path, function in given.items()]
    if isinstance(given, Iterable) and not isinstance(given, str | bytes):
        found = list(given)
        if all(isinstance(one, Handler) for one in found):
            return found
    raise HandlerError(
        f"expected {what} to be a Handler, a list of them, or functions by queue, got {shown(given)}"
    )
