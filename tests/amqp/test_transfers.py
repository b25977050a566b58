"""Transfers read without tables are the same as with them."""

from __future__ import annotations

import hypothesis.strategies as st
import msgspec
from hypothesis import given

from lazaretto.servicebus.amqp import AmqpError
from lazaretto.servicebus.amqp.composites import parse
from lazaretto.servicebus.amqp.encode import described
from lazaretto.servicebus.amqp.frames import read_transfer
from lazaretto.servicebus.amqp.performatives import Accepted, Transfer

_FLAGS = st.none() | st.booleans()
_NUMBERS = st.none() | st.sampled_from([0, 1, 255, 256, (1 << 32) - 1])
_TRANSFERS = st.builds(
    Transfer,
    handle=st.sampled_from([0, 7, 256]),
    delivery_id=_NUMBERS,
    delivery_tag=st.none() | st.binary(max_size=32),
    message_format=_NUMBERS,
    settled=_FLAGS,
    more=_FLAGS,
    rcv_settle_mode=st.none() | st.sampled_from([0, 1]),
    state=st.none() | st.just(Accepted()),
    resume=_FLAGS,
    aborted=_FLAGS,
    batchable=_FLAGS,
)


def shortened(transfer: Transfer, fields: int) -> tuple[bytes, Transfer]:
    """Return a transfer with its first fields alone, as bytes and as what they mean."""
    values = list(msgspec.structs.astuple(transfer)[:fields])
    parts = [b"\x40" if v is None else k.write(v) for k, v in zip(Transfer.kinds, values, strict=False)]
    return described(Transfer.code, parts), Transfer(*values)


@given(_TRANSFERS, st.integers(1, 11), st.binary(max_size=3), st.binary(max_size=5))
def test_a_transfer_is_read_as_it_was_written(
    transfer: Transfer, fields: int, before: bytes, payload: bytes
) -> None:
    raw, meant = shortened(transfer, fields)
    found = read_transfer(before + raw + payload, len(before))
    assert found in (None, (meant, len(before) + len(raw)))


@given(_TRANSFERS)
def test_what_peers_send_is_read_without_tables(transfer: Transfer) -> None:
    usual = msgspec.structs.replace(transfer, rcv_settle_mode=None, state=None)
    for fields in range(6, 12):
        raw, meant = shortened(usual, fields)
        assert read_transfer(raw, 0) == (meant, len(raw))


@given(_TRANSFERS, st.integers(1, 11), st.data())
def test_other_bytes_are_read_the_same_or_left_to_the_tables(
    transfer: Transfer, fields: int, data: st.DataObject
) -> None:
    raw = bytearray(shortened(transfer, fields)[0])
    raw[data.draw(st.integers(3, len(raw) - 1))] = data.draw(st.integers(0, 255))
    del raw[data.draw(st.integers(4, len(raw))) :]
    found = read_transfer(bytes(raw), 0)
    if found is not None:
        try:
            assert parse(bytes(raw)) == found
        except AmqpError as error:
            raise AssertionError("the tables refuse what was read without them") from error
