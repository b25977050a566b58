"""SQL filters and actions, with Service Bus's grammar: text, compiled once to a function."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lark import Lark, UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from lazaretto.errors import FilterSyntaxError
from lazaretto.model.checks import is_unicode, shown
from lazaretto.model.filters.nodes import Builder
from lazaretto.model.filters.values import KINDS, Truth, Value
from lazaretto.model.filters.view import OF_ATTEMPTS, Action, MessageView, Property

#: Service Bus's limits: characters of a filter or action, and parts of an action.
LONGEST = 1024
MOST_ACTIONS = 32

#: How the terminals of the grammar are called in errors.
_TOLD = {
    "COMPARE": "a comparison", "SIGN": "+ or -", "TIMES": "*, / or %", "EXISTS": "EXISTS(…)", "NOT": "NOT",
    "RPAR": "')'", "COMMA": "','", "DOT": "'.'", "INDEX": "[a number]", "SEMICOLON": "';'", "$END": "the end",
    **dict.fromkeys(("IDENTIFIER", "BRACKETED", "QUOTED"), "a property"),
}  # fmt: skip
#: Where all of these may stand, it is told in a word.
_VALUE = frozenset({
    "DECIMAL", "INTEGER", "STRING", "PARAMETER", "IDENTIFIER", "BRACKETED", "QUOTED", "NEWID", "PROPERTY",
    "TYPE", "TRAIT", "TRUE", "FALSE", "SIGN", "LPAR",
})  # fmt: skip


class _Parser:
    """A parser that builds functions while it reads. Its tables are made once; one text at a time."""

    def __init__(self, start: str) -> None:
        self._builder = Builder()
        self._lock = threading.Lock()
        grammar = Path(__file__).with_name("grammar.lark").read_text("utf-8")
        self._lark = Lark(
            grammar, parser="lalr", start=start, maybe_placeholders=False, transformer=self._builder
        )

    def parse(
        self, text: str, parameters: Mapping[str, Value], written: Mapping[str, str], *, edits: bool = False
    ) -> Any:
        with self._lock:
            self._builder.give(parameters, written, edits=edits)
            return self._lark.parse(text), self._builder.properties


_parser = functools.cache(_Parser)


def compile_filter(
    text: str, parameters: Mapping[str, Value] | None = None
) -> Callable[[MessageView], Truth]:
    """Return the function that says whether a condition is true of a message; None: it is unknown.

    What is unknown does not match. `parameters`: values of `@name`. Raises FilterSyntaxError; the
    function raises FilterError.
    """
    condition, _ = compile_with_properties(text, parameters)
    return condition


def compile_with_properties(
    text: str, parameters: Mapping[str, Value] | None = None
) -> tuple[Callable[[MessageView], Truth], list[Property]]:
    """Return the function of a filter, and the properties that it names. Raises FilterSyntaxError."""
    compiled: tuple[Callable[[MessageView], Truth], list[Property]] = _compile("filter", text, parameters)
    return compiled


@functools.lru_cache(maxsize=64)
def names_attempts(text: str) -> bool:
    """Return whether a filter asks who tried a message. Raises FilterSyntaxError."""
    _, properties = compile_with_properties(text)
    return any(one.scope == "sys" and one.name in OF_ATTEMPTS for one in properties)


@functools.lru_cache(maxsize=64)
def reads_body_alone(text: str) -> bool:
    """Return whether a filter looks at nothing of a message but its body. Raises FilterSyntaxError."""
    _, properties = compile_with_properties(text)
    return all(one.scope == "body" for one in properties)


def compile_action(
    text: str,
    parameters: Mapping[str, Value] | None = None,
    written: Mapping[str, str] | None = None,
    *,
    edits: bool = False,
) -> tuple[Action, ...]:
    """Return the parts of an action, in order. `edits`: it may change the body. Raises FilterSyntaxError."""
    actions: tuple[Action, ...]
    actions, _ = _compile("actions", text, parameters, written, edits=edits)
    if len(actions) > MOST_ACTIONS:
        raise FilterSyntaxError(
            f"expected at most {MOST_ACTIONS} parts in an action, got {len(actions)}", 1, 1
        )
    return actions


def action_properties(text: str) -> list[Property]:
    """Return the properties that an edit's action names. Raises FilterSyntaxError."""
    properties: list[Property] = _compile("actions", text, None, edits=True)[1]
    return properties


def _compile(
    start: str,
    text: str,
    parameters: Mapping[str, Value] | None,
    written: Mapping[str, str] | None = None,
    *,
    edits: bool = False,
) -> Any:
    if not isinstance(text, str) or not 0 < len(text) <= LONGEST or not is_unicode(text):
        raise FilterSyntaxError(f"expected text of 1 to {LONGEST} characters, got {shown(text)}")
    for name, value in (parameters or {}).items():
        if value is not None and type(value) not in KINDS:
            raise FilterSyntaxError(
                f"the parameter {name} has a value of the unsupported type {type(value).__name__}", 1, 1
            )
    try:
        return _parser(start).parse(text, parameters or {}, written or {}, edits=edits)
    except UnexpectedInput as error:
        raise _syntax_error(text, error) from None


def _syntax_error(text: str, error: UnexpectedInput) -> FilterSyntaxError:
    """Say where a text stops making sense, what stands there, and what might."""
    line, column = error.line, error.column
    if isinstance(error, UnexpectedCharacters):
        start = error.pos_in_stream or 0
        expected, token = set(error.allowed or ()), shown(text[start : start + 10])
    else:
        assert isinstance(error, UnexpectedToken)
        expected, token = set(error.expected), shown(str(error.token))
        if error.token.type == "$END":
            lines = text.split("\n")
            line, column, token = len(lines), len(lines[-1]) + 1, "the end"
    names = {_TOLD.get(name, name) for name in expected}
    if expected >= _VALUE:
        names = {"a value", *(_TOLD.get(name, name) for name in expected - _VALUE)}
    return FilterSyntaxError(f"expected {' or '.join(sorted(names))}, got {token}", line, column)
