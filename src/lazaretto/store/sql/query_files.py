"""Reads .sql files: named queries, and numbered migrations."""

from __future__ import annotations

import re
from importlib import resources
from typing import NamedTuple

_QUERY = re.compile(r"^-- (name|part): (\w+)\n((?:-- [^\n]*\n)+)(.*?)(?=\n-- |\Z)", re.MULTILINE | re.DOTALL)
_MIGRATION = re.compile(r"(\d{4})_(?:(before|after)_)?\w+\.sql\Z")
_PART = re.compile(r"\[(\w+)\]")
_ROWS = re.compile(r"\[rows\]\s+(\([^)]*\))")


class Migration(NamedTuple):
    """A step from one version of a schema to the next: `NNNN_name.sql`.

    `NNNN_before_name.sql` is done before the new version is deployed: workers of the one before go on with
    it. `NNNN_after_name.sql` (`after`) takes away what only they still needed.
    """

    number: int
    sql: str
    after: bool = False


def load_queries(package: str, file: str = "queries.sql") -> dict[str, str]:
    """Return the text of each query in `file` of `package` by its name.

    A query is a line `-- name: NAME`, at least one comment line that says what it is for, and SQL. What
    several have in common begins with `-- part: NAME`, and stands above them; they say `[NAME]` for it.
    """
    text = resources.files(package).joinpath(file).read_text("utf-8")
    found: dict[str, dict[str, str]] = {"query": {}, "part": {}}
    for word, name, _purpose, sql in _QUERY.findall(text):
        kind = "query" if word == "name" else "part"
        if name in found[kind]:
            raise ValueError(f"{kind} {name!r} stands twice in {file}")
        found[kind][name] = _PART.sub(lambda part: found["part"].get(part[1], part[0]), sql.strip())
    return found["query"]


def load_migrations(package: str) -> list[Migration]:
    """Return all migrations in a package, in order."""
    found = []
    for file in resources.files(package).iterdir():
        match = _MIGRATION.match(file.name)
        if match:
            found.append(Migration(int(match[1]), file.read_text("utf-8"), match[2] == "after"))
    return sorted(found)


def with_rows(sql: str, count: int) -> str:
    """Return a query with its `[rows]` template repeated `count` times."""
    return _ROWS.sub(lambda m: ", ".join([m.group(1)] * count), sql)
