"""Whether filters and edits name fields that are redacted: then they could tell what these are. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from lazaretto.errors import FilterSyntaxError, InvalidOption
from lazaretto.model.edits.edit import Edit, EditKind
from lazaretto.model.edits.json_text import read_json
from lazaretto.model.edits.patches import read_merge, read_operations
from lazaretto.model.edits.redact import Redaction
from lazaretto.model.filters.rules import sql
from lazaretto.model.filters.view import COMPUTED, Property
from lazaretto.model.headers import DEAD_LETTER_DESCRIPTION, DEAD_LETTER_REASON

#: The properties with why a message was dead-lettered.
_TOLD: Final = (DEAD_LETTER_REASON.lower(), DEAD_LETTER_DESCRIPTION.lower())


def filter_names(redaction: Redaction, text: str, *, sizes: bool = False) -> bool:
    """Return whether a filter names a field that is redacted. Of a wrong one that is not known: True.

    `sizes`: it is not the message as it may be seen that is judged, so `sys.size` tells how long a field is.
    """
    if not redaction.takes_values:
        return False
    try:
        return _any(redaction, sql().compile_with_properties(text)[1], sizes)
    except FilterSyntaxError:
        return True


def edit_names(redaction: Redaction, text: str) -> bool:
    """Return whether an edit names a field that is redacted. A function, or a wrong edit, may do anything."""
    if not redaction.takes_values:
        return False
    try:
        edit = Edit.parse(text)
    except (InvalidOption, FilterSyntaxError):
        return True
    match edit.kind:
        case EditKind.FUNCTION:
            return True
        case EditKind.ACTION:
            return _any(redaction, sql().action_properties(text), True)
    paths = [()] if edit.kind is EditKind.BODY else _patched(edit)
    return any(redaction.names("body", path) for path in paths)


def may_change_session(edit: Edit) -> bool:
    """Return whether an edit may put a message into another session. Patches are of the body alone."""
    if edit.kind is EditKind.ACTION:
        return any(
            one.scope == "sys" and "session" in one.name.lower() for one in sql().action_properties(edit.text)
        )
    return edit.kind is EditKind.FUNCTION


def _any(redaction: Redaction, properties: Sequence[Property], sizes: bool) -> bool:
    if (
        sizes
        and redaction.changes_size
        and any((one.scope, one.name) == ("sys", "size") for one in properties)
    ):
        return True
    if COMPUTED in properties and redaction.names("user", ()):
        return True
    if any(one.scope == "user" and one.name.lower() in _TOLD for one in properties):
        # They can have values of the message.
        return True
    return any(
        redaction.names(one.scope, one.path if one.scope == "body" else (one.name,))
        for one in properties
        if one.scope in ("body", "user")
    )


def _patched(edit: Edit) -> Iterator[Sequence[Any]]:
    """Yield the paths that a patch names; places in arrays are none of their steps."""
    text = read_json(edit.text.encode())
    if edit.kind is EditKind.MERGE_PATCH:
        # Objects on the way are only gone through.
        yield from (step.path for step in read_merge(text) if step.value != "{")
        return
    for operation in read_operations(text):
        if operation.name == "test" and operation.value[0] in "{[":
            # It compares all that is in there.
            yield ()
        two = operation.name in ("move", "copy")
        for path in (operation.path, operation.source) if two else (operation.path,):
            yield path
            yield [step for step in path if step != "-" and not step.isdigit()]
