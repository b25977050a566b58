"""Decides which errors of a commit are the store's fault, and which are of what a handler asked for. Pure."""

from __future__ import annotations

from lazaretto.errors import StoreError
from lazaretto.store.sql.store import Store


def store_fault(error: BaseException, store: Store) -> StoreError | None:
    """Return the error as one of the store's if the store is to blame for it; None if its caller is."""
    if isinstance(error, store.errors):
        return store.own_fault(error)
    cause = error.__cause__
    if type(error) is StoreError and isinstance(cause, store.errors):
        # Found only at the commit, for example by a deferred constraint.
        return error if store.own_fault(cause) is not None else None
    return error if isinstance(error, StoreError) else None
