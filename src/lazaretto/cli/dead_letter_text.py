"""How a dead letter is printed: its fields, its attempts, its stack."""

from __future__ import annotations

from lazaretto.cli import output
from lazaretto.model.messages import Attempt, DeadLetter, PeekedMessage


def facts_of(letter: DeadLetter) -> list[tuple[str, object]]:
    """Return what is known of a dead letter, name by name, but not its attempts and body."""
    counters, message = letter.counters, letter.message
    facts: list[tuple[str, object]] = [
        ("reason", letter.reason),
        ("description", first_line(letter.description)),
        ("error type", letter.error_type),
        ("error", first_line(letter.error_message)),
        ("message id", letter.message_id),
        ("enqueued", output.shown_time(letter.enqueued)),
        ("dead-lettered", output.shown_time(letter.dead_lettered)),
        ("deliveries", counters.deliveries),
        ("failures", counters.failures),
        ("worker deaths", counters.worker_deaths),
        ("lock expiries", counters.lock_expiries),
        ("generation", letter.generation),
        ("became", letter.resolution),
        ("at", letter.resolved and output.shown_time(letter.resolved)),
        ("as message", letter.resubmitted_as),
        ("in", letter.moved_to),
    ]
    return facts if message is None else facts + message_facts(message)


def message_facts(message: PeekedMessage) -> list[tuple[str, object]]:
    """Return what a sender has set of a message, name by name, but not its body."""
    names = ("session_id", "subject", "correlation_id", "to", "reply_to", "content_type", "partition_key")
    facts: list[tuple[str, object]] = [
        (name.replace("_", " "), getattr(message, name)) for name in (*names, "edit_of")
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
