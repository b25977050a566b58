"""What the edit of a repair makes of letters, before any commit is begun."""

from __future__ import annotations

from collections.abc import Sequence

from lazaretto.edits.difference import differences
from lazaretto.edits.edit import Changed, Edit, EditKind, Refused
from lazaretto.engine.messages.prepare import check_size, prepare
from lazaretto.engine.repairs.course import Course
from lazaretto.engine.repairs.letters import Edited
from lazaretto.errors import InvalidOption, LazarettoError
from lazaretto.model.entities import Subqueue
from lazaretto.model.keys import dead_key, main_key, sequence_of, subqueue_at
from lazaretto.model.repair_phases import Phase
from lazaretto.model.repairs import EditedLetter, Plan
from lazaretto.store.contract.records import QueueRecord
from lazaretto.store.contract.repair_contract import RepairRecord
from lazaretto.store.contract.transaction_contract import Transaction


def parse_edit(text: str) -> Edit:
    """Return an edit that a repair can apply. Raises InvalidOption, FilterSyntaxError."""
    edit = Edit.parse(text)
    if edit.kind is EditKind.FUNCTION:
        raise InvalidOption(
            "expected a repair's edit to be an action, a JSON merge patch or a JSON Patch, got a function"
        )
    return edit


def edit_of(plan: Plan) -> Edit | None:
    """Return the edit of a planned repair."""
    return None if plan.edit is None else parse_edit(plan.edit)


def next_edits(tx: Transaction, record: RepairRecord, edit: Edit, number: int) -> dict[int, Edited]:
    """Return what an edit makes of the letters that are sent next."""
    course = Course.of(tx, record)
    queue = course.queue
    if queue is None:
        return {}
    end = course.plan.canary if course.phase is Phase.CANARY else record.letters
    keys = course.members(record.position, min(record.position + number, end))
    return edited_letters(tx, queue, keys, subqueue_at(record.subqueue), edit)[0]


def edited_letters(
    tx: Transaction, queue: QueueRecord, keys: Sequence[int], subqueue: Subqueue, edit: Edit, shown: int = 0
) -> tuple[dict[int, Edited], list[EditedLetter]]:
    """Return what an edit makes of letters, by key, and how the first that it changes differ.

    A letter that is gone is left as it is: it is skipped when its turn comes.
    """
    found: dict[int, Edited] = dict.fromkeys(keys)
    examples: list[EditedLetter] = []
    for message in tx.peek_keys([dead_key(key, subqueue) for key in keys]):
        key = main_key(message.key)
        outcome = edit.apply(message)
        if isinstance(outcome, Refused):
            found[key] = f"the edit refuses it: {outcome.why}"
        elif isinstance(outcome, Changed):
            found[key] = _prepared(queue, outcome)
            if len(examples) < shown:
                lines = differences(message, outcome.message)
                examples.append(EditedLetter(sequence_of(key), tuple(lines)))
    return found, examples


def _prepared(queue: QueueRecord, outcome: Changed) -> Edited:
    try:
        new = prepare(outcome.message)
        check_size(new, queue.options.max_message_size)
    except LazarettoError as error:
        return f"the edited message cannot be sent: {error}"
    return new
