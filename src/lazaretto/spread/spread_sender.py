"""Sends to a queue or topic that is spread over several stores."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import overload

from lazaretto.broker import store_of
from lazaretto.engine.messages.prepare import Sendable, prepare_all
from lazaretto.errors import BrokerClosed, CommitUnknown, InvalidOption, LazarettoError, PartlySent
from lazaretto.model.checks import shown
from lazaretto.model.partitions import Placed
from lazaretto.sender import later, sendable
from lazaretto.spread.members import Members, first_answer
from lazaretto.steps import run_steps
from lazaretto.store.contract.records import NewMessage
from lazaretto.tools.closing import Closing


class SpreadSender(Closing):
    """Sends each message to the store of its session or partition key, others to this process's home.

    If the home cannot be reached, messages without a key go to another store. Threads can share it. A context
    manager.
    """

    def __init__(self, members: Members, path: str) -> None:
        self._members = members
        self._path = sendable(path)
        self._detects: bool | None = None
        self._closed = False

    @overload
    def send(self, messages: Sendable) -> Placed: ...
    @overload
    def send(self, messages: Iterable[Sendable]) -> list[Placed]: ...
    def send(self, messages: Sendable | Iterable[Sendable]) -> Placed | list[Placed]:
        """Send one message, or several: those of one store's keys in one commit. Then they are on disk.

        Returns where each was placed. Raises what `Sender.send` does if nothing was sent, and PartlySent if
        only some stores took theirs.
        """
        placed = self._send(prepare_all(messages))
        return placed[0] if isinstance(messages, Sendable) else placed

    @overload
    def schedule(self, messages: Sendable, at: datetime) -> Placed: ...
    @overload
    def schedule(self, messages: Iterable[Sendable], at: datetime) -> list[Placed]: ...
    def schedule(self, messages: Sendable | Iterable[Sendable], at: datetime) -> Placed | list[Placed]:
        """Send messages that become receivable at a given time (an aware datetime)."""
        return self.send(later(messages, at))

    def cancel(self, places: Placed | Iterable[Placed]) -> None:
        """Delete scheduled messages. In each store all of them are deleted, or none and MessageNotFound."""
        self._refuse_closed()
        for store, numbers in numbers_by_store(places, len(self._members)).items():
            self._members.stores[store].broker().sender(self._path.queue).cancel(numbers)

    def _send(self, messages: list[NewMessage]) -> list[Placed]:
        self._refuse_closed()
        groups: dict[int | None, list[int]] = {}
        for index, message in enumerate(messages):
            groups.setdefault(self._place_for(message), []).append(index)
        placed: list[Placed | None] = [None] * len(messages)
        failed: LazarettoError | None = None
        for place, indices in groups.items():
            try:
                store, numbers = self._send_group(place, [messages[index] for index in indices])
            except LazarettoError as error:
                # What may have been sent must not look like what was not.
                if failed is None or isinstance(error, CommitUnknown):
                    failed = error
                continue
            for index, number in zip(indices, numbers, strict=True):
                placed[index] = Placed(store, number)
        sent = [one for one in placed if one is not None]
        if failed is None:
            return sent
        if not sent:
            raise failed
        raise PartlySent(
            f"{len(sent)} of {len(messages)} messages were sent; the others failed: {failed}", placed
        ) from failed

    def _place_for(self, message: NewMessage) -> int | None:
        if message.session_id or message.partition_key:
            return self._members.place_for(message, detects=False)
        if message.message_id is None:
            return None
        if self._detects is None:
            self._detects = self._ask_whether_it_detects()
        return self._members.place_for(message, detects=self._detects or False)

    def _ask_whether_it_detects(self) -> bool | None:
        """Return whether the queue detects duplicates, which never changes; None if there is no queue yet."""

        def ask(place: int) -> tuple[bool] | None:
            store = store_of(self._members.stores[place].broker())
            found = store.read(lambda tx: tx.queues.by_path(self._path.key))
            return None if found is None else (found.options.requires_duplicate_detection,)

        answer = first_answer(self._members, self._members.from_home(), ask)
        return None if answer is None else answer[0]

    def _send_group(self, place: int | None, messages: list[NewMessage]) -> tuple[int, list[int]]:
        """Send messages to a store, None: to the first that can be reached; return which, and the numbers."""

        def send(store: int) -> tuple[int, list[int]]:
            broker = self._members.stores[store].broker()
            sending = broker.sender(self._path.queue)._sending_prepared(messages)
            return store, run_steps(store_of(broker), sending)

        if place is not None:
            return send(place)
        answer = first_answer(self._members, self._members.from_home(), send)
        assert answer is not None
        return answer

    def close(self) -> None:
        """Stop sending. Messages that were sent stay sent."""
        self._closed = True

    def _refuse_closed(self) -> None:
        if self._closed:
            raise BrokerClosed("this sender is closed")


def numbers_by_store(places: object, stores: int) -> dict[int, list[int]]:
    """Return sequence numbers by store. Raises InvalidOption for what is no place of a message."""
    given = [places] if isinstance(places, Placed) else places
    found: dict[int, list[int]] = {}
    for one in given if isinstance(given, Iterable) else [given]:
        if not isinstance(one, Placed) or not isinstance(one.store, int) or not 0 <= one.store < stores:
            raise InvalidOption(f"expected where messages were placed (Placed), got {shown(one)}")
        found.setdefault(one.store, []).append(one.sequence_number)
    return found
