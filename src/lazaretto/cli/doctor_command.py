"""`lazaretto doctor`: whether all is well with a store, its machine and its queues."""

from __future__ import annotations

import platform
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from lazaretto.broker import Broker
from lazaretto.cli import output
from lazaretto.cli.call import CallOptions
from lazaretto.cli.command import Group
from lazaretto.cli.exits import Exit
from lazaretto.model.breaker import BreakerStatus
from lazaretto.model.descriptions import BreakerDescription, Culprit, QueueDescription
from lazaretto.model.entities import QueueStatus

#: Free space on the store's disk below which it is called scarce, in bytes.
_SCARCE = 268_435_456

_WAL_RESET_BUG = {
    True: "with the WAL-reset bug: safe here, but let no other program write to the store's file",
    False: "without the WAL-reset bug",
}


commands = Group()


@commands.command("doctor")
def doctor(call: CallOptions) -> None:
    """Check the store, its machine and its queues.

    Problems are damage found by reading the whole file, little space on its disk, a journal mode that
    may lose messages, queues that are halted or disabled, sessions that are held back, and open
    breakers; the exit code is then 1. Dead letters are only noted.
    """
    with call.broker() as broker:
        report = examine(broker)
    call.print(report, lambda: _print(report))
    if not report["ok"]:
        raise typer.Exit(Exit.FAILED)


def examine(broker: Broker) -> dict[str, Any]:
    """Return all that is known of a store's health; "ok" says whether nothing is wrong."""
    import lazaretto
    from lazaretto.spark.requirements import examine as examine_spark

    facts = dict(broker.facts())
    damage = broker.check()
    problems = [f"the store is damaged: {text}" for text in damage]
    free = None
    if "path" in facts:
        free = shutil.disk_usage(Path(facts["path"]).absolute().parent).free
        if facts["journal_mode"] != "wal":
            problems.append(f"expected the store's journal mode to be wal, got {facts['journal_mode']}")
        if free < _SCARCE:
            problems.append(f"only {output.shown_bytes(free)} are free on the store's disk")
    elif facts["synchronous_commit"] == "off":
        problems.append("synchronous_commit is off on the server: a power cut may lose acknowledged changes")
    notices: list[str] = []
    for queue in _entities(broker):
        problems += _problems(queue, broker.breaker(queue.path))
        notices += _notices(queue)
    problems += [
        f"topic {topic.path} is {topic.status.value}; "
        f"switch it on: lazaretto queue status {topic.path} active"
        for topic in broker.topics()
        if topic.status is not QueueStatus.ACTIVE
    ]
    spark, odd = examine_spark()
    notices += odd
    return {
        "ok": not problems,
        "lazaretto": lazaretto.__version__,
        "python": platform.python_version(),
        "executable": sys.executable,
        "platform": platform.platform(),
        "sqlite": sqlite3.sqlite_version,
        "store": facts,
        "integrity": damage or ["ok"],
        "disk_free_bytes": free,
        "spark": spark,
        "problems": problems,
        "notices": notices,
    }


def _entities(broker: Broker) -> Iterator[QueueDescription]:
    """Yield whatever holds messages: queues, and the subscriptions of topics."""
    yield from broker.queues()
    for topic in broker.topics():
        for subscription in broker.subscriptions(topic.path):
            yield subscription.queue


def _problems(queue: QueueDescription, breaker: BreakerDescription) -> list[str]:
    found = []
    if queue.held_sessions:
        found.append(
            f"queue {queue.path} has {output.plural(queue.held_sessions, 'session')} held back by a poison "
            f"message; see lazaretto session list {queue.path} --held, then lazaretto session resume"
        )
    if breaker.status in (BreakerStatus.OPEN, BreakerStatus.HELD_OPEN):
        held = breaker.status is BreakerStatus.HELD_OPEN
        why = "kept open by an operator" if held else f"open, for an outage: {breaker.error}"
        found.append(
            f"the breaker of {queue.path} is {why}; hosts are handed nothing: "
            f"lazaretto breaker {'resume' if held else 'show'} {queue.path}"
        )
    if queue.status in (QueueStatus.SEND_DISABLED, QueueStatus.RECEIVE_DISABLED):
        found.append(
            f"queue {queue.path} is {queue.status.value.replace('_', '-')}; "
            f"switch it on: lazaretto queue status {queue.path} active"
        )
    if queue.halted_by is not None:
        culprit = queue.halted_by
        found.append(
            f"queue {queue.path} is halted by message {culprit.sequence_number} ({_why(culprit)}); "
            f"give a verdict: lazaretto queue resume {queue.path} --verdict retry|move|drop|reject"
        )
    if queue.dead_letter_halted_by is not None:
        culprit = queue.dead_letter_halted_by
        found.append(
            f"the dead letters of {queue.path} are halted by number {culprit.sequence_number} "
            f"({_why(culprit)}); give a verdict: "
            f"lazaretto queue resume '{queue.path};poison' --verdict retry|drop|reject"
        )
    if queue.status.value == "disabled":
        found.append(
            f"queue {queue.path} is disabled; see `lazaretto events --queue {queue.path}`, "
            f"then lazaretto queue resume {queue.path}"
        )
    return found


def _why(culprit: Culprit) -> str:
    return culprit.reason if culprit.error is None else f"{culprit.reason}: {culprit.error}"


def _notices(queue: QueueDescription) -> list[str]:
    dead = queue.counts.dead_letter + queue.counts.transfer_dead_letter
    if not dead:
        return []
    return [
        f"queue {queue.path} has {output.plural(dead, 'dead letter')}; "
        f"see `lazaretto dead-letter groups {queue.path}`"
    ]


def _file_facts(report: dict[str, Any]) -> list[tuple[str, object]]:
    facts = report["store"]
    size, unused = (output.shown_bytes(facts[name]) for name in ("file_bytes", "free_bytes"))
    return [
        ("sqlite", f"{report['sqlite']}, {_WAL_RESET_BUG[facts['sqlite_has_wal_reset_bug']]}"),
        ("store", facts["path"]),
        ("store id", facts["store_id"]),
        ("schema", facts["schema"]),
        ("journal mode", facts["journal_mode"]),
        ("file", f"{size}, {unused} of it unused"),
        ("write-ahead log", output.shown_bytes(facts["log_bytes"])),
        ("free on disk", output.shown_bytes(report["disk_free_bytes"])),
    ]


def _server_facts(facts: dict[str, Any]) -> list[tuple[str, object]]:
    return [
        ("postgresql", facts["postgresql"]),
        ("store", f"schema {facts['schema_name']}"),
        ("store id", facts["store_id"]),
        ("schema", facts["schema"]),
        ("synchronous commit", facts["synchronous_commit"]),
        ("tables", output.shown_bytes(facts["bytes"])),
    ]


def _print(report: dict[str, Any]) -> None:
    facts = report["store"]
    output.fields(
        [
            ("lazaretto", report["lazaretto"]),
            ("python", f"{report['python']} ({report['executable']})"),
            ("platform", report["platform"]),
            *(_file_facts(report) if "path" in facts else _server_facts(facts)),
            ("integrity", "; ".join(report["integrity"])),
            ("spark", ", ".join(f"{name} {version}" for name, version in report["spark"].items())),
        ]
    )
    for kind in ("notices", "problems"):
        for text in report[kind]:
            output.line(f"{kind[:-1]}: {text}")
    output.line(
        "all is well" if report["ok"] else f"wrong: {output.plural(len(report['problems']), 'problem')}"
    )
