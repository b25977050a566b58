"""Encodes the columns of several rows as binary PostgreSQL arrays, one parameter for each column."""

from __future__ import annotations

import struct
from collections.abc import Iterable

_HEAD = struct.Struct(">iiIii")
_LENGTH = struct.Struct(">i")
_NUMBER = struct.Struct(">iq")
_NULL = _LENGTH.pack(-1)


class Column:
    """The values of one column, encoded."""

    __slots__ = ("encoded",)

    def __init__(self, oid: int, parts: list[bytes]) -> None:
        self.encoded = _HEAD.pack(1, 1, oid, len(parts), 1) + b"".join(parts)


def numbers(values: Iterable[int | None]) -> Column:
    """Return a column of BIGINT."""
    return Column(20, [_NULL if value is None else _NUMBER.pack(8, value) for value in values])


def blobs(values: Iterable[bytes | None]) -> Column:
    """Return a column of BYTEA."""
    return Column(17, _sized(values))


def texts(values: Iterable[str | None]) -> Column:
    """Return a column of TEXT."""
    return Column(25, _sized(None if value is None else text(value).encode() for value in values))


def text(value: str) -> str:
    """Return a text that PostgreSQL accepts: without NUL characters."""
    return value.replace("\0", "\ufffd") if "\0" in value else value


def _sized(values: Iterable[bytes | None]) -> list[bytes]:
    return [_NULL if value is None else _LENGTH.pack(len(value)) + value for value in values]
