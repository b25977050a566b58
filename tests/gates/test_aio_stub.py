"""The types of `lazaretto.aio` are those of the synchronous classes: the stub is made of their signatures.

`python -m tests.gates.test_aio_stub` writes it anew.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import re
import sys
from pathlib import Path
from typing import Any

import lazaretto.broker.broker
from lazaretto import aio
from lazaretto.aio.mirrors import MIRRORED, Mirror

STUB = Path(aio.__file__).with_suffix(".pyi")

HEAD = '''"""The types of lazaretto.aio, made of the synchronous classes by tests/gates/test_aio_stub.py."""

# ruff: noqa
# fmt: off
from types import TracebackType
from typing import Self

'''
#: Where messages are that can be settled.
_MESSAGES = {
    "ReceivedMessage": "lazaretto.model.messages",
    "DialogMessage": "lazaretto.dialogs.dialog_transaction",
}


class _Stub:
    """Gathers the classes of a stub, and what they import."""

    def __init__(self) -> None:
        self.imports: set[str] = set()

    def function(self, function: Any, *, verb: str, returns: str | None = None) -> list[str]:
        """Return the definitions of a function and its overloads: async if `verb` is "await"."""
        found = []
        module = ast.parse(Path(inspect.getsourcefile(function) or "").read_text("utf-8"))
        scope = [node for node in ast.walk(module) if isinstance(node, ast.FunctionDef)]
        owner = function.__qualname__.rpartition(".")[0]
        if owner:
            (kind,) = [n for n in ast.walk(module) if isinstance(n, ast.ClassDef) and n.name == owner]
            scope = [node for node in kind.body if isinstance(node, ast.FunctionDef)]
        named = [node for node in scope if node.name == function.__name__]
        overloads = [n for n in named if any(ast.unparse(d) == "overload" for d in n.decorator_list)]
        for node in overloads or named[-1:]:
            if isinstance(node.returns, ast.Subscript) and ast.unparse(node.returns.value) == "Steps":
                node.returns = node.returns.slice
            signature = ast.unparse(node.args)
            result = returns or ast.unparse(node.returns or ast.Constant(None))
            if verb == "iterate":
                result = result.replace("Iterator[", "AsyncIterator[", 1)
                self.imports.add("from collections.abc import AsyncIterator")
            if overloads:
                self.imports.add("from typing import overload")
                found.append("@overload")
            found.append(
                f"{'async ' if verb == 'await' else ''}def {node.name}({signature}) -> {result}: ..."
            )
            self._import_names(node, sys.modules[function.__module__], module, returns is None)
        return found

    def _import_names(self, node: ast.FunctionDef, module: Any, tree: ast.Module, result: bool) -> None:
        annotations = [a.annotation for a in ast.walk(node.args) if isinstance(a, ast.arg) and a.annotation]
        wanted = [*annotations, *([node.returns] if result and node.returns else []), *node.args.kw_defaults]
        parts = [part for one in [*wanted, *node.args.defaults] if one for part in ast.walk(one)]
        names = {part.id for part in parts if isinstance(part, ast.Name)}
        for name in names - set(dir(builtins)):
            for imported in ast.walk(tree):
                if isinstance(imported, ast.ImportFrom | ast.Import):
                    alias = next((a for a in imported.names if name == (a.asname or a.name)), None)
                    if alias is not None:
                        one = ast.unparse(alias)
                        source = f"from {imported.module} " if isinstance(imported, ast.ImportFrom) else ""
                        self.imports.add(f"{source}import {one}")
                        break
            else:
                self.imports.add(f"from {module.__name__} import {name}")

    def mirror(self, own: type) -> str:
        """Return a class of the stub."""
        made = MIRRORED[own]
        lines = [f"class {own.__name__}:"]
        for name in made.names:
            value = inspect.getattr_static(made.sync, name)
            if isinstance(value, property):
                if name in made.wraps:
                    lines.append(f"    @property\n    def {name}(self) -> {made.wraps[name].__name__}: ...")
                    continue
                assert value.fget is not None
                lines.append("    @property")
                lines += [f"    {line}" for line in self.function(value.fget, verb="read")]
                continue
            function = getattr(value, "__wrapped__", value)
            if name in made.wraps:
                defined = self.function(function, verb="make", returns=made.wraps[name].__name__)
            elif name in made.gives:
                defined = self.function(function, verb="await", returns=made.gives[name].__name__)
            else:
                defined = self.function(function, verb="iterate" if name in made.iterates else "await")
            lines += [f"    {line}" for line in defined]
        if made.sync is lazaretto.broker.broker.Broker:
            lines.append("    dialogs: AsyncDialogs")
        lines += [
            "    async def __aenter__(self) -> Self: ...",
            "    async def __aexit__(",
            "        self, kind: type[BaseException] | None, error: BaseException | None, "
            "trace: TracebackType | None",
            "    ) -> None: ...",
        ]
        text = "\n".join(lines)
        if made.settles is not None:
            text = re.sub(r"\bM\b", made.settles, text)
            self.imports.discard("from lazaretto.broker.settling import M")
            self.imports.add(f"from {_MESSAGES[made.settles]} import {made.settles}")
        return text


def stub() -> str:
    """Return what the stub is to be."""
    made = _Stub()
    classes = [made.mirror(own) for own in MIRRORED]
    connect = made.function(lazaretto.broker.broker.connect, verb="await", returns="AsyncBroker")
    body = "\n\n".join([*classes, *connect])
    return HEAD + "\n".join(sorted(made.imports)) + "\n\n" + body + "\n"


def test_the_stub_is_that_of_the_synchronous_classes() -> None:
    assert STUB.read_text("utf-8") == stub(), "run python -m tests.gates.test_aio_stub"


def test_each_public_verb_is_there_or_left_out_on_purpose() -> None:
    for own, made in MIRRORED.items():
        assert issubclass(own, Mirror)
        public = {name for name in dir(made.sync) if not name.startswith("_")}
        assert {name for name in dir(own) if not name.startswith("_")} | set(made.leaves_out) >= public
        assert [n for n in made.names if getattr(made.sync, n).__doc__ and not getattr(own, n).__doc__] == []


if __name__ == "__main__":
    STUB.write_text(stub(), "utf-8")
