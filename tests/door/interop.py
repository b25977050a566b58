"""Values of every type of AMQP, as in Apache's qpid-interop-test, for clients that send and receive them.

A value is told as a list of its type and what it is, in JSON that clients of any language read: numbers as
decimal text, floats and decimals as the hex of their bytes, binary and UUIDs as hex, the rest as it is.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterator
from typing import Any

from rabbitmq_amqp_python_client.wire import encoding as rabbit

from lazaretto.servicebus.amqp import values as own

#: A type's name, and what the value is.
Told = list[Any]

_LONG = "long text of more than 255 bytes " * 10

_INTEGERS = {
    "ubyte": (0, 0x7F, 0x80, 0xFF),
    "ushort": (0, 0x7FFF, 0x8000, 0xFFFF),
    "uint": (0, 1, 0xFF, 0x100, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF),
    "ulong": (0, 1, 0xFF, 0x100, 0x102030405, 0x7FFFFFFFFFFFFFFF, 0x8000000000000000, 0xFFFFFFFFFFFFFFFF),
    "byte": (-0x80, -1, 0, 0x7F),
    "short": (-0x8000, -1, 0, 0x7FFF),
    "int": (-0x80000000, -0x81, -0x80, -1, 0, 0x7F, 0x80, 0x7FFFFFFF),
    "long": (
        -0x8000000000000000, -0x102030405, -0x81, -0x80, -1, 0, 0x7F, 0x80, 0x102030405, 0x7FFFFFFFFFFFFFFF,
    ),
    "timestamp": (0, 1, 0x102030405, -1_000),
}  # fmt: skip
_BITS = {
    # Zeros, pi and e, the smallest and largest numbers, infinities, and what is no number.
    "float": (
        "00000000 80000000 40490fdb c02df854 00000001 80000001 00800000 7f7fffff 7f800000 ff800000 7fc00000"
    ),
    "double": (
        "0000000000000000 8000000000000000 400921fb54442eea c005bf0a8b145fcf 0000000000000001 "
        "8000000000000001 0010000000000000 7fefffffffffffff 7ff0000000000000 fff0000000000000 "
        "7ff8000000000000"
    ),
    "decimal32": "00000000 40490fdb c02df854 ff7fffff",
    "decimal64": "0000000000000000 400921fb54442eea ffefffffffffffff",
    "decimal128": "00000000000000000000000000000000 ff0102030405060708090a0b0c0d0e0f",
    "uuid": "00000000000000000000000000000000 00010203040506070809a0b0c0d0e0f0",
}
_TEXTS: dict[str, tuple[Any, ...]] = {
    "null": (None,),
    "boolean": (True, False),
    "char": ("a", "Z", "\x01", "\x7f", "\u16b5", "\U0010ffff"),
    "binary": ("", "00", b"Hello, world!".hex(), bytes(range(256)).hex() * 2),
    "string": ("", "Hello, world!", '"Hello, world!"', "Charlie's peach", "ᛕ \u20ac \U0001f980", _LONG),
    "symbol": ("", "myDomain.123", "domain.0123456789." * 100),
}

#: Values of the simple types.
SIMPLE: list[Told] = [
    *([kind, str(value)] for kind, found in _INTEGERS.items() for value in found),
    *([kind, value] for kind, text in _BITS.items() for value in text.split()),
    *([kind, value] for kind, found in _TEXTS.items() for value in found),
]
_MIXED: Told = ["list", [one for one in SIMPLE if one[0] not in ("decimal32", "decimal64", "decimal128")]]
#: Values that hold others.
COMPOUND: list[Told] = [
    ["list", []],
    _MIXED,
    ["list", [["list", [["int", "1"], ["list", []]]], ["map", [[["string", "k"], ["null", None]]]]]],
    ["map", []],
    ["map", [[["string", "one"], ["long", "1"]], [["string", "two"], ["string", "zwei"]]]],
    ["map", [[["symbol", "s"], ["ubyte", "1"]], [["string", "list"], ["list", [["boolean", True]]]]]],
    ["map", [[["string", "deep"], ["map", [[["string", "er"], ["uuid", "00" * 16]]]]]]],
    ["array", ["ubyte", ["0", "1", "255"]]],
    ["array", ["int", ["-2147483648", "0", "2147483647"]]],
    ["array", ["long", ["-1", "4328719365"]]],
    ["array", ["double", ["400921fb54442eea"]]],
    ["array", ["string", ["one", "", "ᛕ"]]],
    ["array", ["symbol", ["a", "b.c"]]],
    ["array", ["uuid", ["00010203040506070809a0b0c0d0e0f0"]]],
]
ALL = [*SIMPLE, *COMPOUND]

_OWN: dict[str, Any] = {
    "ubyte": own.UByte, "ushort": own.UShort, "uint": own.UInt, "ulong": own.ULong, "byte": own.Byte,
    "short": own.Short, "int": own.Int, "long": int, "timestamp": own.Timestamp, "char": own.Char,
    "symbol": own.Symbol, "float": own.Float, "double": float, "string": str, "boolean": bool,
    "binary": bytes, "uuid": uuid.UUID, "null": type(None), "list": list, "map": dict,
}  # fmt: skip
_NAMES = {kind: name for name, kind in _OWN.items()}
_DECIMALS = {4: "decimal32", 8: "decimal64", 16: "decimal128"}
_ELEMENTS = {
    0x50: "ubyte", 0x71: "int", 0x54: "int", 0x81: "long", 0x55: "long", 0x82: "double", 0xA1: "string",
    0xB1: "string", 0xA3: "symbol", 0xB3: "symbol", 0x98: "uuid",
}  # fmt: skip


def told(value: Any) -> Told:
    """Tell a value that our engine has read."""
    if isinstance(value, own.Decimal):
        return [_DECIMALS[len(value.raw)], value.raw.hex()]
    if isinstance(value, own.Array):
        name = _ELEMENTS[value.code]
        return ["array", [name, [_plain(name, one) for one in value.items]]]
    name = _NAMES[type(value)]
    if name == "list":
        return [name, [told(one) for one in value]]
    if name == "map":
        return [name, [[told(key), told(one)] for key, one in value.items()]]
    return [name, _plain(name, value)]


def _plain(name: str, value: Any) -> Any:
    """Tell what a value is whose type is known, in Python's own types or what derives from them."""
    if name in _INTEGERS:
        return str(int(value))
    if name in ("float", "double"):
        return struct.pack(">f" if name == "float" else ">d", value).hex()
    if name == "binary":
        return bytes(value).hex()
    if name == "uuid":
        return value.hex
    return value if value is None or isinstance(value, bool) else str(value)


def plain(name: str, what: Any) -> Any:
    """Return a value of Python's own types of what was told."""
    if name in _INTEGERS:
        return int(what)
    if name in ("float", "double"):
        (number,) = struct.unpack(">f" if name == "float" else ">d", bytes.fromhex(what))
        return number
    if name.startswith("decimal") or name == "binary":
        return bytes.fromhex(what)
    return uuid.UUID(what) if name == "uuid" else what


_RABBIT: dict[str, Any] = {
    "ubyte": rabbit.Ubyte, "ushort": rabbit.Ushort, "uint": rabbit.Uint, "ulong": rabbit.Ulong,
    "byte": rabbit.Byte, "short": rabbit.Short, "int": rabbit.Int, "long": rabbit.Long,
    "timestamp": rabbit.Timestamp, "char": rabbit.Char, "symbol": rabbit.Symbol, "float": rabbit.Float,
    "double": rabbit.Double,
}  # fmt: skip
_RABBIT_CODES = {
    "ubyte": rabbit.CODE_UBYTE, "int": rabbit.CODE_INT, "long": rabbit.CODE_LONG,
    "double": rabbit.CODE_DOUBLE, "string": rabbit.CODE_STR8, "symbol": rabbit.CODE_SYM8,
    "uuid": rabbit.CODE_UUID,
}  # fmt: skip


def for_rabbit(given: Told) -> Any:
    """Return a value for RabbitMQ's client."""
    name, what = given
    if name == "list":
        return [for_rabbit(one) for one in what]
    if name == "map":
        return {for_rabbit(key): for_rabbit(value) for key, value in what}
    if name == "array":
        return rabbit.Array(_RABBIT_CODES[what[0]], [plain(what[0], one) for one in what[1]])
    made = plain(name, what)
    return _RABBIT[name](made) if name in _RABBIT else made


def _proton() -> tuple[dict[str, Any], Any]:
    import proton

    kinds = {
        "ubyte": proton.ubyte, "ushort": proton.ushort, "uint": proton.uint, "ulong": proton.ulong,
        "byte": proton.byte, "short": proton.short, "int": proton.int32, "long": int,
        "timestamp": proton.timestamp, "char": proton.char, "symbol": proton.symbol, "float": proton.float32,
        "double": float, "decimal32": proton.decimal32, "decimal64": proton.decimal64,
        "decimal128": proton.decimal128, "string": str, "boolean": bool, "binary": bytes, "uuid": uuid.UUID,
        "null": type(None), "list": list, "map": dict,
    }  # fmt: skip
    return kinds, proton


def for_proton(given: Told) -> Any:
    """Return a value for Proton."""
    kinds, proton = _proton()
    name, what = given
    if name == "list":
        return [for_proton(one) for one in what]
    if name == "map":
        return {for_proton(key): for_proton(value) for key, value in what}
    if name == "array":
        code = getattr(proton.Data, what[0].upper())
        return proton.Array(proton.UNDESCRIBED, code, *(plain(what[0], one) for one in what[1]))
    if name in ("decimal32", "decimal64"):
        return kinds[name](int(what, 16))
    made = plain(name, what)
    return made if name in ("null", "boolean", "uuid") else kinds[name](made)


def told_by_proton(value: Any) -> Told:
    """Tell a value that Proton has read."""
    kinds, proton = _proton()
    if isinstance(value, proton.Array):
        name = proton.Data.type_names[value.type]
        return ["array", [name, [_plain(name, one) for one in value.elements]]]
    if isinstance(value, memoryview):
        return ["binary", bytes(value).hex()]
    name = next(name for name, kind in kinds.items() if type(value) is kind)
    if name == "list":
        return [name, [told_by_proton(one) for one in value]]
    if name == "map":
        return [name, [[told_by_proton(key), told_by_proton(one)] for key, one in value.items()]]
    if name.startswith("decimal"):
        return [name, bytes(value).hex() if name == "decimal128" else f"{int(value):0{int(name[7:]) // 4}x}"]
    return [name, _plain(name, value)]


def kinds_in(given: Told) -> Iterator[str]:
    """Yield the types of a value and of all in it."""
    name, what = given
    yield name
    if name == "list":
        for one in what:
            yield from kinds_in(one)
    elif name == "map":
        for pair in what:
            for one in pair:
                yield from kinds_in(one)
    elif name == "array":
        yield f"array of {what[0]}"
