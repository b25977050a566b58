"""Verdicts on items: pure functions over what a sandbox has observed."""

from __future__ import annotations

import enum
import os
import signal

import msgspec

from lazaretto.model.failure import HANDLER_TIMEOUT, WORKER_CRASHED

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
