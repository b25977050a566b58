"""Options: each is declared once, with its default, its check and its text."""

from __future__ import annotations

import dataclasses
import enum
import functools
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

from lazaretto.errors import InvalidOption
from lazaretto.model import checks
from lazaretto.model.checks import FOREVER, GivenDuration, refuse_unknown, shown


class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]


T = TypeVar("T")
D = TypeVar("D", bound=_Dataclass)
P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
F = TypeVar("F")
Kept = TypeVar("Kept", covariant=True)
Given = TypeVar("Given", contravariant=True)

#: The section of a docstring that has a line for each option.
_SECTION = "Options:"
_LINE = re.compile(r"(\w+): (.*)")
_KEY = "option"
_DURATIONS = ((86_400, "d", "day"), (3600, "h", "hour"), (60, "m", "minute"), (1, "s", "second"))
_SIZES = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))

if TYPE_CHECKING:

    class Converted(Generic[Kept, Given]):
        """The type of an option that is kept as one type and may be given as another.

        Type checkers take a dataclass's field of this type as a parameter of the second type and an
        attribute of the first.
        """

        @overload
        def __get__(self, instance: None, owner: object) -> Converted[Kept, Given]: ...
        @overload
        def __get__(self, instance: object, owner: object) -> Kept: ...
        def __get__(self, instance: object, owner: object) -> Any: ...
        def __set__(self, instance: object, value: Given) -> None: ...

else:

    class Converted:
        """The type of an option that is kept as one type and may be given as another: the first."""

        def __class_getitem__(cls, types: tuple[Any, Any]) -> Any:
            return types[0]


Duration = Converted[float, GivenDuration]
OptionalDuration = Converted[float | None, GivenDuration | None]


class Kind(enum.Enum):
    """What a person types for an option."""

    DURATION = "duration"
    INTEGER = "integer"
    SIZE = "size"
    SHARE = "share"
    FLAG = "flag"
    CHOICE = "choice"
    TEXT = "text"
    OBJECT = "object"


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """What an option takes. `convert` returns the value to keep, or raises InvalidOption."""

    kind: Kind
    convert: Callable[[str, Any], Any]
    #: The same for people.
    accepts: str
    choices: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    #: The greatest number.
    high: float | None = None
    #: Whether None is a value.
    optional: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Option:
    """One option of a class. `fixed`: it cannot change later. `page`: where the documentation says more.

    `per_message`: it may be asked for each message that comes or goes, so a queue that has it is not plain.
    """

    default: Any
    check: Check
    fixed: bool = False
    per_message: bool = True
    page: str | None = None
    text: str = ""


def duration(low: float = 0.0, high: float = FOREVER) -> Check:
    """Take seconds or a timedelta, keep seconds."""
    accepts = _range(low, high, FOREVER, format_duration)
    return Check(
        Kind.DURATION, lambda name, value: checks.seconds(name, value, low, high), accepts, high=high
    )


def integer(low: int, high: int, unlimited: int = 1 << 31) -> Check:
    """Take a whole number."""
    accepts = _range(low, high, unlimited - 1, lambda number: f"{number:,}")
    return Check(Kind.INTEGER, lambda name, value: checks.whole(name, value, low, high), accepts, high=high)


def size(low: int, high: int) -> Check:
    """Take a number of bytes."""
    accepts = _range(low, high, 1 << 50, format_size)
    return Check(Kind.SIZE, lambda name, value: checks.whole(name, value, low, high), accepts, high=high)


def fraction(low: float = 0.0) -> Check:
    """Take a part of one."""
    return Check(Kind.SHARE, lambda name, value: checks.seconds(name, value, low, 1.0), f"{low:g} to 1")


def flag() -> Check:
    """Take True or False."""
    return Check(Kind.FLAG, checks.flag, "`True` or `False`")


def choice(choices: Mapping[str, Any]) -> Check:
    """Take one of some values, or its name."""
    accepts = ", ".join(f"`{name}`" for name in choices)
    return Check(
        Kind.CHOICE, lambda name, value: checks.member(name, value, choices), accepts, choices=choices
    )


def words(convert: Callable[[str, Any], Any], accepts: str) -> Check:
    """Take text that `convert` understands."""
    return Check(Kind.TEXT, convert, accepts)


def special(convert: Callable[[str, Any], Any], accepts: str) -> Check:
    """Take what only a program can give."""
    return Check(Kind.OBJECT, convert, accepts)


def instance(cls: type[Any], *, or_none: bool = False) -> Check:
    """Take an object of a class, or None too."""
    expected = f"{cls.__name__} or None" if or_none else cls.__name__

    def convert(name: str, value: object) -> object:
        if not isinstance(value, cls) and not (or_none and value is None):
            raise InvalidOption(f"expected {name} to be a {expected}, got {shown(value)}")
        return value

    accepts = f"`{cls.__name__}`; `None`" if or_none else f"`{cls.__name__}`"
    return Check(Kind.OBJECT, convert, accepts, optional=or_none)


def optional(check: Check) -> Check:
    """Take None too."""

    def convert(name: str, value: Any) -> Any:
        return None if value is None else check.convert(name, value)

    return dataclasses.replace(check, convert=convert, accepts=f"{check.accepts}; `None`", optional=True)


def option(
    default: Any, check: Check, *, fixed: bool = False, per_message: bool = True, page: str | None = None
) -> Any:
    """Declare a dataclass's field as an option; its text stands in the docstring of the class."""
    declared = Option(default, check, fixed, per_message, page)
    return dataclasses.field(default=default, metadata={_KEY: declared})


def required(check: Check) -> Mapping[str, Option]:
    """Return the metadata of a field that is an option without a default."""
    return {_KEY: Option(dataclasses.MISSING, check)}


def same_option(cls: type[Any], name: str) -> Any:
    """Declare a field as the same option that another class has."""
    declared = options_of(cls)[name]
    return dataclasses.field(default=declared.default, metadata={_KEY: declared})


_option_sets: dict[type[Any], dict[str, Option]] = {}


def options_of(cls: type[Any]) -> dict[str, Option]:
    """Return a class's options by name, each with its text."""
    return _option_sets[cls]


def option_set(cls: type[D]) -> type[D]:
    """Make a dataclass check its options and refuse unknown names with a suggestion."""
    create: Callable[..., None] = cls.__init__
    fields = cls.__dataclass_fields__
    texts = _texts(cls.__doc__ or "")
    options: dict[str, Option] = {
        name: dataclasses.replace(field.metadata[_KEY], text=texts.get(name, field.metadata[_KEY].text))
        for name, field in fields.items()
        if _KEY in field.metadata
    }
    _option_sets[cls] = options
    converters = {name: one.check.convert for name, one in options.items()}

    @functools.wraps(create)
    def checked(self: D, *args: Any, **values: Any) -> None:
        refuse_unknown(values, fields, cls.__name__)
        for name, value in values.items():
            if name in converters:
                values[name] = converters[name](name, value)
        create(self, *args, **values)

    cls.__init__ = checked  # type: ignore[assignment]
    return cls


def takes_options_of(
    cls: Callable[P, object],
) -> Callable[[Callable[Concatenate[str, ...], R]], Callable[Concatenate[str, P], R]]:
    """Tell type checkers that a function of a path and `**options` takes those of a class."""
    return _unchanged


def initialised_with_options_of(
    cls: Callable[P, object],
) -> Callable[[Callable[Concatenate[S, str, F, ...], None]], Callable[Concatenate[S, str, F, P], None]]:
    """Do the same for an `__init__` of a path, a second argument and `**options`."""
    return _unchanged


def _unchanged(function: Any) -> Any:
    return function


def format_duration(seconds: float) -> str:
    """Return a duration in its largest whole unit: "5 minutes"."""
    for length, _, name in _DURATIONS:
        if seconds >= length and seconds % length == 0:
            number = round(seconds / length)
            return f"{number:,} {name}{'' if number == 1 else 's'}"
    if seconds == 0:
        return "0 seconds"
    if seconds < 0.001:
        return f"{seconds * 1_000_000:g} µs"
    return f"{seconds * 1000:g} ms" if seconds < 1 else f"{seconds:g} seconds"


def abbreviate_duration(seconds: float) -> str:
    """Return a duration as it is typed: "5m"."""
    for length, letter, _ in _DURATIONS:
        if seconds >= length and seconds % length == 0:
            return f"{round(seconds / length)}{letter}"
    return f"{seconds:g}s"


def format_size(size: int) -> str:
    """Return a number of bytes in its largest whole unit: "256 KiB"."""
    for length, unit in _SIZES:
        if size >= length and size % length == 0:
            return f"{size // length:,} {unit}"
    return "1 byte" if size == 1 else f"{size:,} bytes"


def _range(low: Any, high: Any, unlimited: Any, format_: Callable[[Any], str]) -> str:
    if high >= unlimited:
        return f"{format_(low)} or more"
    return f"{format_(low)} to {format_(high)}"


def _texts(docstring: str) -> dict[str, str]:
    """Return the text of each option that a docstring has a line for."""
    texts: dict[str, str] = {}
    name, margin = "", 0
    for line in docstring.partition(_SECTION)[2].splitlines()[1:]:
        if not line.strip():
            break
        match = _LINE.fullmatch(line.strip())
        if match and (not texts or _indent(line) <= margin):
            name, margin = match[1], _indent(line)
            texts[name] = match[2]
        elif texts:
            texts[name] += f" {line.strip()}"
    return texts


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
