"""Makes an asynchronous class from a synchronous one, with the same methods and arguments."""

from __future__ import annotations

import asyncio
import functools
import inspect
import itertools
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from lazaretto.aio.driver import Driver
from lazaretto.broker.settling import Messages, MessageVerbs, SettleVerbs
from lazaretto.engine.messages.settle import Settlement

#: Number of results that a thread fetches from an iterator at once.
_SOME = 100

#: The methods that settle messages.
SETTLING = [
    name
    for kind in (SettleVerbs, MessageVerbs)
    for name, value in vars(kind).items()
    if not name.startswith("_") and inspect.isfunction(value)
]


class Mirror:
    """Base of asynchronous classes: holds the synchronous object and runs its methods. An async context."""

    def __init__(self, inner: Any, driver: Driver) -> None:
        self._inner = inner
        self._driver = driver

    async def _call(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        return await self._driver.call(function, *arguments, **named)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._driver.store.forked:
            self._inner.__exit__(kind, error, trace)
        else:
            await self._call(self._inner.__exit__, kind, error, trace)


M = TypeVar("M", bound=Mirror)


class OwnThread(Mirror):
    """A mirror with its own thread for all methods, which a transaction with SQL needs."""

    def __init__(self, inner: Any, driver: Driver, thread: ThreadPoolExecutor | None = None) -> None:
        super().__init__(inner, driver)
        self._thread = thread or ThreadPoolExecutor(1, thread_name_prefix="lazaretto-transaction")

    async def _call(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        self._driver.store.refuse_fork()
        call = functools.partial(copy_context().run, function, *arguments, **named)
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._driver.store.forked:
            await super().__aexit__(kind, error, trace)
            return
        try:
            # A cancellation must not leave the transaction half ended.
            await asyncio.shield(super().__aexit__(kind, error, trace))
        finally:
            self._thread.shutdown(wait=False)


class _Caught(MessageVerbs):
    """Records which messages a method settles, and how."""

    def _settle(self, messages: Messages, settlement: Settlement) -> None:
        self.caught = messages, settlement


def catch(verb: str, *arguments: Any, **named: Any) -> tuple[Messages, Settlement]:
    """Return which messages a method settles, and how. Raises what the method raises for its arguments."""
    caught = _Caught()
    getattr(caught, verb)(*arguments, **named)
    return caught.caught


class Mirrored(NamedTuple):
    """How `mirror` made a class: from which class, with which names."""

    sync: type
    names: Sequence[str]
    wraps: Mapping[str, type[Mirror]]
    gives: Mapping[str, type[Mirror]]
    iterates: Collection[str]
    leaves_out: Collection[str]
    settles: str | None


#: All mirrors, by class.
MIRRORED: dict[type[Mirror], Mirrored] = {}


def mirror(
    sync: type,
    *,
    wraps: Mapping[str, type[Mirror]] | None = None,
    gives: Mapping[str, type[Mirror]] | None = None,
    iterates: Collection[str] = (),
    settles: str | None = None,
    leaves_out: Collection[str] = (),
) -> Callable[[type[M]], type[M]]:
    """Add to a class all public methods of a synchronous class that it lacks.

    Verbs with steps run without a thread. `settles`: the type that settling methods take; they also run
    without one if the class has steps of theirs. `wraps`: methods that return an object with a mirror of its
    own at once; `gives`: those that run in a thread for it. `iterates`: methods that return an iterator. All
    others run in a thread.
    """
    wraps, gives = wraps or {}, gives or {}

    def fill(own: type[M]) -> type[M]:
        names = [name for name in dir(sync) if not name.startswith("_") and name not in leaves_out]
        MIRRORED[own] = Mirrored(sync, names, wraps, gives, iterates, leaves_out, settles)
        for name in names:
            value = inspect.getattr_static(sync, name)
            if name in vars(own):
                vars(own)[name].__doc__ = value.__doc__
                continue
            if isinstance(value, property):
                made: Any = property(functools.partial(_read, name), doc=value.__doc__)
            elif name in wraps:
                made = _wrapping(name, wraps[name])
            elif name in gives:
                made = _giving(name, gives[name])
            elif name in iterates:
                made = _iterating(name)
            elif hasattr(value, "steps"):
                made = _stepping(value.steps)
            elif settles and name in SETTLING and hasattr(sync, "_settling"):
                made = _settling(name)
            else:
                made = _calling(name)
            if not isinstance(made, property):
                functools.update_wrapper(made, value)
                made.__qualname__ = f"{own.__name__}.{name}"
            setattr(own, name, made)
        own.__doc__ = own.__doc__ or sync.__doc__
        return own

    return fill


def _read(name: str, own: Mirror) -> Any:
    return getattr(own._inner, name)


def _wrapping(name: str, kind: type[Mirror]) -> Callable[..., Any]:
    def verb(self: Mirror, *arguments: Any, **named: Any) -> Any:
        return kind(getattr(self._inner, name)(*arguments, **named), self._driver)

    return verb


def _giving(name: str, kind: type[Mirror]) -> Callable[..., Any]:
    async def verb(self: Mirror, *arguments: Any, **named: Any) -> Any:
        return kind(await self._call(getattr(self._inner, name), *arguments, **named), self._driver)

    return verb


def _stepping(steps: Callable[..., Any]) -> Callable[..., Any]:
    async def verb(self: Mirror, *arguments: Any, **named: Any) -> Any:
        return await self._driver.run(steps(self._inner, *arguments, **named))

    return verb


def _settling(name: str) -> Callable[..., Any]:
    async def verb(self: Mirror, *arguments: Any, **named: Any) -> Any:
        caught = catch(name, *arguments, **named)
        return await self._driver.run(self._inner._settling(*caught))

    return verb


def _calling(name: str) -> Callable[..., Any]:
    async def verb(self: Mirror, *arguments: Any, **named: Any) -> Any:
        return await self._call(getattr(self._inner, name), *arguments, **named)

    return verb


def _iterating(name: str) -> Callable[..., Any]:
    async def verb(self: Mirror, *arguments: Any, **named: Any) -> AsyncIterator[Any]:
        iterator = getattr(self._inner, name)(*arguments, **named)
        while some := await self._call(lambda: list(itertools.islice(iterator, _SOME))):
            for one in some:
                yield one

    return verb
