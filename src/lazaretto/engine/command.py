"""Commands: verbs of operators, each declared once, from which a program, a route and a form follow."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import types
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, ClassVar, Final, Generic, NamedTuple, ParamSpec, Self, TypeVar

import msgspec
from msgspec import Meta

from lazaretto.errors import IdempotencyConflict, InvalidOption
from lazaretto.model.checks import shown
from lazaretto.model.entities import EntityPath, dead_letter_path
from lazaretto.model.grants import Permission
from lazaretto.model.keys import LAST_SEQUENCE
from lazaretto.model.paths import subscription_path
from lazaretto.store.records.access import CommandRecord
from lazaretto.store.records.messages import Again
from lazaretto.store.sql.operation import Operation
from lazaretto.store.sql.store import Store
from lazaretto.store.sql.transaction import Transaction

T = TypeVar("T")

Options = dict[str, Any]
#: The most dead letters of one command, which is one commit. A repair takes any number.
MOST_LETTERS: Final = 500
Numbers = Annotated[tuple[int, ...], Meta(min_length=1, max_length=MOST_LETTERS)]

Detail = Mapping[str, Any]
#: Which letters an action was about, as runs of their numbers; none: it may be any.
Runs = tuple[tuple[int, int], ...]

_HINT: Final = re.compile(r"`(\w+)`: (.*?)(?=\.(?:\s|$)|; null|$)", re.DOTALL)

#: The commands by what the audit log calls them.
BY_ACTION: Final[dict[str, list[type[Command]]]] = defaultdict(list)
#: What a session's id was called.
SESSION: Final = types.MappingProxyType({"session": "session_id"})

P = ParamSpec("P")


class Touch(NamedTuple):
    """The object of an action: a place, from the whole to its part; and which messages, all for none."""

    place: tuple[object, ...]
    runs: Runs = ()

    def meets(self, other: Touch) -> bool:
        """Return whether either changed what the other did, or a whole that it is a part of."""
        parts = min(len(self.place), len(other.place))
        if self.place[:parts] != other.place[:parts]:
            return False
        if not self.runs or not other.runs:
            return True
        return any(a <= d and c <= b for a, b in self.runs for c, d in other.runs)


@dataclasses.dataclass(slots=True)
class Act(Operation[T]):
    """An operation that is one function of a transaction."""

    act: Callable[[Transaction], T]

    def run(self, tx: Transaction) -> T:
        return self.act(tx)


class _Naming(msgspec.StructMeta):
    """Makes commands of fields by their former names, too."""

    former: Mapping[str, str] = types.MappingProxyType({})

    def __call__(self, *arguments: Any, **fields: Any) -> Any:
        return super().__call__(*arguments, **self.renamed(fields))

    def renamed(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Return fields by their present names."""
        if self.former.keys().isdisjoint(fields):
            return fields
        return with_present_names(self.__name__, self.former, fields, depth=3)


class Command(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, metaclass=_Naming):
    """A change, as a value: what is asked for, in the types of JSON, and how it is made.

    It is one commit, with its entry in the audit log. A subclass with an `action` is one that people can ask
    for: it says what it needs, and checks its fields and makes the change in `run`.
    """

    permission: ClassVar[Permission]
    #: Those that people can ask for, by their names.
    by_name: ClassVar[dict[str, type[Command]]] = {}
    #: Its name over HTTP, such as "create_queue".
    command_name: ClassVar[str]
    #: What the audit log calls it, which several commands can share; "": it has entries of several names.
    action: ClassVar[str] = ""
    #: Whether the answer has a secret, which is not kept, so that it cannot be run under a key.
    shown_once: ClassVar[bool] = False
    #: Whether it looks through many letters before it changes something.
    searches: ClassVar[bool] = False
    #: Whether nothing takes it back.
    final: ClassVar[bool] = False
    #: The class of the options that a field `options` or `changes` has parts of.
    options_class: ClassVar[type[Any] | None] = None
    #: Fields by their former names, which are taken still.
    former: ClassVar[Mapping[str, str]] = types.MappingProxyType({})
    #: What its entry in the audit log changed, so far as something takes such a change back: the place of a
    #: Touch, in which `{path}` and names of the entry's detail stand for these; (): nothing.
    touched: ClassVar[tuple[str, ...]] = ()
    #: Whose method it is in Python: of a broker, of a repair by its `name`, of `broker.dialogs`.
    holder: ClassVar[str] = "broker"
    #: The part of its name that such a method does not repeat.
    noun: ClassVar[str] = ""
    #: The name of that method.
    method: ClassVar[str]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        parts = (f"_{c.lower()}" if c.isupper() else c for c in cls.__name__)
        cls.command_name = "".join(parts).removeprefix("_")
        if "method" not in vars(cls):
            cls.method = cls.command_name.removesuffix(cls.noun)
        if "action" in vars(cls):
            BY_ACTION[cls.action].append(cls)
            Command.by_name[cls.command_name] = cls

    def operation(self, store: Store, actor: str) -> Operation[Any]:
        """Return the operation by which somebody makes the change."""
        raise NotImplementedError

    def needs(self) -> list[tuple[Permission, str | None]]:
        """Return what is needed: permissions, each on an entity, or on all for None."""
        return [(self.permission, getattr(self, "path", None) or getattr(self, "topic", None))]

    def entity(self) -> EntityPath | None:
        """Return the queue, topic or subscription that it changes; None: it changes something else."""
        path = getattr(self, "path", None)
        if path is not None:
            return EntityPath.parse(path)
        topic, subscription = getattr(self, "topic", None), getattr(self, "subscription", None)
        return None if topic is None or subscription is None else subscription_path(topic, subscription)

    def sends_to(self) -> str | None:
        """Return where it sends messages, to which its actor needs no right but to operate; None: nowhere."""
        return None

    def destination(self, tx: Transaction) -> str | None:
        """Return where it sends messages as things stand; None: nowhere."""
        return self.sends_to()

    @classmethod
    def touches(cls, path: str, detail: Detail) -> list[Touch]:
        """Return the objects of its entry in the audit log: what is `touched`."""
        # What an older version has not noted is empty.
        values = defaultdict(str, {**detail, "path": path})
        place = tuple(part.format_map(values) for part in cls.touched)
        return [Touch(place)] if place else []

    @classmethod
    def opposite(cls, path: str, detail: Detail) -> Command | None:
        """Return what takes its entry in the audit log back; None: nothing, or the entry tells too little."""
        return None

    def told(self, answer: Any) -> Any:
        """Return the answer to whoever ran it, from that of the operation as JSON."""
        return answer


C = TypeVar("C", bound=Command)


def read_command(kind: type[C], content: bytes) -> C:
    """Return a command of the JSON of its fields. Raises msgspec.DecodeError, InvalidOption."""
    if not kind.former:
        return msgspec.json.decode(content, type=kind)
    fields = msgspec.json.decode(content)
    return msgspec.convert(kind.renamed(fields) if isinstance(fields, dict) else fields, kind)


def hints_of(kind: type[msgspec.Struct]) -> dict[str, str]:
    """Return what the docstring of a class says of its fields, without the points at the ends."""
    return {name: " ".join(text.split()) for name, text in _HINT.findall(inspect.getdoc(kind) or "")}


class CommandOf(Command, Generic[T], frozen=True, kw_only=True):
    """A command whose answer has a type."""

    def run(self, tx: Transaction, actor: str) -> T:
        """Check the fields, make the change, and return its answer."""
        raise NotImplementedError

    def by(self, actor: str) -> Operation[T]:
        """Return the operation by which somebody makes the change."""
        return Act(functools.partial(self.run, actor=actor))

    def operation(self, store: Store, actor: str) -> Operation[T]:
        """Return that operation, once what takes long was read for it, outside of its commit."""
        return self.by(actor)


class Administering(CommandOf[T], frozen=True, kw_only=True):
    """A change for administrators."""

    permission = Permission.ADMINISTER


class OfPath(CommandOf[T], frozen=True, kw_only=True):
    """A change of a queue or subscription, or of its dead letters."""

    permission = Permission.OPERATE
    path: str

    @property
    def place(self) -> EntityPath:
        """The dead-letter subqueue of its path."""
        return dead_letter_path(EntityPath.parse(self.path))


def tuple_of(name: str, values: Iterable[T]) -> tuple[T, ...]:
    """Return values as a tuple, else raise InvalidOption."""
    if not isinstance(values, Iterable) or isinstance(values, str | bytes):
        raise InvalidOption(f"expected {name} to be a list, got {shown(values)}")
    return tuple(values)


def tuples_of(name: str, values: Mapping[int, Iterable[T]]) -> dict[int, tuple[T, ...]]:
    """Return lists by number, each as a tuple, else raise InvalidOption."""
    if not isinstance(values, Mapping):
        raise InvalidOption(f"expected {name} to be lists by number, got {shown(values)}")
    return {number: tuple_of(name, some) for number, some in values.items()}


def check_numbers(numbers: object) -> list[int]:
    """Return sequence numbers as a list, else raise InvalidOption."""
    values = numbers if isinstance(numbers, Iterable) else [numbers]
    checked: list[int] = []
    for number in values:
        if isinstance(number, bool) or not isinstance(number, int) or not 0 < number <= LAST_SEQUENCE:
            beyond = isinstance(number, int) and number > LAST_SEQUENCE
            upto = f" to {LAST_SEQUENCE}" if beyond else ""
            raise InvalidOption(f"expected sequence numbers, integers from 1{upto}, got {shown(number)}")
        checked.append(number)
    return checked


def runs_of(detail: Detail) -> Runs:
    """Return which letters an entry of the audit log is about; () if it does not tell."""
    runs = (str(run).partition("-") for run in detail.get("sequence_numbers") or ())
    return tuple((int(first), int(last or first)) for first, _, last in runs)


class OfLetters(OfPath[T], frozen=True, kw_only=True):
    """A change of up to 500 dead letters, by their numbers. A repair takes any number."""

    most: ClassVar[int] = MOST_LETTERS
    sequence_numbers: Numbers

    @classmethod
    def touches(cls, path: str, detail: Detail) -> list[Touch]:
        return [Touch((path, "letters"), runs_of(detail))]

    @classmethod
    def of_entry(cls, path: str, detail: Detail) -> Self | None:
        """Return this command for the letters of an entry of the audit log, if they are few and known."""
        runs, count = runs_of(detail), detail.get("count", 0)
        if not runs or count > cls.most:
            return None
        numbers = tuple(number for first, last in runs for number in range(first, last + 1))
        return cls(path=path, sequence_numbers=numbers)

    @property
    def numbers(self) -> list[int]:
        """Its numbers, each once. Raises InvalidOption."""
        numbers = check_numbers(self.sequence_numbers)
        if not 1 <= len(numbers) <= self.most:
            raise InvalidOption(
                f"expected 1 to {self.most} sequence numbers, got {len(numbers)}; plan a repair"
            )
        return list(dict.fromkeys(numbers))


def with_present_names(
    owner: str, present: Mapping[str, str], values: Mapping[str, Any], *, depth: int = 2
) -> dict[str, Any]:
    """Return values by their present names. Raises InvalidOption for one that has both.

    `present`: the present name by the former one. `depth`: how far up the caller is that is warned.
    """
    renamed = dict(values)
    for former in present.keys() & values.keys():
        name = present[former]
        if name in values:
            raise InvalidOption(f"expected {owner} to be given {name}, got {former} too, its former name")
        warnings.warn(f"{owner}: {former} is called {name} now", DeprecationWarning, stacklevel=depth + 1)
        renamed[name] = renamed.pop(former)
    return renamed


def formerly(**present: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Take parameters of a function under former names, too: `former="present"`."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(function)
        def call(*arguments: P.args, **named: P.kwargs) -> T:
            if not present.keys().isdisjoint(named):
                values: Any = with_present_names(function.__name__, present, named, depth=2)
                named = values
            return function(*arguments, **named)

        return call

    return decorate


#: How long a key is known, in microseconds.
KEPT = 86_400 * 1_000_000


def first_answer(tx: Transaction, key: str, actor: str, digest: bytes) -> bytes | None:
    """Return the first answer to a command under a key; None: it was not run. Raises IdempotencyConflict."""
    answer = tx.commands.find(key)
    if answer is None or answer.time <= tx.now - KEPT:
        return None
    if (answer.actor, answer.digest) != (actor, digest):
        raise IdempotencyConflict(
            f"expected the command that {key!r} was first used for, got another one; "
            "give each command a key of its own"
        )
    return answer.answer


@dataclasses.dataclass(slots=True)
class Once(Operation[bytes]):
    """Run an operation unless its key is known; return its answer, or the first one, as JSON.

    `digest`: of the command, which must be the same each time. Raises IdempotencyConflict.
    """

    key: str
    actor: str
    digest: bytes
    operation: Operation[Any]
    encode: Callable[[Any], bytes]

    def run(self, tx: Transaction) -> bytes | Again:
        first = first_answer(tx, self.key, self.actor, self.digest)
        if first is not None:
            return first
        answer = self.operation.run(tx)
        if isinstance(answer, Again):
            return answer
        encoded = self.encode(answer)
        tx.commands.keep(CommandRecord(self.key, str(self.actor), self.digest, encoded, tx.now))
        return encoded
