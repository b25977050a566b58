"""`lazaretto doctor`: whether all is well with a store, its machine and its queues.

`lazaretto store`: checks a store itself, brings it up to date, copies it to another database.
"""

from __future__ import annotations

import platform
import sqlite3
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from lazaretto.broker.broker import Broker
from lazaretto.cli import output
from lazaretto.cli.call import CallOptions, ListingOptions
from lazaretto.cli.command import Group, argument, option
from lazaretto.cli.exits import Exit
from lazaretto.cli.output import Columns
from lazaretto.cli.secret_files import exposure
from lazaretto.cli.served_doors import Risks, doors_of, risks_of
from lazaretto.model.entities import QueueStatus
from lazaretto.model.grants import GROUP, ROLES, Grant, Role
from lazaretto.store.addresses import copy_store, migrate_store

#: What lies beside a store's file has its messages, too.
_BESIDE = ("", "-wal", "-shm", "-wake")
#: Free space on the store's disk below which it is called scarce, in bytes.
_SCARCE = 268_435_456
#: How many names of roles are shown.
_FEW = 5
_WAL_RESET_BUG = {
    True: "with the WAL-reset bug: safe here, but let no other program write to the store's file",
    False: "without the WAL-reset bug",
}
_COPIED: Columns = {
    "table": lambda copied: copied.table.removeprefix("lazaretto_").replace("_", " "),
    "rows": lambda copied: f"{copied.rows:,}",
    "sha256": lambda copied: copied.sha256[:12],
}
commands = Group()


def examine_exposure(broker: Broker) -> Risks:
    """Return what exposes a store: its files, the servers that run on this machine, and granted roles."""
    facts = broker.facts()
    risks = Risks([], [])
    if "path" in facts:
        for beside in _BESIDE:
            text = exposure(Path(f"{facts['path']}{beside}"))
            if text is not None:
                risks.problems.append(text)
                break
    for doors in doors_of(str(facts["store_id"])):
        of_server = risks_of(doors)
        risks.problems.extend(of_server.problems)
        risks.notices.extend(of_server.notices)
    lasting = {token.person for token in broker.tokens() if token.expires is None}
    for person in broker.people():
        risks.notices.extend(needless_rights(person.name, person.grants, lasting=person.name in lasting))
    return risks


def needless_rights(name: str, grants: Sequence[Grant], *, lasting: bool) -> list[str]:
    """Return what somebody was granted without need. `lasting`: whether a token never expires."""
    rights = []
    for grant in grants:
        wider = next((one for one in grants if one != grant and _has_all_of(one, grant)), None)
        command = f"lazaretto access withdraw {name} {grant.role.value} --queue '{grant.pattern}'"
        if wider is not None:
            rights.append(
                f"{name} is {grant.role.value} on {grant.pattern}, and has all of that as "
                f"{wider.role.value} on {wider.pattern}; withdraw one of the two: {command}"
            )
        elif grant.role is Role.ADMIN and name.startswith(GROUP):
            rights.append(
                f"everybody in {name} is admin on {grant.pattern}; grant it to those who need it: {command}"
            )
    sends = any(grant.role is Role.CLIENT for grant in grants)
    rights += [
        f"{name} sends or receives as client, and is {role.value} too; grant that to a person"
        for role in (Role.ADMIN, Role.INSPECTOR)
        if sends and any(grant.role is role for grant in grants)
    ]
    if lasting and any(grant.role is Role.ADMIN for grant in grants):
        rights.append(
            f"a token of {name}, who is admin, never expires; make one that does: "
            f"lazaretto access token create {name} --for … --expires 90d"
        )
    return rights


def _has_all_of(one: Grant, other: Grant) -> bool:
    return one.pattern in (other.pattern, "*") and ROLES[other.role] <= ROLES[one.role]


@commands.command("doctor")
def doctor(call: CallOptions) -> None:
    """Check the store, its machine and its queues.

    Problems are damage found by reading the whole file, little space on its disk, a journal mode that
    may lose messages, queues that are halted or disabled, sessions that are held back, open breakers,
    a store or a server's secrets in a file that others may read or write, and a server beyond this
    machine without TLS or keys; the exit code is then 1. Dead letters, needless rights, and attempts
    that clients use up are only noted.
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
    free = facts.pop("disk_free_bytes", None)
    if free is not None:
        if facts["journal_mode"] != "wal":
            problems.append(f"expected the store's journal mode to be wal, got {facts['journal_mode']}")
        if free < _SCARCE:
            problems.append(f"only {output.shown_size(free)} are free on the store's disk")
    elif facts["synchronous_commit"] == "off":
        problems.append("synchronous_commit is off on the server: a power cut may lose acknowledged changes")
    notices = _neighbours(facts, problems)
    for queue in broker.status(limit=None).queues:
        problems += [trouble.text for trouble in queue.troubles if trouble.severe]
        notices += [trouble.text for trouble in queue.troubles if not trouble.severe]
    problems += [
        f"topic {topic.path} is {topic.status.value}; enable it: lazaretto queue status {topic.path} active"
        for topic in broker.topics()
        if topic.status is not QueueStatus.ACTIVE
    ]
    exposed = examine_exposure(broker)
    problems += exposed.problems
    spark, odd = examine_spark()
    notices += exposed.notices + odd
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


def _neighbours(facts: dict[str, Any], problems: list[str]) -> list[str]:
    """Return what is to be noted of other users of the server; add what they do to the problems."""
    problems += [
        f"role {taker['role']} has taken a lock of the store, so others may wait in vain; end its session: "
        f"SELECT pg_terminate_backend({taker['pid']})"
        for taker in facts.get("lock_takers", ())
    ]
    names = facts.get("neighbours", ())
    if not names:
        return []
    shown = ", ".join(names[:_FEW]) + (", …" if len(names) > _FEW else "")
    return [
        f"{output.plural(len(names), 'other role')} may log in to the store's database and take its locks, "
        f"so that nobody can write ({shown}); give the store a database of its own, and REVOKE CONNECT ON "
        "DATABASE … FROM PUBLIC"
    ]


def _file_facts(report: dict[str, Any]) -> list[tuple[str, object]]:
    facts = report["store"]
    size, unused = (output.shown_size(facts[name]) for name in ("file_bytes", "free_bytes"))
    return [
        ("sqlite", f"{report['sqlite']}, {_WAL_RESET_BUG[facts['sqlite_has_wal_reset_bug']]}"),
        ("store", facts["path"]),
        ("store id", facts["store_id"]),
        ("schema", facts["schema"]),
        ("journal mode", facts["journal_mode"]),
        ("file", f"{size}, {unused} of it unused"),
        ("write-ahead log", output.shown_size(facts["log_bytes"])),
        ("free on disk", output.shown_size(report["disk_free_bytes"])),
    ]


def _server_facts(facts: dict[str, Any]) -> list[tuple[str, object]]:
    return [
        ("postgresql", facts["postgresql"]),
        ("store", f"schema {facts['schema_name']}"),
        ("store id", facts["store_id"]),
        ("schema", facts["schema"]),
        ("synchronous commit", facts["synchronous_commit"]),
        ("tables", output.shown_size(facts["bytes"])),
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
        "no problems found" if report["ok"] else f"{output.plural(len(report['problems']), 'problem')} found"
    )


stores = commands.group("store")


@stores.command("check")
def check(call: CallOptions) -> None:
    """Check a store for damage.

    It reads the whole store; the exit code is 1 if something is damaged.
    """
    with call.broker() as broker:
        problems, facts = broker.check(), broker.facts()

    def print_facts() -> None:
        output.fields([(name.replace("_", " "), value) for name, value in facts.items()])
        for text in problems:
            output.line(f"damage: {text}")
        output.line("the store is damaged" if problems else "the store is OK")

    call.print({"ok": not problems, "damage": problems, "store": facts}, print_facts)
    if problems:
        raise typer.Exit(Exit.FAILED)


@stores.command("migrate")
def migrate(
    call: CallOptions,
    after: Annotated[
        bool, option("Also run migrations that older versions cannot work with; stop those first.")
    ] = False,
) -> None:
    """Bring a store's tables up to this version.

    On a server this takes two steps: the first before you deploy a new version, while older workers run;
    the second with --after, when none of them is left. Opening a store does the first step by itself, if
    its user may.
    """
    steps = migrate_store(call.url(), after=after)
    numbers = ", ".join(map(str, steps))
    call.print({"migrations": steps}, f"done: migration {numbers}" if steps else "already up to date")


@stores.command("copy")
def copy(
    call: ListingOptions,
    target: Annotated[str, argument("URL of the new store.")],
) -> None:
    """Copy a store with everything in it to a new store.

    Stop all users of the store first. Messages, history, sessions and settings are copied; locks are
    dropped. The copy is read back and compared. If interrupted, run it again to resume.
    """
    with output.progress("copying", "rows") as progress:
        # The tables one after the other; the bar is of the one that is being copied.
        copied = copy_store(call.url(), target, lambda table, done, total: progress(done, total))
    call.print_all(copied, _COPIED, "nothing to copy", shortened=None)
    if not call.wants_objects and not call.csv:
        output.line("copied and verified")
