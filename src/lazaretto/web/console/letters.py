"""One dead letter: what it is, what was tried, and what becomes of it; and its edit."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

from lazaretto.engine.messages.prepare import prepare
from lazaretto.engine.outcome.causes import Cause
from lazaretto.errors import InvalidOption, LazarettoError
from lazaretto.model.edits.difference import differences
from lazaretto.model.edits.edit import Changed, Refused, whole_body
from lazaretto.model.edits.redact import MASK
from lazaretto.model.grants import Permission
from lazaretto.model.message_history import MessageHistory, Moment
from lazaretto.model.messages import DeadLetter
from lazaretto.web.access import refuse_functions
from lazaretto.web.console.bodies import WAYS, body_of, editable, json_fault, show_body
from lazaretto.web.console.render import address
from lazaretto.web.console.visit import Page, Visit, moved_to
from lazaretto.web.page_options import TriedHandlers, TriedLetter
from lazaretto.web.viewed import check_edit, hides

#: Moments of a message's life that a page shows, the last ones.
_MOMENTS = 100
#: Lines of a difference.
_LINES = 60
#: Characters of an edit that is typed.
_TYPED = 4_000
#: How many equal attempts in a row are told one by one.
_FEW = 3


async def show(visit: Visit) -> Page:
    """Show a dead letter with its history, even after its resolution."""
    queue, number = visit.queue(), visit.number()
    visit.require(Permission.READ_BODIES, queue)
    await visit.hold(queue, number)
    letter = await visit.broker.dead_letter(queue, number)
    history = await visit.broker.message_history(queue, number)
    way = visit.text("as") or "pretty"
    if way not in WAYS:
        raise InvalidOption(f"expected as to be one of {', '.join(WAYS)}")
    body = None if letter.message is None else show_body(letter.message.body, way)
    values = {
        "queue": queue, "letter": letter, "body": body, "history": history, "way": way,
        "handlers": _handlers(visit, queue), "cause": await _cause_of(visit, queue, letter),
        "newest": next((one for one in reversed(letter.attempts) if one.stack), None),
        **_life(visit, history),
    }  # fmt: skip
    return Page("letter.html", "failures", f"Dead letter {number:,} of {queue}", values)


async def _cause_of(visit: Visit, queue: str, letter: DeadLetter) -> Cause | None:
    """Return the cause that a letter belongs to."""
    causes = (await visit.broker.triage(queue, over=True)).causes if letter.fingerprint else ()
    return next((c for c in causes if any(a.fingerprint == letter.fingerprint for a in c.fingerprints)), None)


async def show_message(visit: Visit) -> Page:
    """Show any message: as it stands in its queue, and its life."""
    queue, number = visit.queue(), visit.number()
    visit.require(Permission.READ_BODIES, queue)
    await visit.hold(queue, number)
    history = await visit.broker.message_history(queue, number)
    if history.asked.state == "dead_lettered" and not history.asked.subqueue.startswith("$T"):
        return moved_to(address(visit.base, f"/dead-letters/{number}", queue=queue))
    message = history.message
    values = {
        "queue": queue, "number": number, "history": history, "message": message,
        "body": None if message is None else show_body(message.body), **_life(visit, history),
    }  # fmt: skip
    return Page("message.html", "queues", f"Message {number:,} of {queue}", values)


def _life(visit: Visit, history: MessageHistory) -> dict[str, Any]:
    """Return what a page tells of a message's life: its last moments, those that are alike folded."""
    moments = history.moments()
    folded = folded_moments(moments[-_MOMENTS:], _FEW if visit.text("all") is None else _MOMENTS)
    return {"moments": folded, "hidden": max(0, len(moments) - _MOMENTS)}


def folded_moments(moments: Sequence[Moment], few: int) -> list[tuple[Moment | None, int]]:
    """Return moments, each with 0; of more than `few` equal attempts in a row only the first and the last.

    Between them stands None, with how many are left out.
    """
    rows: list[tuple[Moment | None, int]] = []
    for _, group in itertools.groupby(moments, _kind_of):
        alike = list(group)
        if len(alike) > few and alike[0].attempt is not None:
            rows += [(alike[0], 0), (None, len(alike) - 2), (alike[-1], 0)]
        else:
            rows += [(one, 0) for one in alike]
    return rows


def _kind_of(moment: Moment) -> tuple[object, ...]:
    """Return what attempts have in common that are told as one."""
    attempt = moment.attempt
    error = None if attempt is None else (attempt.error_type, attempt.error_message)
    return moment.what, moment.sequence_number, moment.queue, error


async def edit(visit: Visit) -> Page:
    """Show what an edit would change of a dead letter, plan a repair of it, or try it."""
    return await _edit(visit, visit.queue(), visit.number(), visit.text("edit"))


async def edit_body(visit: Visit) -> Page:
    """Show what another body would change of a dead letter, as a form has it, and plan a repair with it."""
    fields = {name: values[0] for name, values in visit.form.items()}
    queue, numeral = fields.get("queue", ""), fields.get("number", "")
    if not (numeral.isascii() and numeral.isdigit() and len(numeral) < 14):
        raise InvalidOption("expected the number of a letter")
    visit.require(Permission.READ_BODIES, queue)
    number = int(numeral)
    await visit.hold(queue, number)
    letter = await visit.broker.dead_letter(queue, number)
    before = b"" if letter.message is None else letter.message.body
    body = body_of(before, fields)
    lost = json_fault(body) if json_fault(before) is None else None
    return await _edit(visit, queue, number, whole_body(body), whole=editable(body), fault=lost)


async def try_letter(visit: Visit) -> Page:
    """Run a handler that the server was started with on a dead letter, as an edit would leave it.

    It runs in a sandbox, and nothing is settled or sent; but it is code that runs, so the audit log says so.
    """
    fields = {name: values[0] for name, values in visit.form.items()}
    queue, numeral, name = fields.get("queue", ""), fields.get("number", ""), fields.get("handler", "")
    visit.require(Permission.READ_BODIES, queue)
    visit.require(Permission.OPERATE, queue)
    handlers: TriedHandlers | None = visit.request.app.state.handlers
    wellformed = numeral.isascii() and numeral.isdigit() and len(numeral) < 14
    if handlers is None or not wellformed or name not in handlers.names(queue):
        raise InvalidOption("expected a handler that the server was started with, and the number of a letter")
    number, text = int(numeral), fields.get("edit") or None
    change = None
    if text is not None:
        change = refuse_functions(text)
        await check_edit(visit.broker, queue, text)
    await visit.hold(queue, number)
    await visit.broker.dead_letter(queue, number)
    await visit.visits.note_try(queue, number, name, change, visit.who.actor)
    tried = await handlers.try_letter(queue, number, name, change)
    if await hides(visit.broker, queue):
        tried = _masked(tried)
    return await _edit(visit, queue, number, text, tried=tried, tried_on=name)


def _masked(tried: TriedLetter) -> TriedLetter:
    """Return what a handler did without its words: it can make any of them of what is in a message."""
    return dataclasses.replace(
        tried,
        error_type=tried.error_type and MASK,
        error_message=tried.error_message and MASK,
        refused=tried.refused and MASK,
        sends={MASK: sum(tried.sends.values())} if tried.sends else {},
    )


async def _edit(visit: Visit, queue: str, number: int, text: str | None, **tried: Any) -> Page:
    """Return the page of an edit. `tried`: more of its values."""
    visit.require(Permission.READ_BODIES, queue)
    await visit.hold(queue, number)
    letter = await visit.broker.dead_letter(queue, number)
    lines, wrong = list[str](), None
    if text is not None and letter.message is not None:
        try:
            edit = refuse_functions(text)
            await check_edit(visit.broker, queue, text)
            edited = edit.apply(letter.message)
            if isinstance(edited, Refused):
                wrong = f"the edit refuses it: {edited.why}"
            elif isinstance(edited, Changed):
                prepare(edited.message)
                lines = differences(letter.message, edited.message, _LINES)
        except LazarettoError as error:
            wrong = str(error)
    body, whole = None, None
    if letter.message is not None:
        body = show_body(letter.message.body)
        # What is hidden would be lost.
        whole = None if await hides(visit.broker, queue) else editable(letter.message.body)
    values = {
        "queue": queue, "letter": letter, "body": body, "edit": text, "lines": lines, "wrong": wrong,
        "handlers": _handlers(visit, queue), "tried": None, "tried_on": "", "whole": whole, "fault": None,
        "typed": text if text is not None and len(text) <= _TYPED and "whole" not in tried else "", **tried,
    }  # fmt: skip
    return Page("edit.html", "failures", f"Edit {number:,} of {queue}", values)


def _handlers(visit: Visit, queue: str) -> Sequence[str]:
    """Return the names of handlers that letters of a queue can be tried on."""
    handlers: TriedHandlers | None = visit.request.app.state.handlers
    return [] if handlers is None else handlers.names(queue)
