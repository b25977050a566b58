"""How a program of Python takes the steps of the table, whatever client it has."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

#: How long a step waits for messages, and for none, in seconds; and facts that are asked at a time.
LONG, SHORT, WORKERS = 15.0, 1.0, 24


class Impossible(Exception):
    """A step for which a client has no call."""


class Fact(Protocol):
    """One fact under way. `addresses`: of queues that the server has made for it, by name."""

    stack: ExitStack
    addresses: dict[str, str]

    def step(self, name: str) -> Callable[[Mapping[str, Any]], Any] | None:
        """Return how to take a step; None: its client has no call for it."""
        ...

    def name_of(self, error: Exception) -> str:
        """Return what the table calls an error."""
        ...


def body_of(form: Mapping[str, Any]) -> str:
    """Return the body that a message of the table has."""
    return form["repeat"] * form["times"] if "repeat" in form else form.get("body", "")


def holds(expected: Any, seen: Any) -> bool:
    """Compare what a step sees with the table: of maps and messages only what the table names."""
    if isinstance(expected, list):
        return len(expected) == len(seen) and all(map(holds, expected, seen))
    if isinstance(expected, dict):
        return all(holds(one, seen.get(name)) for name, one in expected.items())
    return bool(expected == seen)


def resolved(step: Mapping[str, Any], addresses: Mapping[str, str]) -> Mapping[str, Any]:
    """Return a step with the addresses of queues that the server has made."""
    text = json.dumps(step)
    for name, address in addresses.items():
        text = text.replace(json.dumps(f"@{name}"), json.dumps(address))
    made: Mapping[str, Any] = json.loads(text)
    return made


def take(fact: Fact, step: Mapping[str, Any]) -> None:
    """Take a step. Raises an error if what it sees differs."""
    act = fact.step(step["do"])
    if act is None:
        raise Impossible(step["do"])
    try:
        seen = act(step)
    except Exception as error:
        if "fails" not in step or isinstance(error, Impossible):
            raise
        name = fact.name_of(error)
        if name != step["fails"]:
            raise AssertionError(f"expected {step['fails']}, got {name}: {error!r}") from error
        return
    if "fails" in step:
        raise AssertionError(f"expected {step['fails']} of {step['do']}, got {seen!r}")
    if "see" in step and not holds(step["see"], seen):
        raise AssertionError(f"{step['do']}: expected {step['see']}, got {str(seen)[:500]}")


def ask(fact: Mapping[str, Any], make: Callable[[], Fact]) -> dict[str, Any]:
    """Take the steps of a fact; return what is printed of it."""
    told: dict[str, Any] = {"title": fact["title"]}
    try:
        under_way = make()
        with under_way.stack:
            for step in fact["steps"]:
                take(under_way, resolved(step, under_way.addresses))
    except Impossible as error:
        return told | {"impossible": str(error)}
    except Exception as error:
        return told | {"ok": False, "why": f"{type(error).__name__}: {error}"[:2000]}
    return told | {"ok": True}


def main(make: Callable[[Mapping[str, Any]], Fact]) -> None:
    """Ask all facts whose title has a part, several at a time."""
    facts, told, *parts = sys.argv[1:]
    table = [one for one in json.loads(Path(facts).read_text("utf-8")) if "".join(parts) in one["title"]]
    settings = json.loads(Path(told).read_text("utf-8"))
    with ThreadPoolExecutor(WORKERS) as pool:
        for answer in pool.map(lambda fact: ask(fact, lambda: make(settings)), table):
            print(json.dumps(answer), flush=True)
