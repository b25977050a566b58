"""Answers as JSON."""

from __future__ import annotations

from typing import Any

import msgspec

from lazaretto.records.plain import plain

_encode = msgspec.json.Encoder().encode


def json_of(value: Any) -> bytes:
    """Return a value of the broker as JSON."""
    return _encode(plain(value))
