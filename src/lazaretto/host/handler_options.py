"""The options of a handler."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from lazaretto.errors import InvalidOption
from lazaretto.isolation import SandboxOptions
from lazaretto.model.checks import shown
from lazaretto.model.messages import MOST_MESSAGES
from lazaretto.model.options import (
    Converted,
    Duration,
    OptionalDuration,
    choice,
    duration,
    instance,
    integer,
    option,
    option_set,
    optional,
    same_option,
    size,
    special,
)
from lazaretto.model.policy import PoisonPolicy


class Isolation(enum.Enum):
    """The place where a handler runs."""

    #: In its own process: a crash affects only its message.
    PROCESS = "process"
    #: In the host's own process: for trusted code only.
    INLINE = "inline"


#: Maximum number of batches or sessions that one handler processes in parallel.
MOST_SLOTS = 1024

_ISOLATIONS = {i.value: i for i in Isolation}
_TRACE_PARENTS = {"first_attempt": "first_attempt"}
GivenIsolation = Isolation | Literal["process", "inline"]
Function = Callable[..., object]
Validator = Callable[[Any], object] | Mapping[str, Any]


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
