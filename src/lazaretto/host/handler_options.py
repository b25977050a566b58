"""What can be set on a handler, checked in one place."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping
from typing import Any

from lazaretto.errors import InvalidOption
from lazaretto.isolation import SandboxOptions
from lazaretto.model.checks import member, option_set, seconds, shown, whole
from lazaretto.model.policy import PoisonPolicy
from lazaretto.receiver import MOST_MESSAGES


class Isolation(enum.Enum):
    """Where a handler runs."""

    #: In a process of its own, which may die with its message and nothing else.
    PROCESS = "process"
    #: In the host's own process: for trusted code only.
    INLINE = "inline"


_ISOLATIONS = {i.value: i for i in Isolation}
_DEFAULT_MEMORY = SandboxOptions().memory


@option_set
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HandlerOptions:
    """Everything that can be set on a handler.

    `isolation`: "process" (default) or "inline". `concurrency`: how many batches, or sessions, are
    worked on at once, in as many processes or threads. `batch_size`: messages that are handed over,
    and settled in one commit. `batch_bytes`: what these have together, bodies and headers, unless it is a
    single one (64 MiB); a slot holds two batches. `deadline`: seconds a message may take, None for no end;
    an inline function cannot be stopped, its lock is left to run out then. `memory`: bytes that a message may
    add to the process, None for no limit; inline has none. `validator`: a function of the message
    that raises, or returns False, for a message that can never succeed; or a JSON schema (a dict)
    for the body. `middleware`: functions of (message, context, call_next) around the handler, the
    first one outermost. `on_poison`: functions of a PoisonMessage, called in the host for each message
    whose last attempt has failed, before that is settled; the first that returns a disposition, or
    "retry", decides instead of the policy. `policy`: set on the queue when the host starts. `session_idle`:
    seconds that a session is kept when nothing more comes in it. `session_turn`: seconds after which a
    session with more to do goes behind the others that wait. `refork_every`: a fresh process
    after so many messages, for handlers that leak.
    """

    isolation: Isolation = Isolation.PROCESS
    concurrency: int = 1
    batch_size: int = 100
    batch_bytes: int = 67_108_864
    deadline: float | None = 30.0
    memory: int | None = _DEFAULT_MEMORY
    validator: Callable[[Any], object] | Mapping[str, Any] | None = None
    middleware: tuple[Callable[..., object], ...] = ()
    on_poison: tuple[Callable[..., object], ...] = ()
    policy: PoisonPolicy | None = None
    session_idle: float = 0.0
    session_turn: float = 1.0
    refork_every: int | None = None

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        set_(self, "isolation", member("isolation", self.isolation, _ISOLATIONS))
        whole("concurrency", self.concurrency, 1, 1024)
        whole("batch_size", self.batch_size, 1, MOST_MESSAGES)
        whole("batch_bytes", self.batch_bytes, 1, 1 << 40)
        if self.deadline is not None:
            set_(self, "deadline", seconds("deadline", self.deadline, 0.001))
        if self.memory is not None:
            whole("memory", self.memory, 1 << 20, 1 << 50)
        if self.refork_every is not None:
            whole("refork_every", self.refork_every, 1, 1 << 31)
        set_(self, "session_idle", seconds("session_idle", self.session_idle))
        set_(self, "session_turn", seconds("session_turn", self.session_turn))
        for name in ("middleware", "on_poison"):
            set_(self, name, _functions(name, getattr(self, name)))
        if self.policy is not None and not isinstance(self.policy, PoisonPolicy):
            raise InvalidOption(f"expected policy to be a PoisonPolicy or None, got {shown(self.policy)}")
        known = self.validator is None or callable(self.validator) or isinstance(self.validator, Mapping)
        if not known:
            raise InvalidOption(
                "expected validator to be a function, a JSON schema (a dict) or None, "
                f"got {shown(self.validator)}"
            )

    def limits(self) -> SandboxOptions:
        """Return the limits of a sandbox that runs the handler."""
        return SandboxOptions(deadline=self.deadline, memory=self.memory, refork_every=self.refork_every)


def _functions(name: str, value: object) -> tuple[Callable[..., object], ...]:
    given = (value,) if callable(value) else value
    if not isinstance(given, list | tuple) or not all(callable(one) for one in given):
        raise InvalidOption(f"expected {name} to be a function or a list of functions, got {shown(value)}")
    return tuple(given)
