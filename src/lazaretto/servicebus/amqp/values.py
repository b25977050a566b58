"""Values of AMQP 1.0 that Python has no type of its own for."""

from __future__ import annotations

from typing import Any, NamedTuple

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
