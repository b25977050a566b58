"""Decides which errors are the store's fault and which are temporary. Pure."""

from __future__ import annotations

from lazaretto.errors import (
    HandlerError,
    InvalidOption,
    LazarettoError,
    NotAllowed,
    StoreCorrupt,
    StoreError,
    StoreForeign,
    StoreGone,
    StoreIncomplete,
    StoreNotFound,
    StoreOutdated,
    StoreTooNew,
)
from lazaretto.store.contract.store_contract import Store

#: Faults that do not pass: the file is no longer a store, or the queue was replaced after the host started.
#: All others may pass: an unreachable or read-only server, a full disk, too few file descriptors, a module
#: that is being replaced.
_LASTING: tuple[type[LazarettoError], ...] = (
    HandlerError,
    InvalidOption,
    NotAllowed,
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


def store_fault(error: BaseException, store: Store) -> StoreError | None:
    """Return the error as one of the store's if the store is to blame for it; None if its caller is."""
    if isinstance(error, store.errors):
        return store.own_fault(error)
    cause = error.__cause__
    if type(error) is StoreError and isinstance(cause, store.errors):
        # Found only at the commit, for example by a deferred constraint.
        return error if store.own_fault(cause) is not None else None
    return error if isinstance(error, StoreError) else None
