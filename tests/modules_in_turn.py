"""The order of tests, and how the processes of `pytest -n` share them: module by module, long ones first."""

from __future__ import annotations

from typing import Final

import pytest
from xdist.scheduler import LoadFileScheduling

#: The folders whose tests start Java, browsers and many processes: none of their modules may begin last.
_LONG: Final = (
    "spark", "acceptance", "door", "crash", "postgres", "model", "host", "browser", "azure_sdk", "races",
)  # fmt: skip
#: How many processes run Spark: one takes as long to be warm as fifty tests.
_SPARKS: Final = 2
#: Modules that start Java for each of their tests anyway.
_OWN_JAVA: Final = (
    "test_cluster.py", "test_delta.py", "test_faults.py", "test_frozen.py", "test_quarantine_faults.py",
    "test_task.py", "test_versions.py",
)  # fmt: skip


def name_apart(items: list[pytest.Item]) -> None:
    """Give each test an id of its own: of those that share one, only one would be run.

    Schemathesis gives all operations of an API the id of their test. Raises UsageError for any other two.
    """
    ids: set[str] = set()
    for item in items:
        if not item.nodeid.endswith(item.name) and item.parent is not None:
            item._id = item.parent.id.child(item.name)
        if item.nodeid in ids:
            raise pytest.UsageError(
                f"expected each test to have an id of its own, got two of {item.nodeid!r}"
            )
        ids.add(item.nodeid)


def sort_long_first(items: list[pytest.Item]) -> None:
    """Put the tests of folders first whose tests are long."""
    items.sort(key=lambda item: _rank(item.path.parent.name))


def _rank(folder: str) -> int:
    return _LONG.index(folder) if folder in _LONG else len(_LONG)


class ModulesInTurn(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """Give a process that has nothing else to do a whole module; those that share a Spark go together."""

    def _split_scope(self, nodeid: str) -> str:
        module: str = super()._split_scope(nodeid)
        if "/spark/" in module and not module.endswith(_OWN_JAVA):
            return f"spark {sum(module.encode()) % _SPARKS}"
        return module
