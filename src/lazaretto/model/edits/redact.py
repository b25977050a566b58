"""Takes out of a message what people may not read: of its body, its properties, and texts about it. Pure."""

from __future__ import annotations

import dataclasses
import decimal
import hashlib
import json
import math
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypeVar

import msgspec

from lazaretto.model.edits.json_text import Misfit, begin_of, decode_with, end_of, parts_of, read_json
from lazaretto.model.edits.spellings import Spellings
from lazaretto.model.filters.body import LONGEST_BODY
from lazaretto.model.headers import DEAD_LETTER_DESCRIPTION, DEAD_LETTER_REASON, Headers, encode_headers
from lazaretto.model.messages import Attempt, Message, StoredMessage
from lazaretto.model.redaction import OWN_REASONS, Form, RedactionRule, Target, names_redacted, read_field

#: What stands in place of a value.
MASK: Final = "«redacted»"
#: How deep a body is looked into; what is deeper is redacted.
_DEEPEST: Final = 60
#: Values of a message that are looked for in texts about it, characters of such a value, and of all.
_MOST_VALUES, _LONGEST_VALUE, _MOST_CHARACTERS = 1_000, 4_096, 1 << 18
#: Digits of a number that is looked for in several forms.
_LONGEST_NUMBER: Final = 40

#: Forms, each of which says less than those before it.
_SAYS_LESS: Final = (Form.HASH, Form.MASK, Form.DROP)

M = TypeVar("M", bound=StoredMessage)
Steps = tuple[tuple[bool, str], ...]


@dataclasses.dataclass(slots=True)
class Found:
    """Values taken out of a message. `all`: some are not known, so no text about it may be shown.

    `others`: further forms of the values.
    """

    values: list[str] = dataclasses.field(default_factory=list)
    all: bool = False
    others: list[str] = dataclasses.field(default_factory=list)
    _characters: int = 0
    _spellings: Spellings | None = None

    def add(self, value: str, *others: str) -> None:
        """Note a value."""
        self._characters += len(value)
        many = len(self.values) >= _MOST_VALUES or self._characters > _MOST_CHARACTERS
        if many or len(value) > _LONGEST_VALUE:
            self.all = True
        elif value.strip():
            self.values.append(value)
            self.others += others
            self._spellings = None

    def add_all(self, values: Iterable[Sequence[str] | None]) -> None:
        """Note values with their other forms; None: there are some that are not known."""
        for value in values:
            if value is None:
                self.all = True
            else:
                self.add(*value)
            if self.all:
                return

    def without(self, text: str) -> str:
        """Return a text with the mark in place of each value."""
        if self._spellings is None:
            self._spellings = Spellings((*self.values, *self.others))
        return self._spellings.without(text, MASK)


class Redaction:
    """The rules for one queue. `key`: that of hashes, the same in all of a store."""

    def __init__(self, rules: Iterable[RedactionRule] = (), key: bytes = b"") -> None:
        # Of several forms for one field the one that says least.
        ordered = sorted(rules, key=lambda rule: _SAYS_LESS.index(rule.form))
        self._set({read_field(rule.field): rule.form for rule in ordered}, key)

    def _set(self, targets: dict[Target, Form], key: bytes) -> None:
        self._targets, self._key = targets, key
        self._body: list[tuple[Steps, Form]] = self._of("body")
        self._user = self._of("user")
        self.hides_errors = any(target.where == "error" for target in self._targets)

    def _of(self, where: str) -> list[tuple[Steps, Form]]:
        return [(target.steps, form) for target, form in self._targets.items() if target.where == where]

    def __bool__(self) -> bool:
        return bool(self._targets)

    @property
    def takes_values(self) -> bool:
        """Whether it takes anything out of messages themselves."""
        return bool(self._body or self._user)

    @property
    def changes_size(self) -> bool:
        """Whether bodies are of another size than they were."""
        return bool(self._body)

    @property
    def targets(self) -> Sequence[Target]:
        """The fields that are redacted."""
        return tuple(self._targets)

    def is_within(self, other: Redaction) -> bool:
        """Return whether other rules hide all that these do, and show no more instead."""
        return all(
            field in other._targets and _SAYS_LESS.index(other._targets[field]) >= _SAYS_LESS.index(form)
            for field, form in self._targets.items()
        )

    def dropping(self) -> Redaction:
        """Return the same rules, each of which leaves its field out."""
        made = Redaction()
        made._set(dict.fromkeys(self._targets, Form.DROP), self._key)
        return made

    def names(self, where: str, path: Sequence[Any]) -> bool:
        """Return whether a field that a filter or an edit names is redacted, in part or as a whole."""
        return names_redacted(self._targets, where, path)

    # -- bodies ---------------------------------------------------------------------------------

    def body(self, body: bytes, found: Found | None = None) -> bytes:
        """Return a body without what is redacted.

        One that is no JSON, or has more than 1 MiB, is redacted as a whole by a rule about any part of it.
        """
        found = Found() if found is None else found
        if not self._body or not body:
            return body
        whole = next((form for steps, form in reversed(self._body) if not steps), None)
        try:
            if len(body) > LONGEST_BODY:
                raise Misfit("it is too long")
            text = read_json(body)
        except Misfit:
            found.all = True
            return self._instead(body, whole or self._body[-1][1], quoted=False)
        start = begin_of(text)
        if whole is not None:
            found.add_all(_scalars(text, start))
            return self._instead(body, whole, quoted=True)
        out: list[str] = []
        self._write(text, start, self._body, 0, out, found)
        return (text[:start] + "".join(out) + text[end_of(text, start) :]).encode()

    def _instead(self, value: bytes, form: Form, *, quoted: bool) -> bytes:
        if form is Form.DROP:
            return b""
        replacement = MASK if form is Form.MASK else self._hash(value)
        return (json.dumps(replacement, ensure_ascii=False) if quoted else replacement).encode()

    def _hash(self, value: bytes) -> str:
        return f"«hash {hashlib.blake2b(value, key=self._key, digest_size=6).hexdigest()}»"

    def _write(
        self,
        text: str,
        start: int,
        rules: list[tuple[Steps, Form]],
        depth: int,
        out: list[str],
        finding: Found,
    ) -> None:
        """Write the value that begins here, as far as it may be read, with its spaces as they are."""
        first = text[start]
        if first not in "{[" or not rules:
            out.append(text[start : end_of(text, start)])
            return
        if depth >= _DEEPEST:
            finding.add_all(_scalars(text, start))
            out.append(json.dumps(MASK, ensure_ascii=False))
            return
        parts = parts_of(text, start)
        if not parts:
            out.append(text[start : end_of(text, start)])
            return
        out.append(text[start : parts[0].begin])
        before = None
        for number, part in enumerate(parts):
            inner, form = (rules, None) if first == "[" else _below(rules, str(part.key).lower())
            if form is not None:
                finding.add_all(_scalars(text, part.start))
            if form is Form.DROP:
                continue
            if before is not None:
                out.append(text[parts[number - 1].end : part.begin])
            before = part
            out.append(text[part.begin : part.start])
            if form is None:
                self._write(text, part.start, inner, depth + 1, out, finding)
            else:
                value = _plain_bytes(text[part.start : part.end])
                out.append(self._instead(value, form, quoted=True).decode())
        out.append(text[parts[-1].end : end_of(text, start)])

    # -- properties -----------------------------------------------------------------------------

    def headers(self, headers: Headers, found: Found | None = None) -> Headers:
        """Return headers without the properties that are redacted.

        What an AMQP client sent besides them is left out as a whole: properties may be in it too.
        """
        found = Found() if found is None else found
        if not self._user:
            return headers
        if headers.amqp is not None:
            found.all = found.all or self._names_in(headers.amqp, headers.properties)
            headers = msgspec.structs.replace(headers, amqp=None)
        if not headers.properties:
            return headers
        kept: dict[str, Any] = {}
        for name, value in headers.properties.items():
            form = self._form_of(name)
            if form is None:
                kept[name] = value
                continue
            texts = [*_texts_of(value)]
            if texts:
                found.add(*texts)
                found.add_all(_scalars_within(texts[0], 0))
            if form is not Form.DROP:
                kept[name] = MASK if form is Form.MASK else self._hash((texts or [str(value)])[0].encode())
        types = {
            name: code
            for name, code in headers.types.items()
            if kept.get(name) is headers.properties.get(name)
        }
        return msgspec.structs.replace(headers, properties=kept, types=types)

    def _names_in(self, encoded: bytes, properties: Mapping[str, Any]) -> bool:
        """Return whether a redacted property may be among encoded ones."""
        text, names = encoded.lower(), {name.lower() for name in properties}
        return any(
            not steps or (steps[0][1] not in names and steps[0][1].encode() in text)
            for steps, _ in self._user
        )

    def _form_of(self, name: str) -> Form | None:
        """Return what becomes of a property; None: it may be read."""
        lower = name.lower()
        return next((f for steps, f in reversed(self._user) if not steps or steps[0][1] == lower), None)

    # -- texts ----------------------------------------------------------------------------------

    def text(self, text: str | None, found: Found | None) -> str | None:
        """Return a text about a message without what is redacted of the message.

        `found`: what was taken out of it; None: the message is not at hand, so nothing of the text is told.
        """
        return MASK if text and self.hides_errors else self._without(text, found)

    def reason(self, reason: str | None, found: Found | None) -> str | None:
        """Return a reason without what is redacted of its message. Those of the system tell nothing of it."""
        return reason if reason in OWN_REASONS else self._without(reason, found)

    def _without(self, text: str | None, finding: Found | None) -> str | None:
        if not text or not self.takes_values:
            return text
        if finding is None or finding.all:
            return MASK
        return finding.without(text)

    def attempts(self, attempts: Iterable[Attempt], found: Found | None) -> tuple[Attempt, ...]:
        """Return attempts without what is redacted of their message."""
        return tuple(
            dataclasses.replace(
                one, error_message=self.text(one.error_message, found), stack=self.text(one.stack, found)
            )
            for one in attempts
        )

    # -- messages -------------------------------------------------------------------------------

    def message(self, message: M, found: Found | None = None) -> M:
        """Return a message without what is redacted, also of what it says about itself."""
        if not self:
            return message
        found = Found() if found is None else found
        body, headers = self.body(message.body, found), self.headers(message.headers, found)
        named = (DEAD_LETTER_REASON, DEAD_LETTER_DESCRIPTION)
        properties, nack = dict(headers.properties), headers.negative_acknowledgement
        for name in named:
            if isinstance(properties.get(name), str):
                take = self.reason if name == DEAD_LETTER_REASON else self.text
                properties[name] = take(properties[name], found)
        if nack is not None:
            nack = msgspec.structs.replace(nack, text=self.text(nack.text, found) or "")
        headers = msgspec.structs.replace(
            headers, properties=properties, negative_acknowledgement=nack, amqp=None
        )
        changes: dict[str, Any] = {
            "body": body, "encoded_headers": encode_headers(headers), "decoded": headers,
            "recorded_reason": self.reason(message.recorded_reason, found),
            "recorded_description": self.text(message.recorded_description, found),
        }  # fmt: skip
        if hasattr(message, "error"):
            changes["error"] = self.text(message.error, found)
        return msgspec.structs.replace(message, **changes)

    def made(self, message: Message) -> Message:
        """Return a message that is to be sent without what is redacted."""
        properties = self.headers(Headers(properties=dict(message.properties or {}))).properties
        return msgspec.structs.replace(
            message, body=self.body(message.body), properties=properties or None, amqp=None
        )


def _below(rules: list[tuple[Steps, Form]], name: str) -> tuple[list[tuple[Steps, Form]], Form | None]:
    """Return the rules for what is below a member, and the form if a rule names the member itself."""
    inner: list[tuple[Steps, Form]] = []
    form_here: Form | None = None
    for steps, form in rules:
        anywhere, step = steps[0]
        if anywhere:
            inner.append((steps, form))
        if step == name:
            if len(steps) == 1:
                form_here = form
            else:
                inner.append((steps[1:], form))
    return inner, form_here


def _plain_bytes(value: str) -> bytes:
    """Return what is hashed: of a string its characters, so that it has one hash however it is escaped."""
    plain = json.loads(value) if value[0] == '"' else value
    return str(plain).encode("utf-8", "surrogatepass")


def _scalars(text: str, start: int, depth: int = 0) -> Iterator[Sequence[str] | None]:
    """Yield the names, strings and numbers in the value that begins here, each with other forms of it.

    None: there are some too deep.
    """
    if depth >= _DEEPEST:
        yield None
    elif text[start] in "{[":
        for part in parts_of(text, start):
            if text[start] == "{":
                yield [str(part.key)]
            yield from _scalars(text, part.start, depth + 1)
    elif text[start] == '"':
        value = text[start : end_of(text, start)]
        plain = json.loads(value)
        yield plain, value[1:-1]
        yield from _scalars_within(plain, depth)
    elif (value := text[start : end_of(text, start)]) not in ("true", "false", "null"):
        yield value, *_numbers_like(value)


def _scalars_within(text: str, depth: int) -> Iterator[Sequence[str] | None]:
    """Yield what is in a string that is JSON itself."""
    if text.lstrip()[:1] in ("{", "[", '"'):
        try:
            decode_with(text, str)
        except Misfit:
            return
        yield from _scalars(text, begin_of(text), depth + 1)


def _numbers_like(number: str) -> Iterator[str]:
    """Yield a number of JSON as programs print it."""
    exact = decimal.Decimal(number)
    yield str(exact)
    if len(number) > _LONGEST_NUMBER or abs(exact.adjusted()) > _LONGEST_NUMBER:
        return
    plain = json.loads(number)
    yield str(plain)
    yield str(float(plain))
    for value in (exact, exact.normalize()):
        yield f"{value:f}"
        yield f"{value:,f}"
    yield f"{exact:.2f}"


def _texts_of(value: object) -> Iterator[str]:
    """Yield the value of a property as programs print it."""
    if isinstance(value, bytes):
        yield value.decode("utf-8", "replace")
        # Of what is no UTF-8, Python prints each byte as the character of that number.
        yield value.decode("latin-1")
        yield value.hex()
    elif isinstance(value, datetime):
        yield str(value)
        yield from (
            value.isoformat(),
            repr(value),
            f"{value:%Y-%m-%dT%H:%M:%S}",
            f"{value:%Y-%m-%d %H:%M:%S}",
        )
    elif (
        isinstance(value, float | int | decimal.Decimal)
        and not isinstance(value, bool)
        and math.isfinite(value)
    ):
        yield str(value)
        yield from _numbers_like(str(value))
    elif value is not None and not isinstance(value, bool):
        yield str(value)
        if isinstance(value, uuid.UUID):
            yield value.hex
