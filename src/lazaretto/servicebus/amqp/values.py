"""Values of AMQP 1.0 that Python has no type of its own for."""

from __future__ import annotations

import decimal
from typing import Any, Final, NamedTuple

from lazaretto.model.sized import Sized


class Symbol(str, Sized):
    """An ASCII name."""

    __slots__ = ()
    code = 0xA3


class Timestamp(int):
    """Milliseconds since 1970, UTC."""

    __slots__ = ()


class Char(str, Sized):
    """One Unicode character."""

    __slots__ = ()
    code = 0x73


class Float(float, Sized):
    """A number of 32 bits. A plain `float` has 64."""

    __slots__ = ()
    code = 0x72


class SizedInt(int, Sized):
    """An integer of a type of its own. A plain `int` is a long, or a ulong where it is too large for one."""

    __slots__ = ()


class UByte(SizedInt):
    """0 to 255."""

    __slots__ = ()
    code = 0x50


class UShort(SizedInt):
    """16 bits, unsigned."""

    __slots__ = ()
    code = 0x60


class UInt(SizedInt):
    """32 bits, unsigned."""

    __slots__ = ()
    code = 0x70


class ULong(SizedInt):
    """64 bits, unsigned."""

    __slots__ = ()
    code = 0x80


class Byte(SizedInt):
    """8 bits, signed."""

    __slots__ = ()
    code = 0x51


class Short(SizedInt):
    """16 bits, signed."""

    __slots__ = ()
    code = 0x61


class Int(SizedInt):
    """32 bits, signed."""

    __slots__ = ()
    code = 0x71


class Decimal(NamedTuple):
    """A decimal number of 4, 8 or 16 bytes, which are kept as they came."""

    raw: bytes


class Described(NamedTuple):
    """A value with a descriptor: a Symbol or a number that says what it is."""

    descriptor: Any
    value: Any


class Array(NamedTuple):
    """Values of one type. `code`: their constructor. `descriptor`: that of each, if they have one."""

    code: int
    items: list[Any]
    descriptor: Any = None


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
