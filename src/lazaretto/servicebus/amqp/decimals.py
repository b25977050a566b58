"""Decimal numbers of AMQP: IEEE 754's with a binary coefficient, as Python's and back. Pure."""

from __future__ import annotations

import decimal
from typing import Final, NamedTuple


class _Form(NamedTuple):
    """Bits of the coefficient, decimal digits that fit into it, and what is added to the exponent."""

    bits: int
    digits: int
    bias: int


#: By size in bytes.
_FORMS: Final = {4: _Form(23, 7, 101), 8: _Form(53, 16, 398), 16: _Form(113, 34, 6_176)}


def number_of(raw: bytes) -> decimal.Decimal | None:
    """Return the number that bytes stand for; None: it is none that is finite, or is written oddly."""
    form, value = _FORMS[len(raw)], int.from_bytes(raw, "big")
    negative = value >> len(raw) * 8 - 1
    rest = value & (1 << len(raw) * 8 - 1) - 1
    if rest >> len(raw) * 8 - 3 == 0b11:
        # A coefficient of one more bit, which begins with 100; or infinity, or no number.
        exponent = rest >> form.bits - 2 & (1 << len(raw) * 8 - 1 - form.bits) - 1
        if rest >> len(raw) * 8 - 5 == 0b1111:
            return None
        coefficient = 1 << form.bits | rest & (1 << form.bits - 2) - 1
    else:
        exponent, coefficient = rest >> form.bits, rest & (1 << form.bits) - 1
    if coefficient >= 10**form.digits:
        return None
    digits = tuple(map(int, str(coefficient)))
    return decimal.Decimal((negative, digits, exponent - form.bias))


def bytes_of(number: decimal.Decimal, size: int) -> bytes | None:
    """Return a number as so many bytes; None: it does not fit exactly."""
    form = _FORMS[size]
    negative, digits, exponent = number.as_tuple()
    if not isinstance(exponent, int):
        return None
    coefficient = int("".join(map(str, digits)) or "0")
    biased = exponent + form.bias
    if coefficient >= 10**form.digits or not 0 <= biased < 3 << size * 8 - 3 - form.bits:
        return None
    if coefficient >> form.bits:
        rest = 0b11 << size * 8 - 3 | biased << form.bits - 2 | coefficient & (1 << form.bits - 2) - 1
    else:
        rest = biased << form.bits | coefficient
    return (negative << size * 8 - 1 | rest).to_bytes(size, "big")
