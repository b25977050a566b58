"""Repairs as people read them: how one stands, and what it would do."""

from __future__ import annotations

from lazaretto.broker.broker import Broker
from lazaretto.cli import output
from lazaretto.errors import EntityNotFound
from lazaretto.model.repair_phases import Phase
from lazaretto.model.repairs import RepairPreview, RepairStatus

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


def print_preview(found: RepairPreview) -> None:
    """Print what would become of the letters."""
    of = "" if found.looked_at == found.letters else f" (of {found.looked_at} looked at)"
    output.line(f"what would happen now{of}")
    edits = found.changed + found.unchanged and (found.changed or found.examples)
    output.fields(
        [
            ("stops at once", found.stops),
            ("sent to", found.to),
            ("bytes", output.shown_bytes(found.bytes)),
            ("sessions", found.sessions or None),
            ("return to their places", found.held_places or None),
            ("have a recently sent ID", found.duplicates or None),
            ("changed", found.changed if edits else None),
            ("left as they are", found.unchanged if edits else None),
            *((f"skipped, {why}", number_) for why, number_ in found.skipped.items()),
        ],
        "  ",
    )
    for example in found.examples:
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
            ("frozen", output.shown_time(status.frozen_at)),
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
