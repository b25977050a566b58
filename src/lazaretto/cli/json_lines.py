"""Lines of JSON as messages, sent in order, a thousand to a commit."""

from __future__ import annotations

import codecs
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

from lazaretto.broker.sender import Sender
from lazaretto.engine.messages.prepare import prepare_all
from lazaretto.engine.outcome.units import MOST_IN_UNIT
from lazaretto.errors import InvalidMessage
from lazaretto.model.messages import Message
from lazaretto.model.records.messages import message_of

#: Messages of one commit.
BATCH = 1000
#: Bytes of bodies of one commit, so that large messages do not fill the memory.
BATCH_BYTES = 16_777_216


class BadLine(Exception):
    """A line cannot be sent: its number, and what is wrong with it. `cause` is the broker's error, if any."""

    def __init__(self, number: int, what: str, cause: Exception | None = None) -> None:
        super().__init__(f"line {number}: {what}")
        self.cause = cause


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Hold Control-C back until the block is done, so that what was sent is known exactly."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []

    def hold(number: int, frame: FrameType | None) -> None:
        held.append(number)

    before = signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if held:
        raise KeyboardInterrupt


class LineSender:
    """Sends lines in order and keeps count: `sent` numbers, `last_line` sent, `bytes_read` up to there.

    `units`: sessions are units where they go, so that lines of one session in a row are one commit, however
    many they are.
    """

    def __init__(self, sender: Sender, like: Message, *, units: bool) -> None:
        self._sender = sender
        self._like = like
        self._units = units
        self.sent: list[int] = []
        self.last_line = 0
        self.bytes_read = 0

    def run(self, lines: Iterable[bytes], on_commit: Callable[[], None]) -> None:
        """Send all lines. Raises BadLine after the lines before it are sent; empty lines are skipped."""
        batch: list[tuple[int, Message]] = []
        size = read = 0
        for number, line in enumerate(lines, 1):
            read += len(line)
            if number == 1:
                # Windows' programs begin files with it.
                line = line.removeprefix(codecs.BOM_UTF8)
            if line.strip() in (b"", b"[", b"]"):
                continue
            try:
                message = message_of(line, self._like)
                prepare_all(message)
            except (ValueError, InvalidMessage) as error:
                self._commit(batch)
                raise BadLine(
                    number, str(error), error if isinstance(error, InvalidMessage) else None
                ) from None
            full = len(batch) >= BATCH or size >= BATCH_BYTES
            if full and not self._belongs_to(batch, message):
                self._commit(batch)
                self.bytes_read = read - len(line)
                on_commit()
                batch, size = [], 0
            batch.append((number, message))
            size += len(message.body)
        self._commit(batch)
        self.bytes_read = read
        on_commit()

    def _belongs_to(self, batch: list[tuple[int, Message]], message: Message) -> bool:
        """Return whether a message must be in the commit of those before it."""
        session_id = message.session_id
        if not self._units or session_id is None or len(batch) >= MOST_IN_UNIT:
            return False
        return batch[-1][1].session_id == session_id

    def _commit(self, batch: list[tuple[int, Message]]) -> None:
        if not batch:
            return
        try:
            with _uninterrupted():
                self.sent += self._sender.send([message for _, message in batch])
                self.last_line = batch[-1][0]
        except InvalidMessage as error:
            # The queue takes less than a message may be: none of the batch was sent. Halving finds
            # the line it refuses, and sends those before it.
            if len(batch) == 1:
                raise BadLine(batch[0][0], str(error), error) from None
            middle = len(batch) // 2
            self._commit(batch[:middle])
            self._commit(batch[middle:])
