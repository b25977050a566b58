"""Names say what a thing is: a participle does not. Each of these may only become rarer.

Run as a program, this module prints how often each is there now.
"""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "src"
#: How many variables and parameters have such a name. Name the thing (`page`, `letters`) and lower the
#: number; a new one needs no exception but a noun.
MOST = {
    "found": 32,
    "given": 12,
    "left": 37,
    "known": 13,
    "wanted": 10,
    "held": 20,
    "done": 10,
    "told": 9,
}
#: How many docstrings begin with a question's word in place of a verb or a noun phrase.
MOST_QUESTIONS = 21


def names() -> Counter[str]:
    """Count the bindings of each participle."""
    counts: Counter[str] = Counter()
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                counts[node.id] += 1
            elif isinstance(node, ast.arg):
                counts[node.arg] += 1
    return Counter({name: counts[name] for name in MOST})


def questions() -> list[str]:
    """Return where a docstring begins with What, Who or Where."""
    return [
        f"{path.relative_to(SOURCES)}:{node.body[0].lineno}"
        for path in sorted(SOURCES.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and (ast.get_docstring(node) or "").partition(" ")[0] in ("What", "Who", "Where")
    ]


def test_no_new_name_is_a_participle() -> None:
    more = {name: count for name, count in names().items() if count > MOST[name]}
    assert more == {}, "name the thing, not what was done with it"


def test_no_new_docstring_begins_with_a_question() -> None:
    assert len(questions()) <= MOST_QUESTIONS, "begin with a verb or a noun phrase"


if __name__ == "__main__":
    print(dict(names()), len(questions()))
