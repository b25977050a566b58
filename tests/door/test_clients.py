"""One table of facts, asked of every client by a program of contrib/clients in its language."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from door.client_programs import PROGRAMS, Missing, program
from door.facts import CLIENTS, Answer, facts, make_anew, read, settings
from door.served import Served
from lazaretto import Broker

pytestmark = pytest.mark.stores(
    *(("sqlite", "postgres") if os.environ.get("LAZARETTO_SOAK") else ("sqlite",))
)

#: A fact that does not end in time is told by its program; a program ends in minutes.
_LONGEST = 600
#: How often a fact is asked alone that did not hold beside the others: it waits by the clock, and the machine
#: may have been busy.
_AGAIN = 2


def known(name: str) -> dict[str, list[str]]:
    """Return what differs for a client: facts that fail, calls that it lacks, and facts for the long form."""
    table: dict[str, dict[str, list[str]]] = json.loads((CLIENTS / "known.json").read_text("utf-8"))
    return table[name]


@pytest.mark.parametrize("name", PROGRAMS)
def test_facts(serve: Callable[..., Served], broker: Broker, tmp_path: Path, name: str) -> None:
    told = settings(serve, broker, tmp_path)
    expected = known(name)
    table = {fact["title"]: fact for fact in facts()}
    if not os.environ.get("LAZARETTO_SOAK"):
        for title in expected.get("slow", ()):
            del table[title]
    file, asked = tmp_path / "settings.json", tmp_path / "facts.json"
    file.write_text(json.dumps(told))
    asked.write_text(json.dumps([*table.values()]))
    try:
        client = program(name, told["authority"])
    except Missing as error:
        pytest.skip(f"the facts of {name} are not asked: {error}")

    def ask(title: str = "") -> tuple[Answer, str]:
        named: dict[str, Any] = {"capture_output": True, "text": True, "timeout": _LONGEST, "check": False}
        words = [*client.words, str(asked), str(file), *([title] if title else [])]
        ended = subprocess.run(words, env={**os.environ, **client.environment}, **named)
        return read(ended.stdout), ended.stderr

    answer, errors = ask()
    assert answer.right | answer.wrong.keys() | answer.impossible.keys() == table.keys(), errors
    wrong = dict(answer.wrong)
    for title in sorted(wrong.keys() - set(expected["wrong"])):
        for _ in range(_AGAIN):
            make_anew(broker, table[title])
            again, _ = ask(title)
            if title in again.right:
                del wrong[title]
                break
    assert sorted(wrong) == sorted(expected["wrong"]), wrong
    assert sorted(set(answer.impossible.values())) == sorted(expected["impossible"])
