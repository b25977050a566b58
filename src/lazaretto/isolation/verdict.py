"""Options of a sandbox, and verdicts on items: pure functions over what a sandbox has observed."""

from __future__ import annotations

import dataclasses
import enum
import os
import signal
from typing import Literal

import msgspec

from lazaretto.model.failure import HANDLER_TIMEOUT, WORKER_CRASHED
from lazaretto.model.options import (
    Duration,
    OptionalDuration,
    choice,
    duration,
    integer,
    option,
    option_set,
    optional,
    size,
)

RESULT_TOO_LARGE = "ResultTooLarge"
STOPPED = "Stopped"


class FailedResult(bytes):
    """A function's result for an item that has failed, as far as `stop_on_failure` is concerned."""


class Status(enum.Enum):
    """The end of an item."""

    #: The function returned.
    DONE = "done"
    #: The function raised.
    ERROR = "error"
    #: The deadline was over; the process was killed.
    TIMEOUT = "timeout"
    #: The process died.
    CRASH = "crash"
    #: The memory allowed was used up.
    MEMORY = "memory"
    #: Its turn never came, or it was stopped: nothing is known of it.
    NOT_RUN = "not_run"


class Verdict(msgspec.Struct, frozen=True):
    """The outcome of one item.

    `result`: what the function returned. `error_type`, `error_message` and `stack`: of the error, for
    a timeout with the stack of the line that hung, for a crash with that of the interpreter.
    `elapsed`: seconds, if its process died. `site`: where an error came from. `ended`: when it raised, in
    nanoseconds since 1970. `failed`: the result is a FailedResult.
    """

    status: Status
    result: bytes | None = None
    error_type: str | None = None
    error_message: str | None = None
    stack: str | None = None
    signal: int | None = None
    exit_status: int | None = None
    elapsed: float = 0.0
    site: str | None = None
    ended: int | None = None
    failed: bool = False


DONE = Verdict(Status.DONE)
NOT_RUN = Verdict(Status.NOT_RUN)


class Death(enum.Enum):
    """Why a process that ran items is gone."""

    #: By itself, or by something an item did.
    OWN = "own"
    #: Killed, because the deadline of an item was over.
    DEADLINE = "deadline"
    #: Killed between items, because it said nothing for too long: blamed on no item.
    SILENT = "silent"
    #: Killed, because all is to stop.
    STOP = "stop"


def blame(
    death: Death, wait_status: int, stack: str | None, *, deadline: float | None, elapsed: float
) -> Verdict:
    """Return the verdict on the item that was running when its process died."""
    if death in (Death.STOP, Death.SILENT):
        return Verdict(Status.NOT_RUN, None, STOPPED, "stopped before it finished", stack, elapsed=elapsed)
    if death is Death.DEADLINE:
        text = f"no answer within {deadline:g} s"
        return Verdict(Status.TIMEOUT, None, HANDLER_TIMEOUT, text, stack, elapsed=elapsed)
    if os.WIFSIGNALED(wait_status):
        number = os.WTERMSIG(wait_status)
        text = f"killed by signal {number} ({_name(number)})"
        return Verdict(Status.CRASH, None, WORKER_CRASHED, text, stack, signal=number, elapsed=elapsed)
    code = os.waitstatus_to_exitcode(wait_status)
    text = f"the process ended with exit status {code}"
    return Verdict(Status.CRASH, None, WORKER_CRASHED, text, stack, exit_status=code, elapsed=elapsed)


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


Mode = Literal["auto", "fork", "spawn"]
_MODES = {mode: mode for mode in ("auto", "fork", "spawn")}


@option_set
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SandboxOptions:
    """Limits of a sandbox.

    Options:
        deadline: Time that an item may take.
        memory: Memory that an item may add to the warm process, counted as address space.
        max_result: Maximum size of one result.
        max_output: Maximum size of what the items of one batch print. The rest is left out, and a
            note says so.
        mode: How a dead process is replaced: `fork` copies a warm process, `spawn` starts a new one,
            `auto` forks where that is safe.
        refork_every: Restart the process after this many items.
        setup_timeout: Time that the setup may take.
    """

    deadline: OptionalDuration = option(30.0, optional(duration(0.001)))
    memory: int | None = option(2_147_483_648, optional(size(1 << 20, 1 << 50)))
    max_result: int = option(16_777_216, size(0, 1 << 31))
    max_output: int = option(65_536, size(0, 1 << 31))
    mode: Mode = option("auto", choice(_MODES))
    refork_every: int | None = option(None, optional(integer(1, 1 << 31)))
    setup_timeout: Duration = option(60.0, duration(0.001))
