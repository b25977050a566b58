"""The differences between a message and its edited form, as lines that people read."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterator

from lazaretto.model.edits.json_text import Misfit, begin_of, end_of, parts_of, read_json, told
from lazaretto.model.filters.body import Step
from lazaretto.model.messages import Message, StoredMessage, as_message

#: Characters of one line.
_WIDTH = 160
#: How deep JSON is compared part by part.
_DEEPEST = 60


def differences(before: Message | StoredMessage, after: Message, limit: int = 20) -> list[str]:
    """Return the first differences: lines that begin with "- " for what was, and "+ " for what is new."""
    old = as_message(before)
    lines = list(itertools.islice(_lines(old, after), limit + 1))
    return lines if len(lines) <= limit else [*lines[:limit], "  …"]


def _lines(old: Message, new: Message) -> Iterator[str]:
    for name in Message.__struct_fields__:
        if name not in ("body", "properties", "amqp"):
            yield from _changed(name, _shown(getattr(old, name)), _shown(getattr(new, name)))
    if old.amqp != new.amqp:
        was, is_ = (None if one.amqp is None else f"{len(one.amqp)} bytes" for one in (old, new))
        # Equal in size, they would look as if nothing had changed.
        yield from _changed("amqp", was, None)
        yield from _changed("amqp", None, is_)
    olds, news = old.properties or {}, new.properties or {}
    for name in dict.fromkeys([*olds, *news]):
        was, is_ = (_shown(p[name]) if name in p else None for p in (olds, news))
        yield from _changed(f"property {name}", was, is_)
    if old.body != new.body:
        yield from _bodies(old.body, new.body)


def _shown(value: object) -> str | None:
    return None if value is None else value if isinstance(value, str) else str(value)


def _changed(what: str, was: str | None, is_: str | None) -> Iterator[str]:
    if was != is_:
        if was is not None:
            yield _line("-", what, was)
        if is_ is not None:
            yield _line("+", what, is_)


def _line(sign: str, what: str, value: str) -> str:
    text = f"{sign} {what}: {value}"
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 1]}…"


def _bodies(old: bytes, new: bytes) -> Iterator[str]:
    try:
        before, after = read_json(old), read_json(new)
    except Misfit:
        yield from _texts(old, new)
        return
    differences = _values(before, begin_of(before), after, begin_of(after), ())
    first = next(differences, None)
    if first is None:
        yield "~ body: only its spaces or the order of its keys"
        return
    yield first
    yield from differences


def _texts(old: bytes, new: bytes) -> Iterator[str]:
    was, is_ = (body.decode("utf-8", "backslashreplace").splitlines() for body in (old, new))
    if max(len(was), len(is_)) > 2_000:
        yield f"~ body: {len(old)} bytes become {len(new)}"
        return
    for line in itertools.islice(difflib.unified_diff(was, is_, lineterm="", n=0), 2, None):
        if not line.startswith("@@"):
            yield _line(line[0], "body", line[1:])


def _values(a: str, at: int, b: str, bt: int, path: tuple[Step, ...]) -> Iterator[str]:
    was, is_ = a[at : end_of(a, at)], b[bt : end_of(b, bt)]
    if was == is_:
        return
    if a[at] != b[bt] or a[at] not in "{[" or len(path) >= _DEEPEST:
        yield from _changed(told(path), was, is_)
        return
    olds = {part.key: part.start for part in parts_of(a, at)}
    news = {part.key: part.start for part in parts_of(b, bt)}
    for key in dict.fromkeys([*olds, *news]):
        here = (*path, key)
        if key not in news:
            yield _line("-", told(here), a[olds[key] : end_of(a, olds[key])])
        elif key not in olds:
            yield _line("+", told(here), b[news[key] : end_of(b, news[key])])
        else:
            yield from _values(a, olds[key], b, news[key], here)
