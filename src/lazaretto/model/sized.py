"""Values of properties that say which type they have in AMQP, where Python has one type for several."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar, Final

#: The code of a value whose type in Python says all.
PLAIN: Final = 0
#: Codes of numbers by what a rule's description calls them.
CODES: Final[Mapping[str, int]] = {
    "byte": 0x51, "unsignedByte": 0x50, "short": 0x61, "unsignedShort": 0x60, "int": 0x71,
    "unsignedInt": 0x70, "unsignedLong": 0x80, "float": 0x72, "char": 0x73,
}  # fmt: skip
#: Numbers that such a description calls "int" unless it says otherwise.
INT: Final = range(-(1 << 31), 1 << 31)


class Sized:
    """A value with a type of its own in AMQP. `code`: that type's constructor."""

    __slots__ = ()
    code: ClassVar[int]


#: Classes that say a type, by the class of their values and the type: made once.
_KINDS: Final[dict[tuple[type[Any], int], Any]] = {}


def sized(value: Any, code: int) -> Any:
    """Return a value that says its type."""
    base = type(value)
    kind = _KINDS.get((base, code))
    if kind is None:
        made = type(f"Sized{base.__name__.title()}", (base, Sized), {"code": code})
        kind = _KINDS.setdefault((base, code), made)
    return kind.combine(value.date(), value.timetz()) if isinstance(value, datetime) else kind(value)


def types_of(properties: Mapping[str, object]) -> dict[str, int | str]:
    """Return the types of properties by name, as codes."""
    return {name: value.code if isinstance(value, Sized) else PLAIN for name, value in properties.items()}


def code_of(value: object, written: str) -> int | None:
    """Return the type of a rule's parameter, which its description writes so; None: Python's type says it."""
    if written:
        return CODES.get(written.partition(" ")[0])
    return CODES["int"] if type(value) is int and value in INT else None
