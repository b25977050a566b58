"""Transfers read without tables: nearly all peers write them alike, and they are nearly all that comes."""

from __future__ import annotations

import itertools
import struct
from typing import Final

from lazaretto.servicebus.amqp.performatives import Transfer

_u32 = struct.Struct(">I").unpack_from
_BOOLEANS: Final = {0x40: None, 0x41: True, 0x42: False}
#: What stands behind `more`, if each field takes one byte: no settle mode, no state, and what it means.
_ENDS: Final[dict[bytes, tuple[bool | None, ...]]] = {
    bytes(codes): tuple(_BOOLEANS[code] for code in codes) + (None,) * (5 - length)
    for length in range(6)
    for codes in itertools.product(*(b"\x40", b"\x40", *(b"\x40\x41\x42",) * 3)[:length])
}


def read_transfer(data: bytes, place: int) -> tuple[Transfer, int] | None:
    """Return the transfer whose descriptor, of three bytes, stands at a place, and where it ends.

    None: it is written in another way, or wrongly, which the tables tell.
    """
    try:
        if data[place + 3] == 0xC0:
            count, at, end = data[place + 5], place + 6, place + 5 + data[place + 4]
        elif data[place + 3] == 0xD0:
            count, at, end = _u32(data, place + 8)[0], place + 12, place + 8 + _u32(data, place + 4)[0]
        else:
            return None
        code = data[at]
        if code == 0x43:
            handle, at = 0, at + 1
        elif code == 0x52:
            handle, at = data[at + 1], at + 2
        elif code == 0x70:
            handle, at = _u32(data, at + 1)[0], at + 5
        else:
            return None
        code = data[at]
        number: int | None
        if code == 0x52:
            number, at = data[at + 1], at + 2
        elif code == 0x70:
            number, at = _u32(data, at + 1)[0], at + 5
        elif code == 0x43:
            number, at = 0, at + 1
        elif code == 0x40:
            number, at = None, at + 1
        else:
            return None
        tag: bytes | None
        if data[at] == 0xA0:
            size = data[at + 1]
            tag, at = data[at + 2 : at + 2 + size], at + 2 + size
        elif data[at] == 0x40:
            tag, at = None, at + 1
        else:
            return None
        code = data[at]
        form: int | None
        if code == 0x43:
            form, at = 0, at + 1
        elif code == 0x70:
            form, at = _u32(data, at + 1)[0], at + 5
        elif code == 0x52:
            form, at = data[at + 1], at + 2
        elif code == 0x40:
            form, at = None, at + 1
        else:
            return None
        settled, more = _BOOLEANS[data[at]], _BOOLEANS[data[at + 1]]
        rest = data[at + 2 : end]
        _, _, resume, aborted, batchable = _ENDS[rest]
    except (IndexError, KeyError, struct.error):
        return None
    if not at + 2 <= end <= len(data) or count != 6 + len(rest):
        return None
    return Transfer(handle, number, tag, form, settled, more, None, None, resume, aborted, batchable), end
