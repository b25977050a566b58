"""Forms of handlers: the one place that decides them, for all that call handlers."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sized
from typing import Any, NamedTuple, Protocol, SupportsInt

from lazaretto.broker.handling.context import HandlerContext
from lazaretto.errors import HandlerError
from lazaretto.model.checks import shown
from lazaretto.model.messages import ReceivedMessage


class _Cursor(Protocol):
    """The result of a database's `execute`."""

    def fetchone(self) -> Any: ...


#: What a handler may return. Nobody looks at it, except Spark, whose results it makes; but an iterator would
#: be left without a step done.
Returned = None | Sized | SupportsInt | Awaitable[object] | _Cursor
#: A handler: of a message, or of a message and its context; a coroutine function or not.
HandlerFunction = (
    Callable[[ReceivedMessage], Returned] | Callable[[ReceivedMessage, HandlerContext], Returned]
)

#: What does nothing when it is called, or returned: its body runs only for whoever iterates.
_LAZY = (Generator, AsyncGenerator, map, filter)


class Form(NamedTuple):
    """The form in which a function is called."""

    takes_context: bool
    is_async: bool


class Bound:
    """A function that something is bound to, as a queue. It is called as its function is."""

    function: HandlerFunction


def unbound(function: Any) -> Any:
    """Return the function itself."""
    return function.function if isinstance(function, Bound) else function


def form_of(handler: object) -> Form:
    """Return how a handler is to be called. Raises HandlerError for what can be no handler."""
    function = unbound(handler)
    refuse_lazy(function, "a handler")
    return Form(_takes_context(function), is_async(function))


def is_async(function: object) -> bool:
    """Return whether a function's calls are coroutines."""
    return any(map(inspect.iscoroutinefunction, _callables(function)))


def refuse_lazy(function: object, what: str, *, may_await: bool = True) -> None:
    """Raise HandlerError for what is no function, or one that a plain call would not run.

    `may_await`: whether who calls it awaits coroutines.
    """
    if not callable(function):
        raise HandlerError(f"expected {what} to be a function, got {shown(function)}")
    for one in _callables(function):
        if inspect.isgeneratorfunction(one) or inspect.isasyncgenfunction(one):
            raise HandlerError(
                f"expected {what} to be a function, got the generator {shown(function)}: it would not run; "
                "leave out its yield"
            )
    if not may_await and is_async(function):
        raise HandlerError(
            f"expected {what} to be a plain function, got the coroutine function {shown(function)}: it would "
            "not run; define it without async"
        )


def refuse_unrun(returned: object, *, may_await: bool = True) -> None:
    """Raise HandlerError if a call has returned what is still to be iterated or awaited: it has not run."""
    if returned is None:
        # As nearly all do; the others are looked at closely, which takes as long as a short function.
        return
    if isinstance(returned, _LAZY) or (not may_await and inspect.isawaitable(returned)):
        if inspect.iscoroutine(returned):
            returned.close()
        raise HandlerError(
            f"expected a function to do its work when it is called, got {type(returned).__name__}, of which "
            f"nothing has run: iterate{'' if may_await else ' or await'} it within the function"
        )


def _callables(function: object) -> tuple[Any, ...]:
    # An object may have calls that are coroutines or generators, and is neither.
    return function, getattr(function, "__call__", None)  # noqa: B004


def _takes_context(function: Callable[..., object]) -> bool:
    """Return whether a function takes a context after the message. Raises HandlerError."""
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
        "expected a handler of (message) or (message, context), got "
        f"{getattr(function, '__qualname__', None) or shown(function)}{signature}"
    )
