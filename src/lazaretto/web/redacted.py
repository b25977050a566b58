"""The broker's answers, without what somebody may not read. Pure.

Which letters a search means, as they may be seen, and what searches and edits may name, follow from the same
rules.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from lazaretto.dialogs.description import ConversationDescription
from lazaretto.engine.entities.overview import QueueGlance, Status
from lazaretto.engine.entities.topics import SubscriptionDescription
from lazaretto.engine.log import AuditEntry, Event
from lazaretto.engine.outcome.causes import Cause
from lazaretto.engine.outcome.dead_letter_operations import DeadLetterFilter, meets
from lazaretto.engine.outcome.dead_letter_pages import DeadLetterPreview
from lazaretto.model.descriptions import (
    BreakerDescription,
    Culprit,
    HeldSession,
    QueueDescription,
    SessionDescription,
)
from lazaretto.model.edits.difference import differences
from lazaretto.model.edits.edit import Changed, Edit, EditKind
from lazaretto.model.edits.named_fields import edit_names, filter_names
from lazaretto.model.edits.redact import MASK, Found, Redaction
from lazaretto.model.filters.rules import sql
from lazaretto.model.message_history import MessageHistory
from lazaretto.model.messages import DeadLetter, PeekedMessage
from lazaretto.model.redaction import OWN_REASONS
from lazaretto.model.repairs import RepairStatus
from lazaretto.model.shape import covers, words_in
from lazaretto.model.trouble import Trouble
from lazaretto.web.refusals import NotPermitted

#: The rules for somebody, by the path of an entity: none where redacted fields may be read.
RulesOf = Callable[[str], Redaction]

#: The troubles whose text has that of an error.
_WITH_ERRORS: Final = ("breaker_open", "halted", "dead_letters_halted")
#: The fields of details that tell of an error.
_TEXTS: Final = ("error", "why", "text", "description")
#: Bytes of a preview.
_PREVIEW: Final = 200

_replace = dataclasses.replace


# -- messages --------------------------------------------------------------------------------------


def shown_letter(letter: DeadLetter, redaction: Redaction) -> DeadLetter:
    """Return a dead letter for somebody."""
    if not redaction:
        return letter
    finding, message = _message_of(letter.message, redaction)
    return _replace(
        letter,
        message=message,
        reason=redaction.reason(letter.reason, finding),
        description=redaction.text(letter.description, finding),
        error_message=redaction.text(letter.error_message, finding),
        attempts=redaction.attempts(letter.attempts, finding),
    )


def _message_of(
    message: PeekedMessage | None, redaction: Redaction
) -> tuple[Found | None, PeekedMessage | None]:
    """Return a message for somebody, and what was taken out; None: it is not at hand."""
    if message is None:
        return None, None
    finding = Found()
    shown_message = redaction.message(message, finding)
    # What was in it before it was edited may be in texts about that.
    finding.all = finding.all or message.edit_of is not None
    return finding, shown_message


def found_in(letter: DeadLetter, redaction: Redaction) -> Found | None:
    """Return what is taken out of the message of a letter; None: it is not at hand."""
    return _message_of(letter.message, redaction)[0]


def shown_history(history: MessageHistory, rules_of: RulesOf) -> MessageHistory:
    """Return what is known of a message, for somebody: each generation by the rules of its queue."""
    generations = []
    for one in history.generations:
        redaction = rules_of(one.queue)
        finding, _ = _message_of(history.message, redaction)
        generations.append(
            _replace(
                one,
                reason=redaction.reason(one.reason, finding),
                description=redaction.text(one.description, finding),
                error_message=redaction.text(one.error_message, finding),
                attempts=redaction.attempts(one.attempts, finding),
            )
        )
    _, message = _message_of(history.message, rules_of(history.queue))
    return _replace(history, generations=tuple(generations), message=message)


def shown_preview(
    preview: DeadLetterPreview, letter: DeadLetter | None, redaction: Redaction
) -> DeadLetterPreview:
    """Return a preview for somebody. `letter`: that of the preview with its message, if it still waits."""
    shown_one = None if letter is None else shown_letter(letter, redaction)
    body = b"" if shown_one is None or shown_one.message is None else shown_one.message.body
    return _replace(
        preview,
        reason=redaction.reason(preview.reason, None) if shown_one is None else shown_one.reason,
        description=redaction.text(preview.description, None) if shown_one is None else shown_one.description,
        error_message=redaction.text(preview.error_message, None)
        if shown_one is None
        else shown_one.error_message,
        size=len(body),
        preview=body[:_PREVIEW],
    )


def matches_text(letter: DeadLetter, text: str) -> bool:
    """Return whether a letter that somebody may see has a text where letters are searched for it."""
    body = "" if letter.message is None else letter.message.body.decode("utf-8", "replace")
    return any(text in (part or "") for part in (body, letter.description, letter.error_message))


def shown_cause(cause: Cause, letter: DeadLetter | None, redaction: Redaction, *, bodies: bool) -> Cause:
    """Return a cause for somebody.

    `letter`: its example. What the example does not say can name what other letters hold. `bodies`: whether
    bodies may be read, of which differences tell.
    """
    finding = None if letter is None else found_in(letter, redaction)
    error = None if letter is None else redaction.text(letter.error_message or letter.description, finding)

    def text(shape: str | None, finding: Found | None) -> str | None:
        template = redaction.text(shape, finding)
        return (
            template
            if template is None or not redaction.takes_values
            else words_in(template, f"{error} {MASK}")
        )

    only = finding if len(cause.fingerprints) < 2 else None
    same_reason = all(one.reason == cause.reason for one in cause.fingerprints)
    same_text = all(covers(cause.template or "", one.shape or "") for one in cause.fingerprints)
    prints = (
        _replace(one, shape=text(one.shape, only), reason=redaction.reason(one.reason, only))
        for one in cause.fingerprints
    )
    return _replace(
        cause,
        reason=redaction.reason(cause.reason, finding if same_reason else None),
        template=text(cause.template, finding if same_text else None),
        fingerprints=tuple(prints),
        difference=cause.difference if bodies else None,
    )


# -- repairs, filters and edits --------------------------------------------------------------------


def shown_filter(parts: Mapping[str, Any], redaction: Redaction) -> dict[str, Any]:
    """Return the parts of a dead letter filter for somebody: what was searched for may be a secret."""
    fields = dict(parts)
    for name in ("text", "reason"):
        if redaction.takes_values and fields.get(name) is not None:
            fields[name] = redaction.reason(fields[name], None) if name == "reason" else MASK
    if fields.get("where") is not None and filter_names(redaction, str(fields["where"]), sizes=True):
        fields["where"] = MASK
    return fields


def shown_edit(edit: str | None, redaction: Redaction) -> str | None:
    """Return an edit for somebody, or its line in a log, of which what is cut off is not known."""
    if edit is None or not redaction.takes_values:
        return edit
    kind, _, text = edit.partition(": ")
    shown_text = text if kind in {one.value for one in EditKind} else edit
    return MASK if shown_text.endswith("…") or edit_names(redaction, shown_text) else edit


def shown_repair(repair: RepairStatus, redaction: Redaction) -> RepairStatus:
    """Return a repair for somebody."""
    return _replace(
        repair, which=shown_filter(repair.which, redaction), edit=shown_edit(repair.edit, redaction),
        # It can be the error that opened a breaker.
        why=redaction.text(repair.why, None),
    )  # fmt: skip


def shown_detail(detail: Mapping[str, Any], redaction: Redaction) -> dict[str, Any]:
    """Return the detail of an event, of an action, or of an answer, for somebody."""
    if not redaction:
        return dict(detail)
    fields: dict[str, Any] = {}
    for name, value in detail.items():
        if name in _TEXTS and isinstance(value, str):
            fields[name] = redaction.text(value, None)
        elif name == "reason" and isinstance(value, str):
            fields[name] = redaction.reason(value, None)
        elif name in ("filter", "which") and isinstance(value, dict):
            fields[name] = shown_filter(value, redaction)
        elif name == "edit" and isinstance(value, str):
            fields[name] = shown_edit(value, redaction)
        else:
            fields[name] = _shown_part(value, redaction)
    return fields


def _shown_part(value: Any, redaction: Redaction) -> Any:
    if isinstance(value, dict):
        return shown_detail(value, redaction)
    return [_shown_part(one, redaction) for one in value] if isinstance(value, list) else value


# -- how things stand ------------------------------------------------------------------------------


def shown(value: Any, rules_of: RulesOf, path: str = "") -> Any:
    """Return what tells how something stands, for somebody. `path`: the entity, where it does not say."""
    match value:
        case list() | tuple() if not hasattr(value, "_asdict"):
            return type(value)(shown(one, rules_of, path) for one in value)
        case SubscriptionDescription():
            return _replace(value, queue=shown(value.queue, rules_of))
        case QueueDescription():
            return _replace(
                value,
                halted_by=shown(value.halted_by, rules_of, value.path),
                dead_letter_halted_by=shown(value.dead_letter_halted_by, rules_of, value.path),
            )
        case Culprit() | HeldSession() | BreakerDescription():
            changes = {"error": rules_of(path).text(value.error, None)}
            if not isinstance(value, BreakerDescription):
                changes["reason"] = rules_of(path).reason(value.reason, None)
            return _replace(value, **changes)
        case SessionDescription():
            return _replace(value, held=shown(value.held, rules_of, value.queue))
        case Status():
            return _replace(value, queues=shown(value.queues, rules_of))
        case QueueGlance():
            return _replace(value, troubles=shown(value.troubles, rules_of, value.path))
        case Trouble() if value.kind in _WITH_ERRORS and rules_of(path).text("…", None) != "…":
            return _replace(value, text=f"{path} is {value.kind.replace('_', ' ')}; {value.command}")
        case ConversationDescription():
            return _shown_conversation(value, rules_of)
        case Event():
            return msgspec.structs.replace(value, detail=shown_detail(value.detail, rules_of(value.queue)))
        case AuditEntry() if value.queue:
            return msgspec.structs.replace(value, detail=shown_detail(value.detail, rules_of(value.queue)))
        case RepairStatus():
            return shown_repair(value, rules_of(value.queue))
    return value


def _shown_conversation(one: ConversationDescription, rules_of: RulesOf) -> ConversationDescription:
    redaction = rules_of(one.queue)
    error = None if one.error is None else (one.error[0], redaction.text(one.error[1], None) or "")
    waits = one.waits if one.held is None else redaction.text(one.waits, None) or ""
    return _replace(one, error=error, waits=waits, held=shown(one.held, rules_of, one.queue))


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
