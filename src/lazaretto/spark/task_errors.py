"""Errors that Spark's tasks end with: of a message that may be to blame, or an outage, of which none is."""

from __future__ import annotations

import builtins
import contextlib
import re
from collections.abc import Iterator

import msgspec
from pyspark.errors import (
    ArithmeticException,
    ArrayIndexOutOfBoundsException,
    DateTimeException,
    NumberFormatException,
    PySparkException,
    PythonException,
    SparkRuntimeException,
)

from lazaretto.errors import LazarettoError
from lazaretto.model.failure import (
    LONGEST_STACK,
    LONGEST_TEXT,
    LONGEST_TYPE,
    Failure,
    failure_of,
    name_of,
    shorten,
)

#: How a stage is named that is none: what follows is a sentence for the user.
OUTAGE = "outage: "
#: What drivers of the DB-API call errors of their database rather than of a value (PEP 249).
OF_DATABASES = {"OperationalError", "InterfaceError"}


class Outage(Exception):
    """Not messages are to blame. Its text says what is, and begins a sentence."""


def is_of_place(error: BaseException) -> bool:
    """Return whether an error is that of a place where results go, rather than of one result."""
    return isinstance(error, OSError) or any(one.__name__ in OF_DATABASES for one in type(error).__mro__)


@contextlib.contextmanager
def writing() -> Iterator[None]:
    """Make errors of the place where results go an Outage; others stay: a result may cause them."""
    try:
        yield
    except Exception as error:
        if not is_of_place(error):
            raise
        raise Outage(f"results cannot be written ({type(error).__name__}: {error})") from error


#: How Spark says that a Python worker, or an executor, is gone.
_GONE = ("worker exited unexpectedly", "failed to connect back", "ExecutorLostFailure", "ExecutorLost")
#: How it says which task a job was given up for.
_LOST = re.compile(r"most recent failure: Lost task \S+ in stage \S+ \(TID (\d+)\)")
#: What Spark's own expressions raise for a value.
_OF_VALUES = (
    ArithmeticException, ArrayIndexOutOfBoundsException, DateTimeException, NumberFormatException,
    SparkRuntimeException,
)  # fmt: skip
#: How Python begins what it prints of an error.
_TRACEBACK = "Traceback (most recent call last):\n"


class TaskError(msgspec.Struct, frozen=True):
    """An error of tasks. `queue`, `claim`: of its message, None if they are not known.

    `is_of_value`: a message may be to blame; else the place where it was processed is.
    """

    failure: Failure
    is_of_value: bool
    queue: str | None = None
    claim: int | None = None


class ShardError(Exception):
    """An error while a shard was processed. Its text says which: only that comes to the driver."""

    def __init__(self, queue: str, claim: int, failure: Failure) -> None:
        super().__init__(msgspec.json.encode(TaskError(failure, True, queue, claim)).decode())


@contextlib.contextmanager
def naming_shard(queue: str, claim: int) -> Iterator[None]:
    """Have an error that a message may cause say whose message it was."""
    try:
        yield
    except (LazarettoError, OSError, MemoryError):
        raise
    except Exception as error:
        failure = failure_of(error)
        assert failure is not None
        raise ShardError(queue, claim, failure) from None


def died_task(error: Exception) -> int | None:
    """Return the number of the task that ended a job, where Spark says it: not of an error in Python."""
    lost = _LOST.search(_text_of(error))
    return None if lost is None else int(lost[1])


def _text_of(error: Exception) -> str:
    if isinstance(error, PySparkException):
        return str(error)
    text: str = error.java_exception.toString()  # type: ignore[attr-defined]
    return text


def task_error(error: Exception) -> TaskError | None:
    """Return what a job ended with, None if it is only that its worker is gone."""
    text = _text_of(error)
    text = text.partition("\n\nJVM stacktrace")[0].partition("\nDriver stacktrace")[0].strip()
    if any(sign in text for sign in _GONE):
        return None
    kind = name_of(error)
    if isinstance(error, PythonException) and _TRACEBACK in text:
        return _of_python(text)
    if not isinstance(error, PySparkException):
        # The first line of an exception of Java's begins with its class.
        kind, _, text = text.partition(": ")
    return TaskError(_failure(kind, text), isinstance(error, _OF_VALUES))


def _of_python(text: str) -> TaskError:
    """Return what a task in Python has printed: an error of a shard, or of a function of the user's."""
    stack = text[text.rindex(_TRACEBACK) :]
    lines = stack.splitlines()[1:]
    last = next((place for place, line in enumerate(lines) if not line.startswith(" ")), len(lines))
    kind, _, said = "\n".join(lines[last:]).partition(": ")
    if kind == f"{ShardError.__module__}.{ShardError.__qualname__}":
        with contextlib.suppress(msgspec.DecodeError):
            return msgspec.json.decode(said, type=TaskError)
    name = kind.strip() or "Exception"
    return TaskError(_failure(name, said, shorten(stack, LONGEST_STACK)), not _is_of_place(name))


def _is_of_place(name: str) -> bool:
    """Return whether an error of this name is one of the store, a database or the machine."""
    builtin = getattr(builtins, name, None)
    of_machine = isinstance(builtin, type) and issubclass(builtin, OSError | MemoryError)
    return of_machine or name.startswith("lazaretto.") or name.rpartition(".")[2] in OF_DATABASES


def _failure(kind: str, text: str, stack: str | None = None) -> Failure:
    return Failure(shorten(kind, LONGEST_TYPE), shorten(text, LONGEST_TEXT), stack)
