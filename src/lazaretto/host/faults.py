"""Decides which errors are temporary. Pure."""

from __future__ import annotations

from lazaretto.errors import (
    HandlerError,
    InvalidOption,
    LazarettoError,
    NotAllowed,
    ServerUnsuitable,
    StoreCorrupt,
    StoreForeign,
    StoreGone,
    StoreIncomplete,
    StoreNotFound,
    StoreOutdated,
    StoreTooNew,
)

#: Faults that do not pass: the file is no longer a store, or the queue was replaced after the host started.
#: All others may pass: an unreachable or read-only server, a full disk, too few file descriptors, a module
#: that is being replaced.
_LASTING: tuple[type[LazarettoError], ...] = (
    HandlerError,
    InvalidOption,
    NotAllowed,
    ServerUnsuitable,
    StoreCorrupt,
    StoreForeign,
    StoreGone,
    StoreIncomplete,
    StoreNotFound,
    StoreOutdated,
    StoreTooNew,
)


def may_pass(error: BaseException) -> bool:
    """Return whether a later retry may succeed without a change to the host."""
    return isinstance(error, Exception) and not isinstance(error, _LASTING)
