"""Tells errors of Spark in a sentence: what it says has pages of stacks, which its log has as well."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from lazaretto import errors
from lazaretto.cli.exits import CommandError
from lazaretto.errors import LazarettoError

#: An error of this package in a stack of Python.
_OURS = re.compile(r"^lazaretto\.errors\.(\w+): (.+)$", re.MULTILINE)
#: The last line of a stack of Python.
_RAISED = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)+(\S.*)$", re.MULTILINE)
#: An error of Java's, as the bridge to it shows it.
_OF_JAVA = re.compile(r"^: (.+)$", re.MULTILINE)


@contextlib.contextmanager
def in_a_sentence(*, only_of_queries: bool = False) -> Iterator[None]:
    """Raise errors of Spark as one of ours, if that is their cause, or as CommandError."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException, StreamingQueryException

    kinds = (StreamingQueryException,) if only_of_queries else (PySparkException, Py4JError)
    try:
        yield
    except kinds as error:
        told = str(error)
        raise cause_of(told) or CommandError("spark_failed", sentence_of(told)) from None


def cause_of(told: str) -> LazarettoError | None:
    """Return the error of ours that Spark tells of among stacks, None if it tells of none."""
    for name, text in reversed(_OURS.findall(told)):
        kind = getattr(errors, name, None)
        if kind is not None:
            found: LazarettoError = kind.__new__(kind, text)
            return found
    return None


def sentence_of(told: str) -> str:
    """Return what is wrong: the error that Python code raised, or Java's, or else Spark's first line."""
    for pattern in (_RAISED, _OF_JAVA):
        found: list[str] = pattern.findall(told)
        if found:
            return found[-1]
    first = told.strip().partition("\n")[0]
    return f"{first} Java says why, above" if first.startswith("[JAVA_GATEWAY_EXITED]") else first
