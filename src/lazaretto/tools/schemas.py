"""JSON Schemas: compiled to a check that fetches nothing and takes time in proportion to what it checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lazaretto.errors import InvalidOption
from lazaretto.model.failure import shorten
from lazaretto.model.installing import install

#: Characters of what is said of a value.
_LONGEST = 400


def compile_schema(schema: Mapping[str, Any]) -> Callable[[Any], str | None]:
    """Return a function that says what is wrong with a value by a schema, None if nothing is.

    Without a `$schema` it is one of draft 7. References within the schema are followed, others refused. A
    `pattern` is matched by an engine of linear time, which has no look-around and no back-references.
    Raises InvalidOption.
    """
    try:
        import jsonschema_rs
    except ImportError:
        raise InvalidOption(f"a JSON schema needs jsonschema-rs: {install('schema')}") from None
    own = dict(schema)
    make = jsonschema_rs.validator_for if "$schema" in own else jsonschema_rs.Draft7Validator
    try:
        validator = make(
            own, offline=True, validate_formats=True, pattern_options=jsonschema_rs.RegexOptions()
        )
    except Exception as error:
        raise InvalidOption(f"the schema is not a valid JSON Schema: {_told(error)}") from None

    def problem(value: Any) -> str | None:
        try:
            validator.validate(value)
        except ValueError as error:
            return _told(error)
        return None

    return problem


def _told(error: Exception) -> str:
    """Return what is wrong and where, without the schema and the body, in a length one can read."""
    place = "/".join(map(str, getattr(error, "instance_path", ())))
    return shorten(f"{place}{': ' if place else ''}{getattr(error, 'message', error)}", _LONGEST)
