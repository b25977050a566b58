"""Dead letters as rows of CSV, with cells that no spreadsheet takes for a formula."""

from __future__ import annotations

import re
from typing import Any

from lazaretto.model.messages import DeadLetter
from lazaretto.model.records.plain import plain

#: Columns of dead letters as CSV, whose names are those of JSON.
LETTER_COLUMNS = (
    "sequence_number", "message_id", "reason", "description", "error_type", "error_message",
    "dead_lettered", "enqueued", "generation", "fingerprint",
)  # fmt: skip
#: With what a cell begins that a spreadsheet could take for a formula: in any width, also behind what is not
#: seen.
_FORMULA = re.compile(
    r"[\t\r\n]|[\s\x00-\x1f\x7f-\xa0\u200b-\u200f\u2060\ufeff]*[=+\-@\u2212＝＋－＠﹦﹢﹣﹫]"
)


def csv_cell(value: Any) -> Any:
    """Return a cell that no spreadsheet takes for a formula."""
    return f"'{value}" if isinstance(value, str) and _FORMULA.match(value) else value


def letter_cells(letter: DeadLetter) -> list[Any]:
    """Return a dead letter as a row under LETTER_COLUMNS."""
    return [csv_cell(plain(getattr(letter, name))) for name in LETTER_COLUMNS]
