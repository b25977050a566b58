"""A class name means one thing: how many are borne by several classes may only fall."""

from __future__ import annotations

import ast
from collections import defaultdict

from .test_architecture import MODULES

#: How many names several classes at the top of modules bear. Lower it when one is renamed.
_BORNE_TWICE = 63


def test_no_more_class_names_are_borne_twice() -> None:
    modules = defaultdict(list)
    for module, path in MODULES.items():
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef):
                modules[node.name].append(module)
    twice = {name: where for name, where in modules.items() if len(where) > 1}
    assert len(twice) <= _BORNE_TWICE, f"name the new one apart: {twice}"
