"""A broker and a host for one test, and assertions on the dead letters that are left."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lazaretto.broker.broker import Broker, connect, store_of
from lazaretto.errors import LazarettoError
from lazaretto.host.handler_stats import HandlerReport
from lazaretto.host.host import ServiceHost
from lazaretto.model.breaker import BreakerStatus
from lazaretto.model.clock import MICROSECONDS, Clock, ManualClock, to_micros
from lazaretto.model.entities import EntityPath, Subqueue
from lazaretto.model.failure import shown_reason
from lazaretto.model.messages import DeadLetter

#: A file system in memory, where there is one: a commit waits for no disk there.
_IN_MEMORY = Path("/dev/shm")  # noqa: S108 - only folders of random names are made in it


@contextmanager
def temporary_broker(*queues: str, clock: Clock | None = None) -> Iterator[Broker]:
    """Give a broker on a new store, which is deleted at the end of the `with` block.

    The store is a file, in memory where the machine has `/dev/shm`; other processes, sandboxes among
    them, can open it. `queues`: paths of queues to create, with default options. `clock`: a ManualClock
    to move time by hand; the machine's clock if None.
    """
    folder = str(_IN_MEMORY) if _IN_MEMORY.is_dir() else None
    with (
        tempfile.TemporaryDirectory(prefix="lazaretto-", dir=folder) as made,
        connect(Path(made) / "test.db", clock=clock) as broker,
    ):
        for path in queues:
            broker.create_queue(path)
        yield broker


#: How often it is looked whether anything is left, in seconds.
_LOOK = 0.01


class DrainTimeout(LazarettoError):
    """The host still had messages to process when the timeout expired."""

    code = "drain_timeout"


def drain(
    host: ServiceHost, *, clock: ManualClock | None = None, timeout: float = 30.0
) -> list[HandlerReport]:
    """Run a host until its queues have nothing that can be delivered now, stop it, and return its reports.

    A queue that is halted and a session that is held back count as nothing to deliver. With `clock`, the
    manual clock of the host's broker, time moves on whenever nothing else is left: retry delays, schedules
    and breaker probes come due at once. Without it, delayed and scheduled messages stay where they are.

    `timeout`: seconds of real time. Raises DrainTimeout after that, and whatever ended a slot of the host.
    """
    end = time.monotonic() + timeout
    with host:
        while host.running and host.idle() is None:
            if not _is_busy(host) and (clock is None or not _move_on(host, clock)):
                break
            if time.monotonic() > end:
                progress = ", ".join(
                    f"{report.queue} ({report.completed} completed)" for report in host.reports()
                )
                raise DrainTimeout(
                    f"expected the host to be done within {timeout:g} s, got messages left in: {progress};"
                    " look at broker.queue(path).counts, or give more time"
                )
            time.sleep(_LOOK)
    return host.reports()


def _is_busy(host: ServiceHost) -> bool:
    """Return whether a message is at work or can be delivered at the present time of the clock."""
    for report in host.reports():
        path = EntityPath.parse(report.queue)
        description = host.broker.queue(path.queue)
        if path.subqueue is not Subqueue.MAIN:
            return True
        counts = description.counts
        if counts.locked or counts.suspect:
            return True
        if counts.active:
            probe_at = _probe_at(host, path)
            if probe_at is None or probe_at <= store_of(host.broker).read(lambda tx: tx.now):
                return True
    return False


def _probe_at(host: ServiceHost, path: EntityPath) -> int | None:
    """Return when an open breaker lets its next probe through; None if it holds nothing back."""
    breaker = host.broker.breaker(path.queue)
    if breaker.status is not BreakerStatus.OPEN or breaker.probe_at is None:
        return None
    return to_micros(breaker.probe_at)


def _move_on(host: ServiceHost, clock: ManualClock) -> bool:
    """Move the clock to when the next message comes due; return whether there is one."""
    moments = [_probe_at(host, EntityPath.parse(report.queue)) for report in host.reports()]
    moments.append(store_of(host.broker).read(lambda tx: tx.next_due()))
    later = [moment for moment in moments if moment is not None and moment > clock.now()]
    if not later:
        return False
    clock.advance((min(later) - clock.now() + 1) / MICROSECONDS)
    return True


#: Dead letters that a failed assertion describes.
_SHOWN = 5


def assert_no_dead_letters(broker: Broker, path: str | None = None) -> None:
    """Raise AssertionError if a queue has dead letters; with no path, if any queue has.

    The error names the first five, each with its reason and its error.
    """
    paths = [queue.path for queue in broker.queues()] if path is None else [EntityPath.parse(path).queue]
    letters = [(each, letter) for each in paths for letter in broker.dead_letters(each, limit=_SHOWN + 1)]
    if letters:
        raise AssertionError("expected no dead letters, got\n" + _described(letters))


def assert_dead_letter(
    broker: Broker,
    path: str,
    *,
    reason: str | None = None,
    error_type: str | None = None,
    text: str | None = None,
    body: bytes | None = None,
) -> DeadLetter:
    """Return the one dead letter of a queue that is as described; raise AssertionError otherwise.

    `reason` and `error_type` are compared whole; an error type also by its last part, so that
    "JSONDecodeError" is "json.decoder.JSONDecodeError". `text` is part of the error's message.
    The letter comes with its attempts.
    """
    queue = EntityPath.parse(path).queue
    letters = list(broker.dead_letters(queue))
    matches = [
        letter
        for letter in letters
        if (reason is None or letter.reason == reason)
        and (error_type is None or error_type in _names(letter.error_type))
        and (text is None or text in (letter.error_message or ""))
        and (body is None or (letter.message is not None and letter.message.body == body))
    ]
    if len(matches) != 1:
        criteria = {"reason": reason, "error_type": error_type, "text": text, "body": body}
        asked = ", ".join(f"{name}={value!r}" for name, value in criteria.items() if value is not None)
        there = _described([(queue, letter) for letter in letters]) if letters else "  none at all"
        raise AssertionError(
            f"expected one dead letter in {queue!r} with {asked or 'anything'}, got {len(matches)};"
            f" there are\n{there}"
        )
    return broker.dead_letter(queue, matches[0].sequence_number)


def _names(error_type: str | None) -> tuple[str, ...]:
    return (error_type, error_type.rpartition(".")[2]) if error_type else ()


def _described(letters: list[tuple[str, DeadLetter]]) -> str:
    lines = [
        f"  {queue} {letter.sequence_number}: "
        + shown_reason(letter.reason, letter.error_type, letter.error_message)
        for queue, letter in letters[:_SHOWN]
    ]
    if len(letters) > _SHOWN:
        lines.append("  and more")
    return "\n".join(lines)
