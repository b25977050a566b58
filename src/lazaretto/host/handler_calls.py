"""Calls a handler for one message, with validator and middleware, inline or in a sandbox."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import pickle
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from lazaretto.broker.handling.context import Effects, HandlerContext, encode_effects
from lazaretto.broker.handling.functions import refuse_unrun
from lazaretto.broker.handling.logs import is_shown, note, show_if_asked
from lazaretto.errors import HandlerError, InvalidMessage
from lazaretto.host.handlers import Handler
from lazaretto.isolation import FailedResult
from lazaretto.isolation.coroutines import DeadlineExceeded
from lazaretto.isolation.pickling import pickle_value
from lazaretto.model.failure import failure_of, forget_context
from lazaretto.model.messages import Past, ReceivedMessage, StoredMessage
from lazaretto.observe.traces import within
from lazaretto.tools.schemas import compile_schema

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder().decode
#: What most handlers return: looked for first, since to see that nothing is to be awaited takes longer.
_VALUES = {type(None), dict, list, tuple, str, bytes, int, float, bool}
#: Taken now: a handler may put something else in the module's place.
_now = time.time_ns


class Caller:
    """Calls one handler. A context manager, which ends the event loop of an async handler."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self._function = handler.function
        self._takes_context = handler.takes_context
        self._validate = _validator(handler.options.validator)
        self._middleware = handler.options.middleware
        #: Whether anything gets a context. Without one, nothing can be asked for.
        self._needs_context = handler.takes_context or bool(handler.options.middleware)
        self._runner: asyncio.Runner | None = None
        #: The queue, if what the handler logs is shown with it.
        self._shown_as = str(handler.path) if is_shown() else None
        self._deadline: float | None = None
        #: The latest return value of the handler.
        self.returned: Any = None
        #: The handler's function, if nothing stands around it; None: it is called by calling this.
        self.bare: Any = None
        if not self._needs_context and self._validate is None and self._shown_as is None:
            self.bare = self._function

    def limit_async(self, deadline: float | None) -> None:
        """Cancel coroutines after this many seconds. Used where nothing else enforces deadlines."""
        self._deadline = deadline

    def __call__(
        self, message: Any, past: Past | None, facts: ReceivedMessage | None = None
    ) -> Effects | None:
        """Return the requested effects. Raises the handler's error; InvalidMessage: it can never succeed.

        `facts`: what the context tells of, if it is not what the handler is given.
        """
        context = HandlerContext(facts or message, past) if self._needs_context else None
        if self._shown_as is not None:
            note(self._shown_as, facts or message)
        self.returned = None
        outer = sys.exception()
        try:
            if self._validate is not None:
                self._check(message)
            if context is not None and self._middleware:
                self._through(self._middleware, message, context)
            else:
                self._call(message, context)
        except InvalidMessage as error:
            forget_context(error, outer)
            return Effects(verdict="invalid", failure=failure_of(error))
        except BaseException as error:
            forget_context(error, outer)
            raise
        return None if context is None else context.effects

    async def call_async(self, message: ReceivedMessage, past: Past | None) -> Effects | None:
        """Call a coroutine function in the same way, concurrently with others on one event loop."""
        context = HandlerContext(message, past)
        if self._shown_as is not None:
            note(self._shown_as, message)
        outer = sys.exception()
        try:
            if self._validate is not None:
                self._check(message)
            await self._through_async(self._middleware, message, context)
        except InvalidMessage as error:
            forget_context(error, outer)
            return Effects(verdict="invalid", failure=failure_of(error))
        except BaseException as error:
            forget_context(error, outer)
            raise
        return context.effects

    async def _through_async(
        self, middleware: Sequence[Callable[..., Any]], message: ReceivedMessage, context: HandlerContext
    ) -> None:
        if middleware:
            await middleware[0](
                message, context, lambda: self._through_async(middleware[1:], message, context)
            )
            return
        call: Any = self._function
        returned = await (call(message, context) if self._takes_context else call(message))
        refuse_unrun(returned, may_await=False)

    def _check(self, message: ReceivedMessage) -> None:
        assert self._validate is not None
        try:
            problem = self._validate(message)
            refuse_unrun(problem, may_await=False)
        except (InvalidMessage, HandlerError):
            raise
        except Exception as error:
            raise InvalidMessage(f"{type(error).__name__}: {error}") from error
        if problem is False:
            raise InvalidMessage("the validator returned False")

    def _through(
        self, middleware: Sequence[Callable[..., object]], message: ReceivedMessage, context: HandlerContext
    ) -> None:
        if middleware:
            returned = middleware[0](
                message, context, lambda: self._through(middleware[1:], message, context)
            )
            refuse_unrun(returned, may_await=False)
        else:
            self._call(message, context)

    def _call(self, message: ReceivedMessage, context: HandlerContext | None) -> None:
        call: Any = self._function
        self.returned = self.settled(call(message, context) if self._takes_context else call(message))

    def settled(self, returned: Any) -> Any:
        """Return what the handler returned, or what that is when it was awaited."""
        if type(returned) not in _VALUES:
            if inspect.isawaitable(returned):
                if self._runner is None:
                    self._runner = asyncio.Runner()
                returned = self._run(self._runner, returned)
            refuse_unrun(returned, may_await=False)
        return returned

    def _run(self, runner: asyncio.Runner, awaited: Awaitable[Any]) -> Any:
        raised: list[tuple[BaseException, BaseException | None]] = []

        async def run() -> Any:
            try:
                return await self._awaited(awaited)
            except BaseException as error:
                raised.append((error, error.__context__))
                raise

        try:
            return runner.run(run())
        except BaseException as error:
            # The loop raises it anew, and so loses what led to it to what is being handled here.
            if raised and raised[0][0] is error:
                error.__context__ = raised[0][1]
            raise

    async def _awaited(self, returned: Awaitable[Any]) -> Any:
        try:
            async with asyncio.timeout(self._deadline) as limit:
                return await returned
        except TimeoutError as error:
            if limit.expired():
                raise DeadlineExceeded(f"no answer within {self._deadline:g} s") from error
            raise

    def close(self) -> None:
        """End the event loop, if there is one."""
        if self._runner is not None:
            self._runner.close()


def _validator(
    check: Callable[[Any], object] | Mapping[str, Any] | None,
) -> Callable[[ReceivedMessage], object] | None:
    if check is None or callable(check):
        return check
    problem = compile_schema(check)

    def validate(message: ReceivedMessage) -> None:
        text = problem(json.loads(message.body))
        if text is not None:
            raise ValueError(text)

    return validate


# -- in a sandbox --------------------------------------------------------------------------------


def pack(messages: Iterable[StoredMessage], past: Mapping[int, Past], *, timed: bool = False) -> list[bytes]:
    """Return messages as bytes for the other process, each with its earlier attempts, if any.

    `timed`: the effects are to tell when the handler ran.
    """
    return [
        _pack((
            m.key, m.body, m.message_id, m.enqueued, m.expires, m.encoded_headers, None, m.deliveries,
            m.delivery_count, m.cycle, m.generation, m.enqueued_sequence_number, m.recorded_reason,
            m.recorded_description, past.get(m.key), timed,
        ))
        for m in messages
    ]  # fmt: skip


def why_unsendable(function: Callable[..., object], error: Exception) -> str:
    """Return why a function cannot be pickled, naming the variable that prevents it if one is found."""
    why = f"{type(error).__name__}: {error}"
    try:
        variables = inspect.getclosurevars(function)
    except (TypeError, ValueError):
        return why
    for name, value in {**variables.globals, **variables.nonlocals}.items():
        try:
            pickle_value(value)
        except Exception:
            return f"{why} (its variable {name!r})"
    return why


class SandboxSetup:
    """Created in the host and called in the sandbox, where it returns the function of bytes to run."""

    #: Advice for a handler that cannot be pickled.
    advice = "Define it in a module, or give isolation='inline'"

    def __init__(self, handler: Handler) -> None:
        self._reference = handler.reference()
        options = handler.options
        what = (None if self._reference else handler.function, options.validator, options.middleware)
        try:
            self._pickled = pickle_value(what)
        except Exception as error:
            raise HandlerError(
                f"{handler!r} cannot be sent to another process: {why_unsendable(handler.function, error)}. "
                f"{self.advice}"
            ) from error
        self._queue = str(handler.path)

    @property
    def key(self) -> object:
        """Equal for setups that do the same, also for copies in other processes."""
        return self._reference, self._pickled, self._queue

    def caller(self) -> Caller:
        """Return the caller of the handler, for the current process."""
        function, validator, middleware = pickle.loads(self._pickled)  # noqa: S301 - from our own process
        if self._reference is not None:
            module, name = self._reference
            function = importlib.import_module(module)
            for part in name.split("."):
                function = getattr(function, part)
        return Caller(Handler(self._queue, function, validator=validator, middleware=middleware))

    def __call__(
        self,
    ) -> Callable[[Any], bytes | None] | Callable[[Any], Coroutine[Any, Any, bytes | None]]:
        call = self.caller()
        # After the module of the handler: it may have set how it logs.
        show_if_asked()

        def run(item: bytes) -> bytes | None:
            message, past, began = _message_of(item)
            with within(message):
                return _encoded(call(message, past), began)

        async def run_async(item: bytes) -> bytes | None:
            message, past, began = _message_of(item)
            with within(message):
                return _encoded(await call.call_async(message, past), began)

        return run_async if call.handler.at_once else run


def _message_of(item: bytes) -> tuple[ReceivedMessage, Past | None, int | None]:
    """Return a message, its earlier attempts, and the time now if it is to be told."""
    *fields, past, timed = _unpack(item)
    began = _now() if timed else None
    return ReceivedMessage(*fields), None if past is None else Past(*past), began


def _encoded(effects: Effects | None, began: int | None) -> bytes | None:
    if began is not None:
        effects = effects or Effects()
        effects.ran = (began, _now())
    if effects is None:
        return None
    encoded = encode_effects(effects)
    # The rest of its session must wait: who goes on is decided outside.
    return encoded if effects.failure is None else FailedResult(encoded)
