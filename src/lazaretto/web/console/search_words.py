"""Text typed into the search box: words to look for, and conditions as `queue:shop/orders`. Pure."""

from __future__ import annotations

import dataclasses
import re
from datetime import datetime, timedelta
from typing import Any, Final

from lazaretto.engine.outcome.dead_letter_operations import DeadLetterFilter
from lazaretto.errors import InvalidOption
from lazaretto.model.checks import shown, suggestion
from lazaretto.model.records.times import seconds_of

#: Conditions by their names, with what they are for.
CONDITIONS: Final = {
    "queue": "a queue: queue:shop/orders",
    "reason": "a reason: reason:MaxDeliveryCountExceeded",
    "error": "a type of error: error:ValueError",
    "cause": "a cause by its number: cause:3",
    "since": "no older than: since:2h, or 30m, 7d",
    "session": "a session: session:42",
    "text": "a text in the body or error: text:\"no airport\"",
    "prop.NAME": "a property: prop.version=3 is a number, prop.version=\"3\" a text",
    "body.NAME": "a field of the body: body.to.country=CH",
}  # fmt: skip
_NAMES: Final = {"queue", "reason", "error", "cause", "since", "session", "text"}
_WORD: Final = re.compile(r'((?:prop|body)\.[\w.]+=|[A-Za-z]+:)?(?:"((?:[^"]|"")*)"|(\S+))')
#: How far back a search may look, in seconds.
_LONGEST: Final = 100 * 365 * 86_400
_NUMBER: Final = re.compile(r"-?\d{1,18}(\.\d{1,18})?")


@dataclasses.dataclass(frozen=True, slots=True)
class Search:
    """A search. `plain`: words without a condition, as they were typed.

    `conditions`: whether anything else was asked for than plain words and a queue.
    """

    plain: str
    queue: str | None
    which: DeadLetterFilter
    conditions: bool


def search_of(typed: str, now: datetime) -> Search:
    """Return what was typed as a search. Raises InvalidOption for a condition that there is not."""
    words: list[str] = []
    named: dict[str, Any] = {}
    fields: list[str] = []
    for match in _WORD.finditer(typed):
        name, quoted, bare = match.groups()
        value = bare if quoted is None else quoted.replace('""', '"')
        if name is None:
            words.append(value)
        elif name.endswith("="):
            fields.append(_condition(name[:-1], value, quoted is not None))
        elif name[:-1].lower() in _NAMES:
            key = name[:-1].lower()
            if key in named:
                raise InvalidOption(f"expected {key}: once")
            named[key] = value
        elif quoted is None and (value.startswith("//") or name == "urn:"):
            # An address, not a condition.
            words.append(match[0])
        else:
            raise InvalidOption(f"unknown condition {shown(name)}{suggestion(name[:-1], sorted(_NAMES))}")
    plain, queue = " ".join(words), named.pop("queue", None)
    if "session" in named:
        fields.append(f"sys.session_id = {_text(named['session'])}")
    which = DeadLetterFilter(
        reason=named.get("reason"),
        error_type=named.get("error"),
        since=None if "since" not in named else now - _span(named["since"]),
        text=named.get("text") or (plain or None if named or fields else None),
        cause=None if "cause" not in named else _whole(named["cause"]),
        where=" AND ".join(fields) or None,
    )
    return Search(plain, queue, which, bool(named or fields))


def _condition(name: str, value: str, quoted: bool) -> str:
    scope, _, path = name.partition(".")
    place = f"{'user' if scope == 'prop' else 'body'}.{path}"
    if not quoted and _NUMBER.fullmatch(value):
        return f"{place} = {value}"
    if not quoted and value.lower() in ("true", "false"):
        return f"{place} = {value.upper()}"
    return f"{place} = {_text(value)}"


def _text(value: str) -> str:
    quoted = value.replace("'", "''")
    return f"'{quoted}'"


def _span(value: str) -> timedelta:
    seconds = seconds_of(value)
    if seconds is None or not 0 <= seconds <= _LONGEST:
        raise InvalidOption(f"expected since: with a span of time, such as 2h, got {shown(value)}")
    return timedelta(seconds=seconds)


def _whole(value: str) -> int:
    if not (value.isascii() and value.isdigit() and len(value) < 10):
        raise InvalidOption(f"expected cause: with a number, got {shown(value)}")
    return int(value)
