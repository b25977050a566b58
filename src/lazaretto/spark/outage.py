"""Outages in a pipeline: no message is to blame, so the query ends, and its claim is released."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

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
