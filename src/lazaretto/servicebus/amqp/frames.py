"""Frames of AMQP 1.0: the unit in which performatives and payloads travel."""

from __future__ import annotations

import enum
import struct
from typing import Final

import msgspec

from lazaretto.servicebus.amqp import encode
from lazaretto.servicebus.amqp.composites import Composite, encode_composite, parse
from lazaretto.servicebus.amqp.conditions import FRAMING_ERROR, AmqpError
from lazaretto.servicebus.amqp.transfers import read_transfer

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
    role, done = encode.boolean(receiver), encode.boolean(settled)
    head = _disposition(b"\x00\x53\x15\xd0", 17 + len(state), 6, role, 0x70, first, 0x70, last, done)
    body = head + state + _FALSE
    return _framed(channel, body, FrameType.AMQP)


def _framed(channel: int, body: bytes, kind: FrameType) -> bytes:
    return _head.pack(HEADER_SIZE + len(body), 2, kind, channel) + body
