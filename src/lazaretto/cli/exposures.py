"""What `lazaretto doctor` finds of a store's exposure: files, doors, and roles with needless rights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lazaretto.broker.broker import Broker
from lazaretto.cli.secret_files import exposure
from lazaretto.cli.served_doors import Risks, doors_of, risks_of
from lazaretto.model.grants import GROUP, ROLES, Grant, Role

#: What lies beside a store's file has its messages, too.
_BESIDE = ("", "-wal", "-shm", "-wake")


def examine_exposure(broker: Broker) -> Risks:
    """Return what exposes a store: its files, the servers that run on this machine, and granted roles."""
    facts = broker.facts()
    found = Risks([], [])
    if "path" in facts:
        for beside in _BESIDE:
            text = exposure(Path(f"{facts['path']}{beside}"))
            if text is not None:
                found.problems.append(text)
                break
    for doors in doors_of(str(facts["store_id"])):
        of_server = risks_of(doors)
        found.problems.extend(of_server.problems)
        found.notices.extend(of_server.notices)
    lasting = {token.person for token in broker.tokens() if token.expires is None}
    for person in broker.people():
        found.notices.extend(needless_rights(person.name, person.grants, lasting=person.name in lasting))
    return found


def needless_rights(name: str, grants: Sequence[Grant], *, lasting: bool) -> list[str]:
    """Return what somebody was granted without need. `lasting`: whether a token never expires."""
    found = []
    for grant in grants:
        wider = next((one for one in grants if one != grant and _has_all_of(one, grant)), None)
        command = f"lazaretto access withdraw {name} {grant.role.value} --queue '{grant.pattern}'"
        if wider is not None:
            found.append(
                f"{name} is {grant.role.value} on {grant.pattern}, and has all of that as "
                f"{wider.role.value} on {wider.pattern}; withdraw one of the two: {command}"
            )
        elif grant.role is Role.ADMIN and name.startswith(GROUP):
            found.append(
                f"everybody in {name} is admin on {grant.pattern}; grant it to those who need it: {command}"
            )
    sends = any(grant.role is Role.CLIENT for grant in grants)
    found += [
        f"{name} sends or receives as client, and is {role.value} too; grant that to a person"
        for role in (Role.ADMIN, Role.INSPECTOR)
        if sends and any(grant.role is role for grant in grants)
    ]
    if lasting and any(grant.role is Role.ADMIN for grant in grants):
        found.append(
            f"a token of {name}, who is admin, never expires; make one that does: "
            f"lazaretto access token create {name} --for … --expires 90d"
        )
    return found


def _has_all_of(one: Grant, other: Grant) -> bool:
    return one.pattern in (other.pattern, "*") and ROLES[other.role] <= ROLES[one.role]
