"""Dead letters as rows of CSV, with cells that no spreadsheet takes for a formula."""

from __future__ import annotations

from typing import Any

from lazaretto.model.messages import DeadLetter
from lazaretto.records.plain import plain

#: Columns of dead letters as CSV, whose names are those of JSON.
LETTER_COLUMNS = (
    "sequence_number", "message_id", "reason", "description", "error_type", "error_message",
    "dead_lettered", "enqueued", "generation", "fingerprint",
)  # fmt: skip
#: With what a cell begins that a spreadsheet would take for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def csv_cell(value: Any) -> Any:
    """Return a cell that no spreadsheet takes for a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def letter_cells(letter: DeadLetter) -> list[Any]:
    """Return a dead letter as a row under LETTER_COLUMNS."""
    return [csv_cell(plain(getattr(letter, name))) for name in LETTER_COLUMNS]
