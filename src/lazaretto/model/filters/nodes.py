"""The parser's output for filters and actions: functions that know whether they are conditions."""

from __future__ import annotations

import decimal
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from lark import Token, Transformer, v_args

from lazaretto.errors import FilterError, FilterSyntaxError
from lazaretto.model.checks import suggestion
from lazaretto.model.filters.body import MISSING, Step, as_value
from lazaretto.model.filters.values import (
    COMPARISONS,
    KINDS,
    TRAITS,
    Truth,
    Value,
    check_escape,
    compare,
    compute,
    conjoin,
    disjoin,
    kind_of,
    like,
    negate,
    print_path,
    type_name,
)
from lazaretto.model.filters.view import (
    COMPUTED,
    SETTABLE,
    SYSTEM,
    Action,
    MessageView,
    Property,
    system_field,
)
from lazaretto.model.sized import code_of

#: How deep parentheses and operators may be nested.
DEEPEST = 60
#: Parts of a path into the body.
MOST_STEPS = 32
_MOST = (1 << 63) - 1
_NOTHING: Any = object()


class Place(NamedTuple):
    """A place in the text, counted from 1."""

    line: int
    column: int


class Node(NamedTuple):
    """A part of an expression. `constant`: its value, if it is always the same; `code`: its type in AMQP."""

    run: Callable[[MessageView], Any]
    condition: bool
    depth: int
    place: Place
    constant: Any = _NOTHING
    property: Property | None = None
    code: int | None = None


def _wrong(place: Place, text: str) -> FilterSyntaxError:
    return FilterSyntaxError(text, place.line, place.column)


def _at(token: Token) -> Place:
    return Place(token.line or 1, token.column or 1)


def _value(node: Node) -> Node:
    if node.condition:
        raise _wrong(node.place, "expected a value, got a condition")
    return node


def _condition(node: Node) -> Node:
    if not node.condition:
        raise _wrong(node.place, "expected a condition, got a value: compare it, for example with = TRUE")
    return node


def _deeper(run: Callable[[MessageView], Any], condition: bool, *parts: Node) -> Node:
    depth = max(part.depth for part in parts) + 1
    if depth > DEEPEST:
        raise _wrong(parts[0].place, f"expected at most {DEEPEST} levels of nesting")
    return Node(run, condition, depth, parts[0].place)


def _operands(rest: Sequence[Token | Node]) -> tuple[list[Node], bool]:
    """Return the values behind a first one, and whether the word NOT is not among the words."""
    values = [_value(node) for node in rest if isinstance(node, Node)]
    return values, not any(isinstance(word, Token) and word.type == "NOT" for word in rest)


def _unquoted(token: Token) -> str:
    text = str(token)
    if token.type == "BRACKETED":
        return text[1:-1].replace("]]", "]")
    return text[1:-1].replace('""', '"') if token.type == "QUOTED" else text


@v_args(inline=True)
class Builder(Transformer[Token, Any]):
    """Called by the parser for every part, from the inside out: so that no text needs a deep stack."""

    def __init__(self) -> None:
        super().__init__()
        self._parameters: Mapping[str, Value] = {}
        self._written: Mapping[str, str] = {}
        self._edits = False
        #: Where the text has the bare word `body`.
        self._bodies: set[Place] = set()
        #: The properties that the text names, in its order.
        self.properties: list[Property] = []

    def give(
        self, parameters: Mapping[str, Value], written: Mapping[str, str], *, edits: bool = False
    ) -> None:
        """Set the values of parameters for the next text, and how a client wrote them.

        `edits`: it may change the body, and remove properties of the system too.
        """
        self._edits = edits
        self._parameters = {name.lower().removeprefix("@"): value for name, value in parameters.items()}
        self._written = {name.lower().removeprefix("@"): text for name, text in written.items()}
        self.properties = []
        self._bodies = set()

    # -- whole texts ----------------------------------------------------------------------------

    def filter(self, node: Node) -> Callable[[MessageView], Truth]:
        return _condition(node).run

    def actions(self, *actions: Action) -> tuple[Action, ...]:
        return actions

    def set_(self, _word: Token, node: Node, sign: Token, value: Node) -> Action:
        if str(sign) != "=":
            raise _wrong(_at(sign), f"expected '=', got {str(sign)!r}")
        target = node.property
        assert target is not None
        target = self._meant(node, target)
        self._check_changed(node, target)
        if target.scope == "sys" and target.name not in SETTABLE:
            raise _wrong(node.place, f"the system property {target.written} cannot be set")
        return Action(target, _value(value).run, value.property, value.code)

    def remove(self, _word: Token, node: Node) -> Action:
        assert node.property is not None
        target = self._meant(node, node.property)
        self._check_changed(node, target)
        if target.scope == "body" and not target.path:
            raise _wrong(node.place, "a body cannot be removed: set it to '', or remove user.body")
        removable = self._edits and target.name in SETTABLE - {"message_id"}
        if target.scope == "sys" and not removable:
            raise _wrong(node.place, "a system property cannot be removed")
        return Action(target, None)

    def _meant(self, node: Node, target: Property) -> Property:
        """Return what an edit changes: `body` is the whole body; a property of that name is `user.body`."""
        if not self._edits or node.place not in self._bodies:
            return target
        whole = Property("body", "body", target.written)
        self._note(whole)
        return whole

    def _check_changed(self, node: Node, target: Property) -> None:
        if target.scope == "body" and not self._edits:
            raise _wrong(node.place, "an action cannot change the body")

    # -- conditions -----------------------------------------------------------------------------

    def or_(self, *parts: Node) -> Node:
        nodes = [_condition(node) for node in parts[::2]]
        return _deeper(disjoin([node.run for node in nodes]), True, *nodes)

    def and_(self, *parts: Node) -> Node:
        nodes = [_condition(node) for node in parts[::2]]
        return _deeper(conjoin([node.run for node in nodes]), True, *nodes)

    def negation(self, _sign: Token, node: Node) -> Node:
        run = _condition(node).run

        def negation(view: MessageView) -> Truth:
            truth = run(view)
            return None if truth is None else not truth

        return _deeper(negation, True, node)

    def compare(self, left: Node, sign: Token, right: Node) -> Node:
        return _deeper(_comparison(_value(left), str(sign), _value(right)), True, left, right)

    def like(self, left: Node, *rest: Token | Node) -> Node:
        (pattern, *escapes), wanted = _operands(rest)
        value, of = _value(left).run, pattern.run
        by = escapes[0].run if escapes else None
        if escapes and escapes[0].constant is not _NOTHING:
            try:
                check_escape(escapes[0].constant)
            except FilterError as error:
                raise _wrong(escapes[0].place, str(error)) from None

        def matches(view: MessageView) -> Truth:
            truth = like(value(view), of(view), None if by is None else by(view))
            return None if truth is None else truth is wanted

        return _deeper(matches, True, left, pattern, *escapes)

    def in_(self, left: Node, *rest: Token | Node) -> Node:
        nodes, wanted = _operands(rest)
        run = _membership(_value(left), nodes)

        def contained(view: MessageView) -> Truth:
            value = run(view)
            return None if value is None else value is wanted

        return _deeper(contained if not wanted else run, True, left, *nodes)

    def is_null(self, node: Node, *words: Token) -> Node:
        _, wanted = _operands(words)
        if node.property is None:
            raise _wrong(node.place, "expected a property before IS NULL")
        run = node.run
        return _deeper(lambda view: (run(view) is None) is wanted, True, node)

    def exists(self, _word: Token, node: Node) -> Node:
        target = node.property
        assert target is not None
        if target.scope != "user":
            return _deeper(lambda view: view.part(target) is not MISSING, True, node)
        name = target.name
        return _deeper(lambda view: name in view.user, True, node)

    def type_of(self, word: Token, node: Node) -> Node:
        target = node.property
        assert target is not None

        def name_type(view: MessageView) -> Value:
            value = view.part(target)
            return None if value is MISSING else type_name(value)

        return _deeper(name_type, False, node)._replace(place=_at(word))

    def trait(self, word: Token, node: Node) -> Node:
        run, trait = _value(node).run, TRAITS[str(word).lower()]
        return _deeper(lambda view: trait(run(view)), False, node)._replace(place=_at(word))

    def parenthesis(self, node: Node) -> Node:
        return _deeper(node.run, node.condition, node)._replace(constant=node.constant)

    # -- values ---------------------------------------------------------------------------------

    def sum(self, *parts: Any) -> Node:
        return self._chain(parts)

    def product(self, *parts: Any) -> Node:
        return self._chain(parts)

    def _chain(self, parts: Sequence[Any]) -> Node:
        nodes = [_value(node) for node in parts[::2]]
        first, rest = nodes[0].run, [node.run for node in nodes[1:]]
        steps = list(zip(map(str, parts[1::2]), rest, strict=True))

        def chain(view: MessageView) -> Value:
            value = first(view)
            for sign, run in steps:
                value = compute(sign, value, run(view))
            return value

        return _deeper(chain, False, *nodes)

    def signed(self, sign: Token, node: Node) -> Node:
        run = _value(node).run
        if str(sign) == "-":
            if node.constant is not _NOTHING and node.constant is not None:
                return self._constant(negate(node.constant), _at(sign))
            return _deeper(lambda view: negate(run(view)), False, node)
        return _deeper(lambda view: compute("+", 0, run(view)), False, node)

    def _constant(self, value: Value, place: Place) -> Node:
        return Node(lambda view: value, False, 1, place, value)

    def integer(self, token: Token) -> Node:
        value = int(token) if len(token) < 20 else _MOST + 1
        if value > _MOST:
            raise _wrong(_at(token), "expected an integer of at most 64 bits")
        return self._constant(value, _at(token))

    def decimal(self, token: Token) -> Node:
        return self._constant(float(token), _at(token))

    def string(self, token: Token) -> Node:
        return self._constant(str(token)[1:-1].replace("''", "'"), _at(token))

    def true(self, token: Token) -> Node:
        return self._constant(True, _at(token))

    def false(self, token: Token) -> Node:
        return self._constant(False, _at(token))

    def parameter(self, token: Token) -> Node:
        name = str(token)[1:].lower()
        if name not in self._parameters:
            raise _wrong(_at(token), f"the parameter {token} has no value")
        value = self._parameters[name]
        return self._constant(value, _at(token))._replace(code=code_of(value, self._written.get(name, "")))

    def newid(self, token: Token) -> Node:
        return Node(lambda view: uuid.uuid4(), False, 1, _at(token))

    def property_named(self, token: Token, node: Node) -> Node:
        run, named = _value(node).run, node.constant
        self._note(Property("user", named.lower(), named) if type(named) is str else COMPUTED)

        def find(view: MessageView) -> Value:
            name = run(view)
            return view.user.get(name.lower()) if type(name) is str else None

        return _deeper(find, False, node)._replace(place=_at(token))

    def name(self, token: Token) -> Token:
        return token

    def user_property(self, token: Token) -> Node:
        if str(token).lower() == "body":
            self._bodies.add(_at(token))
        return self._property(_user_property(_unquoted(token), _at(token)))

    def _property(self, node: Node) -> Node:
        if node.property is not None:
            self._note(node.property)
        return node

    def _note(self, property_: Property) -> None:
        if property_ not in self.properties:
            self.properties.append(property_)

    def key(self, token: Token) -> Step:
        return _unquoted(token)

    def index(self, token: Token) -> Step:
        return int(token[1:-1])

    def scoped_property(self, scope: Token, token: Token, *steps: Step) -> Node:
        where, written = _unquoted(scope).lower(), _unquoted(token)
        if where == "body":
            return self._property(_body_property((written, *steps), _at(scope)))
        if steps:
            raise _wrong(_at(token), "expected the name of a property, got a path, which only the body has")
        if where == "user":
            return self._property(_user_property(written, _at(scope)))
        if where != "sys":
            raise _wrong(_at(scope), f"expected the scope sys, user or body, got {_unquoted(scope)}")
        field = system_field(written)
        if field is None:
            names = sorted(SYSTEM)
            raise _wrong(
                _at(token), f"there is no system property {written!r}{suggestion(written.lower(), names)}"
            )
        property_ = Property("sys", field, written)
        return self._property(Node(lambda view: view.system(field), False, 1, _at(scope), property=property_))


def _body_property(path: tuple[Step, ...], place: Place) -> Node:
    if len(path) > MOST_STEPS:
        raise _wrong(place, f"expected a path of at most {MOST_STEPS} parts into the body, got {len(path)}")
    property_ = Property("body", "body", print_path(path), path)
    first = path[0]

    def look_up(view: MessageView) -> Value:
        # The usual one without the way through all kinds of properties.
        body = view.body.value()
        return as_value(body.get(first, MISSING)) if type(body) is dict else None

    run = look_up if len(path) == 1 else lambda view: view.value(property_)
    return Node(run, False, 1, place, property=property_)


def _user_property(written: str, place: Place) -> Node:
    name = written.lower()
    return Node(lambda view: view.user.get(name), False, 1, place, property=Property("user", name, written))


def _comparison(left: Node, sign: str, right: Node) -> Callable[[MessageView], Truth]:
    """Return a comparison; the usual one, of a property with a constant, without looking at kinds twice."""
    fixed, target = right.constant, left.property
    if target is not None and target.scope == "user" and type(fixed) in (int, float, str):
        name, holds = target.name, COMPARISONS[sign]
        fits = (str,) if type(fixed) is str else (int, float)

        def simple(view: MessageView) -> Truth:
            value = view.user.get(name)
            return holds(value, fixed) if type(value) in fits else compare(sign, value, fixed)

        return simple
    first, second = left.run, right.run
    return lambda view: compare(sign, first(view), second(view))


def _membership(left: Node, choices: Sequence[Node]) -> Callable[[MessageView], Truth]:
    run, runs = left.run, [node.run for node in choices]

    def search(view: MessageView, value: Value) -> Truth:
        answer: Truth = False
        for choice in runs:
            truth = compare("=", value, choice(view))
            if truth:
                return True
            if truth is None:
                answer = None
        return answer

    constants = [node.constant for node in choices]
    kinds = {kind_of(value) for value in constants}
    exact = all(type(value) in KINDS and type(value) is not decimal.Decimal for value in constants)
    if len(kinds) == 1 and exact:
        values, kind = frozenset(constants), kinds.pop()

        def look_up(view: MessageView) -> Truth:
            value = run(view)
            if value is None:
                return None
            if kind_of(value) != kind or type(value) is decimal.Decimal:
                return search(view, value)
            return value in values

        return look_up

    return lambda view: None if (value := run(view)) is None else search(view, value)
