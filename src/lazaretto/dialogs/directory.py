"""A process's cache of services and conversations."""

from __future__ import annotations

import threading
import time
from typing import NamedTuple

from lazaretto.broker.steps import place_of
from lazaretto.engine.dialogs.conversation_ends import require_conversation
from lazaretto.model.dialog_contracts import Definitions
from lazaretto.model.entities import EntityPath
from lazaretto.store.sql.store import Store

#: How old definitions may be that are checked against, in seconds.
_STALE = 1.0
#: How many conversations are remembered.
_MOST = 10_000


class Terms(NamedTuple):
    """The service and the contract that a conversation keeps."""

    service: str
    contract: str


class Rotation:
    """Whose turn it is to be received from, of one queue."""

    def __init__(self) -> None:
        self.turn = 0
        self.after = ""


class Directory:
    """Definitions, terms of conversations, and turns. Threads may share it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._definitions: Definitions | None = None
        self._read = 0.0
        self._terms: dict[str, Terms] = {}
        self._rotations: dict[str, Rotation] = {}
        self._places: dict[str, int] = {}

    def definitions(self) -> Definitions:
        """Return every definition, as it was a second ago at most."""
        now = time.monotonic()
        with self._lock:
            if self._definitions is not None and now - self._read < _STALE:
                return self._definitions
        definitions = self._store.read(lambda tx: tx.dialogs.definitions())
        with self._lock:
            self._definitions, self._read = definitions, now
        return definitions

    def forget_definitions(self) -> None:
        """Look again: they were changed here."""
        with self._lock:
            self._definitions = None

    def terms(self, handle: str) -> Terms:
        """Return what a conversation was begun with. Raises ConversationNotFound."""
        terms = self._terms.get(handle)
        if terms is None:
            record = self._store.read(lambda tx: require_conversation(tx, handle))
            terms = Terms(record.service, record.contract)
            self.remember(handle, terms)
        return terms

    def remember(self, handle: str, terms: Terms) -> None:
        """Note what a conversation was begun with."""
        with self._lock:
            while len(self._terms) >= _MOST:
                del self._terms[next(iter(self._terms))]
            self._terms[handle] = terms

    def place(self, path: EntityPath) -> int:
        """Return the key by which to wait for what comes to a queue."""
        place = self._places.get(path.key)
        if place is None:
            place = self._store.read(lambda tx: place_of(tx, path))
            if place is None:
                return 1
            self._places[path.key] = place
        return place

    def rotation(self, path_key: str) -> Rotation:
        """Return whose turn it is on a queue."""
        with self._lock:
            return self._rotations.setdefault(path_key, Rotation())
