"""Sends statements to the server without waiting for earlier replies."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psycopg
from psycopg import pq
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result

from lazaretto.store.postgres.arrays import Column, array_text, text
from lazaretto.store.postgres.polling import READ, WRITE, new_poll
from lazaretto.store.postgres.watch import Watch

_SYNC = int(pq.ExecStatus.PIPELINE_SYNC)
_FAILED = (int(pq.ExecStatus.FATAL_ERROR), int(pq.ExecStatus.PIPELINE_ABORTED))
_BAD = int(pq.ConnStatus.BAD)
#: How long one wait lasts before it is looked whether the server is still there, in milliseconds.
_GLANCE = 100


def _number(value: int) -> bytes:
    return b"%d" % value


_Encoder = tuple[Callable[[Any], bytes | None], int]

#: How a parameter is sent, by its type: as text, but for bodies and the like, which are binary (1).
_ENCODERS: dict[type, _Encoder] = {
    int: (_number, 0),
    str: (lambda value: text(value).encode(), 0),
    bytes: (bytes, 1),
    bytearray: (bytes, 1),
    memoryview: (bytes, 1),
}


def _encoder_of(given: type) -> _Encoder:
    """Return the encoder for another type. Members of an enumeration, for example, are sent as text."""
    kind = next((each for each in given.__mro__ if each in _ENCODERS), int)
    encoder = _ENCODERS[given] = _ENCODERS[kind]
    return encoder


def encode(values: Sequence[Any]) -> tuple[list[bytes | None], list[int]]:
    """Return parameters as they are sent, and which of them are binary (1) or text (0)."""
    encoded: list[bytes | None] = []
    formats: list[int] = []
    for value in values:
        # Each commit has dozens: those of the common types call nothing.
        kind = type(value)
        if kind is int:
            encoded.append(b"%d" % value)
            formats.append(0)
        elif value is None or kind is bytes or kind is Column:
            encoded.append(value)
            formats.append(1)
        elif kind is str:
            encoded.append(text(value).encode())
            formats.append(0)
        elif kind is list:
            encoded.append(array_text(value))
            formats.append(0)
        elif kind is bool:
            encoded.append(b"t" if value else b"f")
            formats.append(0)
        else:
            encode_one, binary = _ENCODERS.get(kind) or _encoder_of(kind)
            encoded.append(encode_one(value))
            formats.append(binary)
    return encoded, formats


class Sent:
    """A statement that was sent. Reading its result waits for the reply."""

    __slots__ = ("_pipeline", "_rows", "prepares", "result")

    def __init__(self, pipeline: Pipeline, prepares: str | None = None) -> None:
        self._pipeline = pipeline
        #: The query that it makes ready for others, if that is what it does.
        self.prepares = prepares
        self.result: pq.abc.PGresult | None = None
        self._rows: Iterator[tuple[Any, ...]] | None = None

    def _answer(self) -> pq.abc.PGresult:
        if self.result is None:
            self._pipeline.wait_for(self)
        assert self.result is not None
        return self.result

    @property
    def rowcount(self) -> int:
        """The number of rows it changed."""
        return self._answer().command_tuples or 0

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Return all remaining rows."""
        return list(self)

    def fetchone(self) -> tuple[Any, ...] | None:
        """Return the next row, or None."""
        return next(iter(self), None)

    def numbers(self, columns: int) -> list[int | None]:
        """Return the first columns of the only row, which are BIGINT."""
        get = self._answer().get_value
        values: list[int | None] = []
        for column in range(columns):
            value = get(0, column)
            values.append(None if value is None else int.from_bytes(value, signed=True))
        return values

    def number(self, column: int = 0) -> int | None:
        """Return a BIGINT of the only row: in every commit, what loads any rows would cost more than this."""
        value = self._answer().get_value(0, column)
        return None if value is None else int.from_bytes(value, signed=True)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        if self._rows is None:
            self._rows = iter(self._pipeline.rows(self._answer()))
        return self._rows


class Pipeline:
    """A connection's statements, prepared at their first use, in libpq's pipeline mode.

    psycopg's own pipeline sends each statement by itself and looks for answers after each, which
    costs three times as much. The connection is an ordinary one between `open` and `settle` of the next.
    """

    def __init__(self, raw: psycopg.Connection[Any], watch: Watch) -> None:
        self._raw = raw
        self._watch = watch
        self._pg = raw.pgconn
        self._poll = new_poll()
        self._poll.register(self._pg.socket, READ)
        self._transformer = Transformer(raw)
        self._names: dict[str, bytes] = {}
        self._prepared = 0
        self._waiting: deque[Sent] = deque()
        self._error: psycopg.Error | None = None
        self.is_open = False

    def open(self) -> None:
        """Start to send statements without waiting."""
        self._pg.enter_pipeline_mode()
        self._error = None
        self.is_open = True

    def send(self, sql: str, parameters: Sequence[Any] = ()) -> Sent:
        """Send a statement. Its parameters are named $1, $2 and so on.

        Raises the error of an earlier statement, if it is already known.
        """
        return self.send_encoded(sql, *encode(parameters))

    def send_encoded(self, sql: str, parameters: Sequence[bytes | None], formats: Sequence[int]) -> Sent:
        """Send a statement with parameters as `encode` returns them."""
        if self._error is not None:
            raise self._error
        try:
            name = self._names.get(sql)
            if name is None:
                self._prepared += 1
                name = b"lazaretto_%d" % self._prepared
                self._pg.send_prepare(name, sql.encode())
                self._waiting.append(Sent(self, prepares=sql))
                self._names[sql] = name
            self._pg.send_query_prepared(name, parameters, formats, 1)
            sent = Sent(self)
            self._waiting.append(sent)
        except BaseException:
            self._give_up()
            raise
        return sent

    def _give_up(self) -> None:
        """Close the connection: a statement was interrupted before its reply, for example by a signal."""
        self.is_open = False
        self._waiting.clear()
        with contextlib.suppress(psycopg.Error):
            self._raw.close()

    def wait_for(self, sent: Sent) -> None:
        """Read replies up to that of a statement. Raises the first error among them."""
        if self.is_open:
            try:
                self._pg.send_flush_request()
                self._flush()
                self._read(sent)
            except BaseException:
                self._give_up()
                raise
        if self._error is not None:
            raise self._error
        if sent.result is None:
            raise psycopg.OperationalError("the connection was closed before the reply arrived")

    def settle(self) -> None:
        """Wait for all replies. Raises the first error."""
        if not self.is_open:
            return
        try:
            self._pg.pipeline_sync()
            self._flush()
            self._read(None)
            self._pg.exit_pipeline_mode()
        except BaseException:
            self._give_up()
            raise
        self.is_open = False
        if self._error is not None:
            raise self._error

    def rows(self, result: pq.abc.PGresult) -> list[tuple[Any, ...]]:
        """Return the rows of a result."""
        self._transformer.set_pgresult(result)
        return self._transformer.load_rows(0, result.ntuples, tuple)

    def _flush(self) -> None:
        """Wait until everything is sent. The server may require that its replies are read first."""
        while self._pg.flush():
            self._wait(READ | WRITE)

    def _read(self, last: Sent | None) -> None:
        """Assign replies to statements: up to that of `last` or an error before it; without it, all."""
        pg, waiting = self._pg, self._waiting
        is_busy, get_result = pg.is_busy, pg.get_result
        while last is None or (last.result is None and self._error is None):
            while is_busy():
                self._wait(READ)
            result = get_result()
            if result is None:
                # Behind the replies of each statement.
                if pg.status == _BAD:
                    raise psycopg.OperationalError(pg.get_error_message())
                continue
            status = result.status
            if status == _SYNC:
                return
            if not waiting:
                # It belongs to no statement: the commit has failed, or the connection ends.
                error = error_from_result(result)
                if result.error_field(pq.DiagnosticField.SEVERITY_NONLOCALIZED) == b"FATAL":
                    raise error
                self._error = self._error or error
                continue
            sent = waiting.popleft()
            if status in _FAILED:
                if sent.prepares is not None:
                    self._names.pop(sent.prepares, None)
                if self._error is None:
                    self._error = error_from_result(result)
                if pg.status == _BAD:
                    raise self._error
            else:
                sent.result = result

    def _wait(self, events: int) -> None:
        self._poll.modify(self._pg.socket, events)
        self._watch.heard()
        while not self._poll.poll(_GLANCE):
            self._watch.silent()
        self._pg.consume_input()
