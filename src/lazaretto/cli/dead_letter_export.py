"""Dead letters as lines of JSON that can be sent again, or as CSV: any number, in constant memory."""

from __future__ import annotations

import csv
import enum
import io
import logging
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import BinaryIO

from lazaretto.broker.broker import Broker, store_of
from lazaretto.cli import output
from lazaretto.cli.exits import usage
from lazaretto.engine.audited import NoteAct
from lazaretto.engine.log import acting
from lazaretto.engine.outcome.dead_letter_operations import DeadLetterFilter
from lazaretto.errors import StoreReadOnly
from lazaretto.model.messages import DeadLetter
from lazaretto.model.records.letters import LETTER_COLUMNS, csv_cell, letter_cells

_log = logging.getLogger("lazaretto.audit")
#: Letters that are written together.
_TOGETHER = 100


class Format(enum.Enum):
    """How exported dead letters are written."""

    JSONL = "jsonl"
    CSV = "csv"


def export_letters(
    broker: Broker, queue: str, which: DeadLetterFilter, form: Format, file: Path | None
) -> int:
    """Write a queue's dead letters to a new file, or to standard output; return how many."""
    as_csv = form is Format.CSV
    # A bar between the lines of a terminal would tear both.
    quiet = file is None and output.on_terminal()
    with (
        nullcontext() if quiet else output.progress(f"exporting from {queue}", "%") as advance,
        _opened(file) as out,
    ):
        _note(broker, queue, form)
        letters = broker.dead_letters(
            queue,
            which,
            messages=not as_csv,
            on_progress=advance and (lambda part: advance(round(part * 100), 100)),
        )
        written = 0
        for text, letters_in in _csv(letters, escaped=quiet) if as_csv else _jsonl(letters):
            out.write(text.encode())
            written += letters_in
        out.flush()
    return written


def _note(broker: Broker, queue: str, form: Format) -> None:
    """Note the export in the audit log, unless the store is read-only."""
    detail = {"format": form.value, "messages": form is Format.JSONL}
    try:
        store_of(broker).run(NoteAct(acting(None), "export", broker.queue(queue).path, detail))
    except StoreReadOnly:
        _log.warning("the export is not in the audit log: the store is read-only")


def _jsonl(letters: Iterable[DeadLetter]) -> Iterator[tuple[str, int]]:
    # A letter without its message was settled while its page was read.
    for letter in letters:
        if letter.message is not None:
            yield output.json_text(letter.message) + "\n", 1


def _csv(letters: Iterable[DeadLetter], *, escaped: bool) -> Iterator[tuple[str, int]]:
    made = io.StringIO()
    # A carriage return within a cell is quoted only if lines end in one.
    writer = csv.writer(made, lineterminator="\r\n")
    writer.writerow(LETTER_COLUMNS)
    count = 0
    for letter in letters:
        cells = letter_cells(letter)
        writer.writerow([csv_cell(output.cell(cell)) for cell in cells] if escaped else cells)
        count += 1
        if count == _TOGETHER:
            yield made.getvalue(), count
            made.seek(0)
            made.truncate()
            count = 0
    yield made.getvalue(), count


@contextmanager
def _opened(file: Path | None) -> Iterator[BinaryIO]:
    """Open a new file for its owner alone, or standard output; what fails leaves no half file."""
    if file is None:
        sys.stdout.flush()
        yield sys.stdout.buffer
        return
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise usage(f"--output {file} exists; give the name of a new file") from None
    except OSError as error:
        raise usage(f"--output {file} cannot be written: {error.strerror}") from None
    try:
        with os.fdopen(descriptor, "wb") as out:
            yield out
    except BaseException:
        file.unlink(missing_ok=True)
        raise
