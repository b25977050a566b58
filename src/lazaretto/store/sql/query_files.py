"""Reads .sql files: named queries, and numbered migrations."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from types import MappingProxyType
from typing import NamedTuple, TypeVar

E = TypeVar("E", bound=enum.Enum)

_QUERY = re.compile(r"^-- (name|part): (\w+)\n((?:-- [^\n]*\n)+)(.*?)(?=\n-- |\Z)", re.MULTILINE | re.DOTALL)
_SAID = {word: re.compile(rf"^-- {word}: (.*)$", re.MULTILINE) for word in ("locks", "claims", "confined")}
_MIGRATION = re.compile(r"(\d{4})_(?:(before|after)_)?\w+\.sql\Z")
_WORD = re.compile(r"\[(\w+)(?: ([^\[\]]+))?\]")
_CONSTANT = re.compile(r"\{([A-Z_]+)\}")
_ROWS = re.compile(r"\[rows\]\s+(\((?:[^()]|\([^()]*\))*\))")
#: A parameter; two colons are a cast.
PARAMETER = re.compile(r"(?<![:\w]):([a-z_]\w*)")


class First(enum.Enum):
    """Which locks are written into messages before a query runs."""

    ALL = "written first"
    #: Those of the messages that it names.
    OWN = "its own written first"
    NONE = "not looked at"


class Confined(enum.Enum):
    """What a query writes besides the rows of queues that it names."""

    WITHIN = "in queues that are held"
    SETTINGS = "changes how a queue is set"


class Migration(NamedTuple):
    """A step from one version of a schema to the next: `NNNN_name.sql`.

    `NNNN_before_name.sql` is done before the new version is deployed: workers of the one before go on with
    it. `NNNN_after_name.sql` (`after`) takes away what only they still needed.
    """

    number: int
    sql: str
    after: bool = False


class Query(NamedTuple):
    """A named query, its parameters written `:name`.

    `locks_first`: which locks on ranges are written into the messages before it; `claims_first`: whether
    those of claims are written into the messages that it names; None if it does not say. `confined`: what it
    writes where it names no queue. `tables`: of the store, as far as they were qualified; `written`: those of
    them that it writes.
    """

    sql: str
    locks_first: First | None = None
    claims_first: First | None = None
    confined: Confined | None = None
    tables: frozenset[str] = frozenset()
    written: frozenset[str] = frozenset()


class Words(NamedTuple):
    """Names in a text: `terms` as `[term one, two]`, `constants` as `{CONSTANT}`, `parts` as `[part]`."""

    terms: Mapping[str, str]
    constants: Mapping[str, int]
    parts: Mapping[str, str] = MappingProxyType({})


_NO_WORDS = Words({}, {})


#: The queries that both databases have.
COMMON = tuple(
    ("lazaretto.store.sql", f"{subject}.sql")
    for subject in ("queries", "dialogs", "causes", "repairs", "listings", "overview", "rates", "access")
)


def load_queries(*files: tuple[str, str], words: Words = _NO_WORDS) -> dict[str, Query]:
    """Return each query of some files, given by their package and name, by the query's name.

    A query is a line `-- name: NAME`, at least one comment line that says what it is for, and SQL. What
    several have in common begins with `-- part: NAME`, in any of the files; they say `[NAME]` for it.
    """
    queries: dict[str, dict[str, tuple[str, str]]] = {"name": {}, "part": {}}
    for package, file in files:
        text = resources.files(package).joinpath(file).read_text("utf-8")
        for word, name, header, sql in _QUERY.findall(text):
            if name in queries[word]:
                kind = "query" if word == "name" else "part"
                raise ValueError(f"{kind} {name!r} stands twice in {', '.join(file for _, file in files)}")
            queries[word][name] = header, sql.strip()
    parts = {**words.parts, **{name: sql for name, (_, sql) in queries["part"].items()}}

    def expand(sql: str) -> str:
        return _WORD.sub(say, sql)

    def say(word: re.Match[str]) -> str:
        name, text_name = word[1], word[2]
        if text_name is None and name in parts:
            return expand(parts[name])
        if name in words.terms:
            return words.terms[name].format(*(text_name or "").split(", "))
        if text_name is not None:
            raise ValueError(f"a query says {word[0]}, and no such word is known")
        # A place for rows, or what PostgreSQL writes so.
        return word[0]

    def constant(named: re.Match[str]) -> str:
        return str(words.constants[named[1]])

    return {
        name: Query(
            _CONSTANT.sub(constant, expand(sql)),
            _said("locks", tuple(First), name, header),
            _said("claims", (First.ALL, First.NONE), name, header),
            _said("confined", tuple(Confined), name, header),
        )
        for name, (header, sql) in queries["name"].items()
    }


def _said(what: str, choices: Sequence[E], name: str, header: str) -> E | None:
    """Return which of its choices a query's header says of something."""
    said = _SAID[what].search(header)
    if said is None:
        return None
    for one in choices:
        if one.value == said[1]:
            return one
    expected = ", ".join(one.value for one in choices)
    raise ValueError(f"query {name!r} says {said[1]!r} of {what}; expected one of {expected}")


def load_migrations(package: str) -> list[Migration]:
    """Return all migrations in a package, in order."""
    migrations = []
    for file in resources.files(package).iterdir():
        match = _MIGRATION.match(file.name)
        if match:
            migrations.append(Migration(int(match[1]), file.read_text("utf-8"), match[2] == "after"))
    return sorted(migrations)


def with_rows(sql: str, count: int) -> str:
    """Return a query with its `[rows]` template repeated `count` times, each with parameters of its own."""

    def repeat(match: re.Match[str]) -> str:
        template = PARAMETER.sub(":\\1_\0", match[1])
        return ", ".join(template.replace("\0", str(row)) for row in range(count))

    return _ROWS.sub(repeat, sql)
