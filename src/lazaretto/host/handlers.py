"""Handlers: a function, its queue and its options."""

from __future__ import annotations

import dataclasses
import enum
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from lazaretto.broker.handling.functions import Bound, form_of, is_async, refuse_lazy, unbound
from lazaretto.broker.handling.functions import HandlerFunction as HandlerFunction
from lazaretto.errors import HandlerError, InvalidOption
from lazaretto.isolation import SandboxOptions
from lazaretto.model.checks import shown
from lazaretto.model.entities import EntityPath, Subqueue
from lazaretto.model.messages import MOST_MESSAGES
from lazaretto.model.options import (
    Converted,
    Duration,
    OptionalDuration,
    choice,
    duration,
    initialised_with_options_of,
    instance,
    integer,
    option,
    option_set,
    optional,
    same_option,
    size,
    special,
    takes_options_of,
)
from lazaretto.model.policy import PoisonPolicy
from lazaretto.store.runtime.processes import program
from lazaretto.tools.loading import attribute, import_module, load

#: Maximum number of batches or sessions that one handler processes in parallel.
MOST_SLOTS = 1024
_TRACE_PARENTS = {"first_attempt": "first_attempt"}
Function = Callable[..., object]
Validator = Callable[[Any], object] | Mapping[str, Any]


class Isolation(enum.Enum):
    """The place where a handler runs."""

    #: In its own process: a crash affects only its message.
    PROCESS = "process"
    #: In the host's own process: for trusted code only.
    INLINE = "inline"


_ISOLATIONS = {i.value: i for i in Isolation}
GivenIsolation = Isolation | Literal["process", "inline"]


def _functions(name: str, value: object) -> tuple[Function, ...]:
    functions = (value,) if callable(value) else value
    if not isinstance(functions, list | tuple) or not all(callable(one) for one in functions):
        raise InvalidOption(f"expected {name} to be a function or a list of functions, got {shown(value)}")
    return tuple(functions)


def _validator(name: str, value: object) -> object:
    if value is None or callable(value) or isinstance(value, Mapping):
        return value
    raise InvalidOption(
        f"expected {name} to be a function, a JSON schema (a dict) or None, got {shown(value)}"
    )


@option_set
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HandlerOptions:
    """Everything that can be set on a handler.

    Options:
        isolation: Run in a sandbox process, or in the host's own process.
        concurrency: Number of batches (or sessions) processed in parallel, one process each
            (inline: threads).
        batch_size: Maximum number of messages received together and settled in one commit. Fewer are taken
            if they would take longer than an eighth of a second, or if other slots have nothing to do.
        batch_bytes: Maximum size of a batch, unless it is a single message or a session that is one unit.
        deadline: Time that a message may take. An inline handler cannot be stopped; its lock expires.
        memory: Memory that a message may add to the process; not for inline.
        validator: A function of the message that raises or returns `False` for a message that can never
            succeed; or a JSON schema of the body, with `pip install './lazaretto[schema]'`.
        middleware: Functions of (message, context, call_next) around the handler, the first outermost.
        on_poison: Functions of a `PoisonMessage`, called in the host when a message's last attempt has
            failed. The first that returns a disposition, or `"retry"`, decides instead of the policy.
        policy: Set on the queue when the host starts.
        session_idle: How long an empty session is kept.
        session_turn: Time after which a session with more to do goes behind the others that wait.
        trace_parent: Whether the span of a message's first attempt is a child of its sender's span, with
            `"first_attempt"`. Spans of other attempts, and by default of all, link to it.
        refork_every: Restart the process after this many messages, for handlers that leak memory.
    """

    isolation: Converted[Isolation, GivenIsolation] = option(Isolation.PROCESS, choice(_ISOLATIONS))
    concurrency: int = option(1, integer(1, MOST_SLOTS))
    batch_size: int = option(100, integer(1, MOST_MESSAGES), page="service-host.md#batches")
    batch_bytes: int = option(67_108_864, size(1, 1 << 40))
    deadline: OptionalDuration = option(30.0, optional(duration(0.001)))
    memory: int | None = same_option(SandboxOptions, "memory")
    validator: Validator | None = option(None, special(_validator, "a function; a dict; `None`"))
    middleware: Converted[tuple[Function, ...], Function | Sequence[Function]] = option(
        (), special(_functions, "functions")
    )
    on_poison: Converted[tuple[Function, ...], Function | Sequence[Function]] = option(
        (), special(_functions, "functions"), page="service-host.md#error-handlers"
    )
    policy: PoisonPolicy | None = option(None, instance(PoisonPolicy, or_none=True))
    session_idle: Duration = option(0.0, duration())
    session_turn: Duration = option(1.0, duration())
    trace_parent: Literal["first_attempt"] | None = option(
        None, optional(choice(_TRACE_PARENTS)), page="traces.md#links-or-parents"
    )
    refork_every: int | None = same_option(SandboxOptions, "refork_every")

    def limits(self) -> SandboxOptions:
        """Return the limits of a sandbox that runs the handler."""
        return SandboxOptions(deadline=self.deadline, memory=self.memory, refork_every=self.refork_every)


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


def as_handlers(value: object, what: str) -> list[Handler]:
    """Return handlers given as one, several, or functions by queue. Raises HandlerError."""
    if isinstance(value, Handler):
        return [value]
    if isinstance(value, Mapping):
        return [Handler(path, function) for path, function in value.items()]
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        handlers = list(value)
        if all(isinstance(one, Handler) for one in handlers):
            return handlers
    raise HandlerError(
        f"expected {what} to be a Handler, a list of them, or functions by queue, got {shown(value)}"
    )
