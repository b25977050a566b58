"""Encodes the columns of several rows as binary PostgreSQL arrays, one parameter for each column."""

from __future__ import annotations

import struct
from collections.abc import Iterable

_HEAD = struct.Struct(">iiIii")
_LENGTH = struct.Struct(">i")
_NUMBER = struct.Struct(">iq")
_NULL = _LENGTH.pack(-1)


class Column(bytes):
    """The values of one column, encoded."""


def numbers(values: Iterable[int | None]) -> Column:
    """Return a column of BIGINT."""
    parts = [_NULL if value is None else _NUMBER.pack(8, value) for value in values]
    return Column(_HEAD.pack(1, 1, 20, len(parts), 1) + b"".join(parts))


def blobs(values: Iterable[bytes | None]) -> Column:
    """Return a column of BYTEA."""
    parts = [_NULL if value is None else _LENGTH.pack(len(value)) + value for value in values]
    return Column(_HEAD.pack(1, 1, 17, len(parts), 1) + b"".join(parts))


def texts(values: Iterable[str | None]) -> Column:
    """Return a column of TEXT."""
    parts: list[bytes] = []
    for value in values:
        if value is None:
            parts.append(_NULL)
        else:
            encoded = (text(value) if "\0" in value else value).encode()
            parts.append(_LENGTH.pack(len(encoded)) + encoded)
    return Column(_HEAD.pack(1, 1, 25, len(parts), 1) + b"".join(parts))


def text(value: str) -> str:
    """Return a text that PostgreSQL accepts: without NUL characters."""
    return value.replace("\0", "\ufffd") if "\0" in value else value


def array_text(values: Iterable[int | str]) -> bytes:
    """Return numbers, or texts, as an array's text."""
    return b"{%b}" % b",".join([_quoted(one) if isinstance(one, str) else b"%d" % one for one in values])


def _quoted(value: str) -> bytes:
    return b'"%b"' % text(value).encode().replace(b"\\", b"\\\\").replace(b'"', b'\\"')
