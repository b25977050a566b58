"""Dead letters and repairs as people read them, and dead letters as lines of JSON or CSV, however many."""

from __future__ import annotations

import csv
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
from lazaretto.errors import EntityNotFound, StoreReadOnly
from lazaretto.model.messages import SENT_COLUMNS, Attempt, DeadLetter, PeekedMessage
from lazaretto.model.records.messages import LETTER_COLUMNS, csv_cell, letter_cells
from lazaretto.model.repairs import Phase, RepairPreview, RepairStatus

_log = logging.getLogger("lazaretto.audit")
#: Letters that are written together.
_TOGETHER = 100

_NEXT = {
    Phase.PLANNED: ("canary", "apply"),
    Phase.PASSED: ("apply",),
    Phase.FAILED: ("undo",),
    Phase.INCONCLUSIVE: ("canary", "undo"),
    Phase.CANARY: ("show",),
    Phase.APPLYING: ("show", "pause"),
    Phase.PAUSED: ("resume", "undo"),
    Phase.STOPPED: ("undo", "resume"),
    Phase.DONE: ("show", "undo"),
    Phase.CANCELLED: ("undo",),
    Phase.UNDOING: ("show",),
    Phase.UNDONE: (),
}


def facts_of(letter: DeadLetter) -> list[tuple[str, object]]:
    """Return what is known of a dead letter, name by name, but not its attempts and body."""
    counters, message = letter.counters, letter.message
    facts: list[tuple[str, object]] = [
        ("reason", letter.reason),
        ("description", first_line(letter.description)),
        ("error type", letter.error_type),
        ("error", first_line(letter.error_message)),
        ("message id", letter.message_id),
        ("enqueued", letter.enqueued),
        ("dead-lettered", letter.dead_lettered),
        ("deliveries", counters.deliveries),
        ("failures", counters.failures),
        ("worker deaths", counters.worker_deaths),
        ("lock expiries", counters.lock_expiries),
        ("generation", letter.generation),
        ("became", letter.resolution),
        ("at", letter.resolved),
        ("as message", letter.resubmitted_as),
        ("in", letter.moved_to),
    ]
    return facts if message is None else facts + message_facts(message)


def message_facts(message: PeekedMessage) -> list[tuple[str, object]]:
    """Return what a sender has set of a message, name by name, but not its body."""
    names = ("session_id", "subject", "correlation_id", "to", "reply_to", "content_type", "partition_key")
    facts: list[tuple[str, object]] = [
        (name.replace("_", " "), getattr(message, name)) for name in (*names, "edit_of", *SENT_COLUMNS)
    ]
    return facts + [(f"property {name}", value) for name, value in message.properties.items()]


def first_line(text: str | None) -> str | None:
    """Return the first line of a text, with "…" if there are more."""
    if text is None:
        return None
    first, _, rest = text.strip().partition("\n")
    return f"{first} …" if rest else first


def print_attempt(attempt: Attempt) -> None:
    """Print an attempt, with its error and stack."""
    took = (
        "" if attempt.started is None else f" after {(attempt.ended - attempt.started).total_seconds():.3f} s"
    )
    by = f" by {attempt.worker}" if attempt.worker else ""
    output.line(f"  {attempt.number}. {output.shown_time(attempt.ended)} {attempt.outcome.value}{took}{by}")
    if attempt.error_type is not None or attempt.error_message is not None:
        print_block(f"{attempt.error_type or 'Error'}: {attempt.error_message or ''}", "     ")
    if attempt.stack:
        print_block(attempt.stack, "       ")


def print_block(text: str, indent: str = "  ") -> None:
    """Print a text of several lines, indented."""
    for row in output.safe_lines(text).rstrip("\n").split("\n"):
        output.line(f"{indent}{row}".rstrip())


def export_letters(broker: Broker, queue: str, which: DeadLetterFilter, form: str, file: Path | None) -> int:
    """Write a queue's dead letters to a new file, or to standard output; return how many."""
    as_csv = form == "csv"
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


def _note(broker: Broker, queue: str, form: str) -> None:
    """Note the export in the audit log, unless the store is read-only."""
    detail = {"format": form, "messages": form == "jsonl"}
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


def print_preview(preview: RepairPreview) -> None:
    """Print what would become of the letters."""
    of = "" if preview.looked_at == preview.letters else f" (of {preview.looked_at} looked at)"
    output.line(f"what would happen now{of}")
    edits = preview.changed + preview.unchanged and (preview.changed or preview.examples)
    output.fields(
        [
            ("stops at once", preview.stops),
            ("sent to", preview.to),
            ("bytes", output.shown_size(preview.bytes)),
            ("sessions", preview.sessions or None),
            ("return to their places", preview.held_places or None),
            ("have a recently sent ID", preview.duplicates or None),
            ("changed", preview.changed if edits else None),
            ("left as they are", preview.unchanged if edits else None),
            *((f"skipped, {why}", number_) for why, number_ in preview.skipped.items()),
        ],
        "  ",
    )
    for example in preview.examples:
        output.line(f"  message {example.sequence_number}")
        for line in example.difference:
            output.line(f"    {line}")


def causes_of(broker: Broker, status: RepairStatus) -> dict[str, int]:
    """Return the causes of fingerprints, as far as they are known."""
    if not status.fingerprints:
        return {}
    try:
        triage = broker.triage(f"{status.queue}/{status.subqueue}", over=True)
    except EntityNotFound:
        return {}
    return {alike.fingerprint: cause.number for cause in triage.causes for alike in cause.fingerprints}


def print_repair(status: RepairStatus, causes: dict[str, int]) -> None:
    counts = status.counts
    by_cause: dict[int, int] = {}
    for fingerprint, letters_ in status.fingerprints.items():
        if fingerprint in causes:
            by_cause[causes[fingerprint]] = by_cause.get(causes[fingerprint], 0) + letters_
    largest = sorted(by_cause.items(), key=lambda pair: -pair[1])
    numbers = f", numbers {status.first} to {status.last}" if status.letters else ""
    output.line(f"repair {status.name} of {status.queue}: {status.phase.value}")
    window = "no limit" if status.in_flight is None else f"{status.window} of at most {status.in_flight}"
    which = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in status.which.items())
    output.fields(
        [
            ("why", status.why),
            ("letters", f"{status.letters}{numbers}"),
            ("which", which or "all"),
            ("frozen", status.frozen_at),
            ("causes", ", ".join(f"{cause}: {letters_}" for cause, letters_ in largest)),
            ("sessions", status.sessions),
            ("to", status.to or status.queue),
            ("edit", status.edit),
            ("order", status.order),
            ("canary", status.canary or "none"),
            ("in flight", window),
            ("rate", None if status.rate is None else f"{status.rate:g} a second"),
            ("digest", status.digest),
            ("planned by", status.actor),
            ("run by", status.runner),
        ],
        "  ",
    )
    output.line("letters")
    output.fields(
        [
            ("not sent yet", counts.left),
            ("waiting", counts.waiting),
            ("processed", counts.processed),
            ("failed again", counts.failed),
            ("skipped", counts.skipped),
            ("taken back", counts.undone),
        ],
        "  ",
    )
    if status.estimate is not None:
        output.line(f"done in about {output.shown_duration(status.estimate)}")
    for verb in _NEXT[status.phase]:
        output.line(f"next: lazaretto repair {verb} {status.name}")
