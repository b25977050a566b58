"""Messages: of 1,024 bytes of JSON with a number in a fixed place, which every system carries, and orders."""

from __future__ import annotations

import json
from collections.abc import Iterator

BYTES = 1_024
_DIGITS = 18


def _template() -> tuple[bytes, bytes]:
    order = {
        "number": "#" * _DIGITS,
        "customer": {"id": 48_213, "name": "Lindqvist & Daughters", "country": "SE", "vat": True},
        "lines": [
            {"sku": f"LZ-{n:05d}", "quantity": n % 7 + 1, "price": 12.5 + n, "tags": ["fragile", "cold"]}
            for n in range(8)
        ],
        "note": "",
    }
    short = json.dumps(order, separators=(",", ":"))
    order["note"] = "n" * (BYTES - len(short))
    before, after = json.dumps(order, separators=(",", ":")).encode().split(b"#" * _DIGITS)
    return before, after


_BEFORE, _AFTER = _template()
_START, _END = len(_BEFORE), len(_BEFORE) + _DIGITS


def body(number: int) -> bytes:
    """Return the payload of message `number`."""
    return b"%b%018d%b" % (_BEFORE, number, _AFTER)


def number(payload: bytes) -> int:
    """Return the number that `body` wrote into a payload."""
    return int(payload[_START:_END])


def bodies(count: int, start: int = 0) -> Iterator[bytes]:
    """Yield the payloads of `count` messages numbered from `start`."""
    return map(body, range(start, start + count))


def order(number: int, size: int) -> bytes:
    """Return a JSON text of so many bytes, for handlers that parse it."""
    text = json.dumps({"id": number, "kind": "order", "lines": [{"sku": "A-1", "n": 2}], "note": ""})
    return f'{text[:-2]}{"x" * (size - len(text))}"}}'.encode()
