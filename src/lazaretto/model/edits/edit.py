"""An edit: what is to be changed of messages, as one value that can be kept, told and compared."""

from __future__ import annotations

import base64
import dataclasses
import enum
import functools
import hashlib
import re
from collections.abc import Callable, Sequence

import msgspec

from lazaretto.errors import FilterError, InvalidOption
from lazaretto.model.checks import is_unicode, shown
from lazaretto.model.edits.json_text import Misfit, put, quote, read_json, remove
from lazaretto.model.edits.json_text import find as find_value
from lazaretto.model.edits.patches import merge, patch_text, read_merge, read_operations
from lazaretto.model.filters.rules import change, sql
from lazaretto.model.filters.view import SETTABLE, Action, MessageView
from lazaretto.model.messages import Message, StoredMessage, as_message

#: Characters of an edit.
LONGEST_EDIT = 262_144

#: How the bytes of a whole body begin.
_DATA = "data:;base64,"
_FUNCTION = re.compile(r"\s*[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*(?:\.[^\W\d]\w*)*\s*\Z")


class EditKind(enum.StrEnum):
    """How an edit is written: an action in SQL, a JSON patch of two kinds, a whole body, or a function."""

    ACTION = "action"
    MERGE_PATCH = "merge patch"
    JSON_PATCH = "JSON patch"
    BODY = "body"
    FUNCTION = "function"


@dataclasses.dataclass(frozen=True, slots=True)
class Changed:
    """The result of an edit."""

    message: Message


@dataclasses.dataclass(frozen=True, slots=True)
class Unchanged:
    """An edit leaves a message as it is."""


@dataclasses.dataclass(frozen=True, slots=True)
class Refused:
    """An edit cannot be applied to a message, and why."""

    why: str


Outcome = Changed | Unchanged | Refused


@dataclasses.dataclass(frozen=True, slots=True)
class Edit:
    """A change of messages, as text. Made by `Edit.parse`.

    `source`: of a function, a hash of the module that it stands in. An edit changes nothing that it does not
    name: other numbers and texts of a JSON body stay as they were written.
    """

    kind: EditKind
    text: str
    source: str | None = None

    @classmethod
    def parse(cls, text: object) -> Edit:
        """Return the edit that a text describes. Raises InvalidOption, FilterSyntaxError.

        `{…}` is a JSON merge patch, `[…]` a JSON Patch, `data:;base64,…` the bytes of a new body,
        `module:function` a Python function that gets a DeadLetter and returns a Message or None; anything
        else is an action, such as `SET body.region = 'eu'; REMOVE body.draft`, or `SET body = 'a text'`.
        """
        if not isinstance(text, str) or not 0 < len(text.strip()) <= LONGEST_EDIT or not is_unicode(text):
            raise InvalidOption(f"expected an edit of 1 to {LONGEST_EDIT} characters, got {shown(text)}")
        made = cls(_kind_of(text), text)
        try:
            _compiled(made)
        except Misfit as error:
            raise InvalidOption(f"wrong {made.kind}: {error}") from None
        return made

    @property
    def digest(self) -> str:
        """A hash of what the edit does, the same everywhere; a function's changes with its module."""
        parts = (self.kind.value, self.text, self.source)
        return hashlib.blake2b(msgspec.json.encode(parts), digest_size=16).hexdigest()

    def describe(self) -> str:
        """Return the edit in one line."""
        text = " ".join(self.text.split())
        return f"{self.kind}: {text if len(text) <= 200 else text[:199] + '…'}"

    def apply(self, message: StoredMessage) -> Outcome:
        """Return what becomes of a message. A function is called by an `Editor`, in a sandbox."""
        compiled = _compiled(self)
        if compiled is None:
            raise InvalidOption("expected an action or a patch, got a function")
        before = as_message(message)
        try:
            after = compiled.change(before, message)
        except (Misfit, FilterError) as error:
            return Refused(str(error))
        return Unchanged() if after == before else Changed(after)


def _kind_of(text: str) -> EditKind:
    first = text.lstrip()[0]
    if first in "{[":
        return EditKind.MERGE_PATCH if first == "{" else EditKind.JSON_PATCH
    if text.lstrip().startswith(_DATA):
        return EditKind.BODY
    return EditKind.FUNCTION if _FUNCTION.match(text) else EditKind.ACTION


def whole_body(body: bytes) -> str:
    """Return the edit that replaces a body: as text if it is one, else as its bytes."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        text = ""
    # A NUL, or a carriage return that forms leave out, would be lost on the way.
    if not text or "\0" in text or "\r" in text:
        return f"{_DATA}{base64.b64encode(body).decode()}"
    return "SET body = '{}'".format(text.replace("'", "''"))


@dataclasses.dataclass(frozen=True, slots=True)
class _Patch:
    apply: Callable[[str], str]

    def change(self, message: Message, stored: StoredMessage) -> Message:
        try:
            body = read_json(message.body)
        except Misfit as error:
            raise Misfit(f"the body: {error}") from None
        return msgspec.structs.replace(message, body=self.apply(body).encode())


@dataclasses.dataclass(frozen=True, slots=True)
class _Body:
    body: bytes

    def change(self, message: Message, stored: StoredMessage) -> Message:
        return msgspec.structs.replace(message, body=self.body)


@dataclasses.dataclass(frozen=True, slots=True)
class _Action:
    actions: Sequence[Action]

    def change(self, message: Message, stored: StoredMessage) -> Message:
        headers = msgspec.structs.replace(stored.headers, properties=dict(message.properties or {}))
        body = message.body
        view = _view_of(MessageView(headers, message.message_id), stored, body)
        for action in self.actions:
            if action.property.scope == "body":
                body = _changed_body(action, view, body)
                view = _view_of(view, stored, body)
            else:
                view = change(action, view)
        fields = {name: view.system(name) for name in SETTABLE}
        properties = view.headers.properties or message.properties
        if not view.headers.properties and message.properties:
            properties = {}
        return msgspec.structs.replace(message, body=body, properties=properties, **fields)


@functools.lru_cache(64)
def _compiled(edit: Edit) -> _Action | _Patch | _Body | None:
    """Return what changes messages: made once, not for each of them. None: a function does."""
    match edit.kind:
        case EditKind.FUNCTION:
            return None
        case EditKind.BODY:
            return _Body(_bytes_of(edit.text.strip().removeprefix(_DATA)))
        case EditKind.ACTION:
            return _Action(sql().compile_action(edit.text, edits=True))
        case EditKind.MERGE_PATCH:
            steps = read_merge(read_json(edit.text.encode()))
            return _Patch(lambda body: merge(body, steps))
        case EditKind.JSON_PATCH:
            operations = read_operations(read_json(edit.text.encode()))
            return _Patch(lambda body: patch_text(body, operations))


def _bytes_of(text: str) -> bytes:
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except ValueError as error:
        raise Misfit(f"expected base64 behind {_DATA}, got {shown(text)}: {error}") from None


def _view_of(view: MessageView, stored: StoredMessage, body: bytes) -> MessageView:
    return MessageView(
        view.headers, view.message_id, enqueued=stored.enqueued, size=len(body), body=lambda: body
    )


def _changed_body(action: Action, view: MessageView, body: bytes) -> bytes:
    target = action.property
    if not target.path:
        return _whole_text(action, view, body)
    try:
        text = read_json(body)
    except Misfit as error:
        raise Misfit(f"the body: {error}") from None
    if action.value is None:
        return remove(text, target.path).encode()
    source = action.source
    if source is not None and source.scope == "body":
        where = find_value(text, source.path)
        if where is None:
            raise Misfit(f"{source.written} is not there")
        # As it is written there, since 1.10 would come back from a float as 1.1.
        return put(text, target.path, text[slice(*where)]).encode()
    value = action.value(view)
    if value is None:
        raise Misfit(f"the value for {target.written} is unknown: a part that it needs is not there")
    if isinstance(value, bytes):
        raise Misfit(f"{target.written} cannot hold bytes")
    plain = isinstance(value, str | int | float | bool | list | dict)
    return put(text, target.path, quote(value if plain else _text_of(value))).encode()


def _whole_text(action: Action, view: MessageView, body: bytes) -> bytes:
    """Return what an action makes of a body as a whole, which need not be JSON."""
    assert action.value is not None
    source = action.source
    if source is not None and source.scope == "body":
        text = read_json(body)
        where = find_value(text, source.path)
        if where is None:
            raise Misfit(f"{source.written} is not there")
        return text[slice(*where)].encode()
    value = action.value(view)
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise Misfit(f"the whole body can be a text or bytes, got {shown(value)}")
    return value.encode()


def _text_of(value: object) -> str:
    iso = getattr(value, "isoformat", None)
    return str(iso() if iso is not None else value)
