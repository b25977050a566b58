"""Handlers: a function, its queue and its options."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from lazaretto.broker.handling.functions import Bound, form_of, is_async, refuse_lazy, unbound
from lazaretto.broker.handling.functions import HandlerFunction as HandlerFunction
from lazaretto.errors import HandlerError, InvalidOption
from lazaretto.host.handler_options import HandlerOptions
from lazaretto.model.checks import shown
from lazaretto.model.entities import EntityPath, Subqueue
from lazaretto.model.options import initialised_with_options_of, takes_options_of
from lazaretto.store.runtime.processes import program
from lazaretto.tools.loading import attribute, import_module, load


class Handler(Bound):
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
        self.function: HandlerFunction = unbound(function)
        function = self.function
        self.takes_context, self.is_async = form_of(function)
        self.options = HandlerOptions(**options)
        _refuse_what_would_not_run(self.options, self.is_async)
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self.__doc__ = function.__doc__

    @classmethod
    def with_options(cls, path: str, function: HandlerFunction, options: HandlerOptions) -> Handler:
        """Return a handler with options that are checked already."""
        made = cls(path, function)
        made.options = options
        _refuse_what_would_not_run(options, made.is_async)
        return made

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.function(*arguments, **named)

    def __repr__(self) -> str:
        return f"<Handler {self.__name__} of {str(self.path)!r}>"

    @property
    def name(self) -> str:
        """The name of its function, with the module's."""
        module = getattr(self.function, "__module__", None)
        home = program() if module == "__main__" else (module or "").removesuffix(".__main__")
        return f"{home}.{self.__name__}" if home else self.__name__

    @property
    def at_once(self) -> bool:
        """Whether messages of a batch run concurrently: the handler and all middleware are async."""
        return all(map(is_async, (self.function, *self.options.middleware)))

    def reference(self) -> tuple[str, str] | None:
        """Return the module and name to import the function in another process, or None."""
        module = getattr(self.function, "__module__", None)
        name = getattr(self.function, "__qualname__", None)
        if module is None or name is None or module == "__main__" or "<" in name:
            return None
        value: Any = sys.modules.get(module)
        for part in name.split("."):
            value = getattr(value, part, None)
        return (module, name) if value is self.function or value is self else None


def _refuse_what_would_not_run(options: HandlerOptions, handler_is_async: bool) -> None:
    """Raise HandlerError for functions beside a handler that nobody would await."""
    if callable(options.validator):
        refuse_lazy(options.validator, "a validator", may_await=False)
    for hook in options.on_poison:
        refuse_lazy(hook, "a function of on_poison", may_await=False)
    # Around an async handler, all middleware may be async too.
    all_async = handler_is_async and all(map(is_async, options.middleware))
    for one in options.middleware:
        what = "middleware, unless handler and middleware are all async,"
        refuse_lazy(one, what, may_await=all_async)


@takes_options_of(HandlerOptions)
def handler(path: str, **options: Any) -> Callable[[HandlerFunction], Handler]:
    """Make a function the handler of a queue: `@handler("orders", deadline=5)`. See HandlerOptions."""
    return lambda function: Handler(path, function, **options)


def load_handlers(reference: str) -> list[Handler]:
    """Return the handlers named by "module:name", or all of a module.

    The name may be a Handler, or a list or dict of them. The current folder is searched first.
    Raises HandlerError.
    """
    module_name, _, name = reference.partition(":")
    module = import_module(module_name)
    if name:
        loaded = attribute(module, module_name, name)
    else:
        loaded = [value for value in vars(module).values() if isinstance(value, Handler)]
    handlers = as_handlers(loaded, reference)
    if not handlers:
        raise HandlerError(f"{reference!r} has no handlers: decorate functions with @handler(queue)")
    return handlers


def load_function(reference: str) -> Any:
    """Return the function or Handler named by "module:name". Raises HandlerError."""
    function = load(reference)
    form_of(function)
    return function


def as_handlers(given: object, what: str) -> list[Handler]:
    """Return handlers given as one, several, or functions by queue. Raises HandlerError."""
    if isinstance(given, Handler):
        return [given]
    if isinstance(given, Mapping):
        return [Handler(path, function) for path, function in given.items()]
    if isinstance(given, Iterable) and not isinstance(given, str | bytes):
        handlers = list(given)
        if all(isinstance(one, Handler) for one in handlers):
            return handlers
    raise HandlerError(
        f"expected {what} to be a Handler, a list of them, or functions by queue, got {shown(given)}"
    )
