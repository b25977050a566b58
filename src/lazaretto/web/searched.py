"""Which letters a search means, as they may be seen, and what searches and edits may name. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final

from lazaretto.engine.outcome.causes import Cause
from lazaretto.engine.outcome.dead_letter_operations import DeadLetterFilter, meets
from lazaretto.engine.outcome.dead_letter_pages import DeadLetterPreview
from lazaretto.model.edits.difference import differences
from lazaretto.model.edits.edit import Changed, Edit
from lazaretto.model.edits.named_fields import edit_names, filter_names
from lazaretto.model.edits.redact import Redaction
from lazaretto.model.filters.rules import sql
from lazaretto.model.messages import DeadLetter
from lazaretto.model.redaction import OWN_REASONS
from lazaretto.web.redacted import matches_text, shown_cause, shown_letter, shown_preview
from lazaretto.web.refusals import NotPermitted

#: Why a condition is refused.
HIDDEN_WHERE: Final = (
    "expected a condition without redacted fields, and a repair's without sys.size where the body has some: "
    "it could tell what they are"
)
#: Lines of a difference.
_LINES: Final = 20


def meant(
    letters: Sequence[DeadLetter], which: DeadLetterFilter, redaction: Redaction, workers: Mapping[int, str]
) -> list[DeadLetter]:
    """Return those letters that a search means, as they may be seen."""
    return [
        one
        for one in (shown_letter(letter, redaction) for letter in letters)
        if _is_meant(one, which, workers)
    ]


def chosen(
    previews: Sequence[DeadLetterPreview],
    letters: Mapping[int, DeadLetter],
    which: DeadLetterFilter,
    redaction: Redaction,
    workers: Mapping[int, str],
) -> list[DeadLetterPreview]:
    """Return those previews that a search means, as they may be seen."""
    searched, matches = (which.text, which.where, which.reason) != (None, None, None), []
    for one in previews:
        letter = letters.get(one.sequence_number)
        if searched and (letter is None or not _is_meant(shown_letter(letter, redaction), which, workers)):
            continue
        matches.append(shown_preview(one, letter, redaction))
    return matches


def seen_causes(
    causes: Sequence[Cause], letters: Mapping[int, DeadLetter], redaction: Redaction, bodies: bool
) -> list[Cause]:
    """Return causes as they may be seen. `letters`: their examples."""
    seen = []
    for one in causes:
        letter = None if one.example is None else letters.get(one.example)
        seen.append(shown_cause(one, letter, redaction, bodies=bodies))
    return seen


def lines_of(letter: DeadLetter, edit: Edit, redaction: Redaction) -> tuple[str, ...]:
    """Return what an edit changes in a letter. Raises LazarettoError."""
    changed = None if letter.message is None else edit.apply(letter.message)
    if letter.message is None or not isinstance(changed, Changed):
        return ()
    return tuple(differences(letter.message, redaction.made(changed.message), _LINES))


def refuse_filter(parts: Mapping[str, Any], redaction: Redaction) -> None:
    """Raise NotPermitted for a filter whose choice could tell what may not be read."""
    where, reason = parts.get("where"), parts.get("reason")
    if parts.get("text") is not None and redaction:
        raise NotPermitted("expected a filter without text: it would search what is redacted, too")
    if reason is not None and redaction.reason(str(reason), None) != reason:
        raise NotPermitted(
            "expected a filter with a reason of the system, or none: others can hold what is redacted"
        )
    if where is not None:
        sql().compile_filter(str(where))
        if filter_names(redaction, str(where), sizes=True):
            raise NotPermitted(HIDDEN_WHERE)


def refuse_edit(edit: str, redaction: Redaction) -> None:
    """Raise NotPermitted for an edit that names what may not be read, or writes a whole body."""
    Edit.parse(edit)
    if edit_names(redaction, edit):
        raise NotPermitted(
            "expected an edit that neither names redacted fields nor replaces what holds them: it could tell "
            "what they are, or lose them; change other fields with an action as SET body.name = … or a merge "
            "patch"
        )


def without_search(which: DeadLetterFilter) -> DeadLetterFilter:
    """Return a filter without what looks into messages and texts."""
    reason = which.reason if which.reason in OWN_REASONS else None
    return dataclasses.replace(which, text=None, where=None, reason=reason)


def _is_meant(letter: DeadLetter, which: DeadLetterFilter, workers: Mapping[int, str]) -> bool:
    """Return whether what may be seen of a letter is what a filter looks for."""
    if which.reason is not None and letter.reason != which.reason:
        return False
    if which.text is not None and not matches_text(letter, which.text):
        return False
    worker = workers.get(letter.sequence_number)
    return which.where is None or (letter.message is not None and meets(which.where, letter.message, worker))
