"""Reads and writes one file that declares message types, contracts, services and priorities."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lazaretto.errors import InvalidOption, LazarettoError
from lazaretto.model.checks import refuse_unknown, shown
from lazaretto.model.dialog_contracts import KINDS, MAKERS, Definition, Definitions

#: The tables of the file, and the kind that each holds.
_TABLES = {
    "message_types": "message_type",
    "contracts": "contract",
    "services": "service",
    "priorities": "priority",
}


def read_declaration(path: str | Path) -> list[Definition]:
    """Return the definitions of a TOML file. Raises InvalidOption, which says where what is wrong.

    Tables [message_types."name"], [contracts."name"], [services."name"] and [priorities."name"], with the
    same options as the functions have; a contract's entries are its messages and who sends each.
    """
    return _read(path)[1]


def read_tables(path: str | Path) -> dict[str, Any]:
    """Return the tables of a TOML file that are definitions. Raises InvalidOption as `read_declaration`."""
    return _read(path)[0]


def _read(path: str | Path) -> tuple[dict[str, Any], list[Definition]]:
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidOption(f"{path} cannot be read: {error}") from None
    try:
        tables = tomllib.loads(text)
        return tables, parse_declaration(tables)
    except tomllib.TOMLDecodeError as error:
        raise InvalidOption(f"{path} is not TOML: {error}") from None
    except InvalidOption as error:
        raise InvalidOption(f"{path}: {error}") from None


def parse_declaration(tables: Mapping[str, Any]) -> list[Definition]:
    """Return the definitions in tables as a file has them."""
    refuse_unknown(tables, _TABLES, "a declaration")
    definitions: list[Definition] = []
    for table, kind in _TABLES.items():
        entries = tables.get(table, {})
        if not isinstance(entries, Mapping):
            raise InvalidOption(f"expected [{table}] to hold tables by name, got {shown(entries)}")
        for name, options in entries.items():
            if not isinstance(options, Mapping):
                raise InvalidOption(f"expected [{table}.{name!r}] to be a table, got {shown(options)}")
            definitions.append(_definition(kind, name, dict(options)))
    return definitions


def _definition(kind: str, name: str, options: dict[str, Any]) -> Definition:
    what = f"{kind.replace('_', ' ')} {name!r}"
    if kind == "contract":
        options = {"messages": options}
    else:
        refuse_unknown(options, set(KINDS[kind].__struct_fields__) - {"name"}, what)
    try:
        return MAKERS[kind](name, **options)
    except TypeError:
        needed = [n for n in ("queue", "level") if n in KINDS[kind].__struct_fields__ and n not in options]
        raise InvalidOption(f"{what} needs {', '.join(needed)}") from None
    except LazarettoError as error:
        raise InvalidOption(f"{what}: {error}") from None


def as_declaration(definitions: Definitions) -> dict[str, Any]:
    """Return definitions as the tables of a file, what is not set left out."""
    return {
        table: {one.name: _options(kind, one) for one in definitions.all(kind)}
        for table, kind in _TABLES.items()
    }


def _options(kind: str, definition: Any) -> dict[str, Any]:
    if kind == "contract":
        return {name: by.value for name, by in definition.messages.items()}
    defaults = dict(
        zip(definition.__struct_fields__[::-1], definition.__struct_defaults__[::-1], strict=False)
    )
    options = {}
    for name in definition.__struct_fields__:
        value = getattr(definition, name)
        if name != "name" and (name not in defaults or value != defaults[name]):
            options[name] = getattr(value, "value", value)
    return options
