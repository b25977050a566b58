"""Frames of AMQP 1.0: the unit in which performatives and payloads travel."""

from __future__ import annotations

import enum
import itertools
import struct
from typing import Final

import msgspec

from lazaretto.servicebus.amqp import encode
from lazaretto.servicebus.amqp.composites import Composite, encode_composite, parse
from lazaretto.servicebus.amqp.conditions import FRAMING_ERROR, AmqpError
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


AMQP_HEADER: Final = b"AMQP\x00\x01\x00\x00"
SASL_HEADER: Final = b"AMQP\x03\x01\x00\x00"
HEADER_SIZE: Final = 8
#: Every peer accepts frames of this size.
LEAST_FRAME_SIZE: Final = 512
#: A frame that says nothing: the peer is still there.
HEARTBEAT: Final = b"\x00\x00\x00\x08\x02\x00\x00\x00"
#: Maximum number of bytes of a transfer frame beside its payload, tag and state.
TRANSFER_OVERHEAD: Final = 64

_FALSE: Final = encode.FALSE
_head = struct.Struct(">IBBH")
_transfer = struct.Struct(">IBBH4sIIBIBIBB").pack
_TRANSFER: Final = b"\x00\x53\x14"
_OF_TRANSFER: Final = _TRANSFER + b"\xd0"
#: What follows a transfer's tag: its format, whether it is settled, whether more comes, and no settle mode.
_FLAGS: Final = {
    (settled, more): b"\x43" + encode.boolean(settled) + encode.boolean(more) + b"\x40"
    for settled in (False, True)
    for more in (False, True)
}
_PLAIN_FLAGS: Final = {which: flags + encode.NULL + _FALSE * 3 for which, flags in _FLAGS.items()}
_disposition = struct.Struct(">4sII1sBIBI1s").pack


class FrameType(enum.IntEnum):
    """The protocol of a frame."""

    AMQP = 0
    SASL = 1


_TYPES: Final = (FrameType.AMQP, FrameType.SASL)


class Frame(msgspec.Struct, frozen=True, gc=False):
    """A frame. `body` is None in a heartbeat."""

    type: FrameType
    channel: int
    body: Composite | None
    payload: bytes
    #: Where the next frame begins.
    end: int


def read_frame(data: bytes, place: int, max_frame_size: int) -> Frame | None:
    """Return the frame at a place, or None if not all of it has come.

    Raises AmqpError for what is no frame, before the rest of it has come.
    """
    if len(data) - place < HEADER_SIZE:
        return None
    size, offset, kind, channel = _head.unpack_from(data, place)
    body = place + 4 * offset
    if not 8 <= 4 * offset <= size <= max_frame_size:
        raise AmqpError(
            FRAMING_ERROR, f"expected a frame of 8 to {max_frame_size} bytes, got one of {size} bytes"
        )
    if kind > 1:
        raise AmqpError(FRAMING_ERROR, f"expected a frame of type 0 or 1, got type {kind}")
    end = place + size
    if len(data) < end:
        return None
    if body == end:
        return Frame(_TYPES[kind], channel, None, b"", end)
    transfer = read_transfer(data, body) if data.startswith(_TRANSFER, body) else None
    composite, at = parse(data, body) if transfer is None else transfer
    if at > end:
        raise AmqpError(FRAMING_ERROR, "expected a performative to end within its frame, got a longer one")
    return Frame(_TYPES[kind], channel, composite, data[at:end], end)


def frame(channel: int, body: Composite, kind: FrameType = FrameType.AMQP) -> bytes:
    """Return a frame with a performative and no payload."""
    return _framed(channel, encode_composite(body), kind)


def transfer_frame(
    channel: int,
    handle: int,
    delivery_id: int,
    tag: bytes,
    payload: bytes,
    *,
    settled: bool,
    more: bool = False,
    state: bytes = encode.NULL,
) -> bytes:
    """Return a transfer's frame: the same as of a Transfer, made quicker. `state`: encoded."""
    size = 23 + len(tag) + len(state)
    whole = HEADER_SIZE + 8 + size + len(payload)
    head = _transfer(
        whole,
        2,
        FrameType.AMQP,
        channel,
        _OF_TRANSFER,
        size,
        11,
        0x70,
        handle,
        0x70,
        delivery_id,
        0xA0,
        len(tag),
    )
    if state is encode.NULL:
        return b"".join((head, tag, _PLAIN_FLAGS[settled, more], payload))
    return b"".join((head, tag, _FLAGS[settled, more], state, _FALSE * 3, payload))


def disposition_frame(
    channel: int, first: int, last: int, state: bytes, *, receiver: bool, settled: bool
) -> bytes:
    """Return a disposition's frame: the same as of a Disposition, made quicker. `state`: encoded."""
    role, is_settled = encode.boolean(receiver), encode.boolean(settled)
    head = _disposition(b"\x00\x53\x15\xd0", 17 + len(state), 6, role, 0x70, first, 0x70, last, is_settled)
    body = head + state + _FALSE
    return _framed(channel, body, FrameType.AMQP)


def _framed(channel: int, body: bytes, kind: FrameType) -> bytes:
    return _head.pack(HEADER_SIZE + len(body), 2, kind, channel) + body
