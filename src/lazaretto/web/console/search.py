"""The search box: its text as words and conditions, and the queues and dead letters that they mean."""

from __future__ import annotations

import dataclasses
import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from lazaretto.engine.outcome.dead_letter_operations import DeadLetterFilter
from lazaretto.engine.outcome.dead_letter_pages import DeadLetterPage
from lazaretto.errors import InvalidOption, LazarettoError
from lazaretto.model.checks import shown, suggestion
from lazaretto.model.grants import Permission
from lazaretto.model.spans import seconds_of
from lazaretto.web.console.render import address
from lazaretto.web.console.visit import Page, Visit, moved_to

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

#: Queues in which letters are looked for at once.
_QUEUES, _LETTERS = 5, 20


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


async def show_search(visit: Visit) -> Page:
    """Show what a search finds: queues, then dead letters."""
    text, queue = (visit.text("q") or "").strip(), visit.text("queue")
    visit.require(Permission.SEE, queue)
    values: dict[str, Any] = {
        "text": text, "queue": queue, "queues": [], "found": [], "conditions": CONDITIONS, "wrong": None
    }  # fmt: skip
    try:
        search = search_of(text, datetime.now(UTC))
    except InvalidOption as error:
        return Page("search.html", "search", "Search", {**values, "wrong": str(error)})
    queue = queue or search.queue
    pages: list[tuple[str, DeadLetterPage]] = []
    queues = []
    if search.plain and queue is None and not search.conditions:
        queues = list((await visit.broker.status(limit=20, name_contains=search.plain)).queues)
    if text:
        for path in [queue] if queue else await _failing(visit):
            if not visit.may(Permission.READ_BODIES, path):
                continue
            if search.plain.isdigit() and len(search.plain) < 13 and not search.conditions:
                try:
                    letter = await visit.broker.dead_letter(path, int(search.plain))
                except LazarettoError:
                    continue
                if letter.resolution is None:
                    return moved_to(address(visit.base, f"/dead-letters/{search.plain}", queue=path))
                continue
            page = await _page(visit, path, search)
            if page.letters or page.next:
                pages.append((path, page))
    values |= {"queue": queue, "queues": queues, "found": pages}
    return Page("search.html", "search", "Search", values)


async def _page(visit: Visit, path: str, search: Search) -> DeadLetterPage:
    """Return the letters with an ID, else a page of those that a search means."""
    which = search.which
    if search.plain and not search.conditions:
        by_id = await visit.broker.dead_letter_page(path, DeadLetterFilter(message_id=search.plain), limit=1)
        if by_id.letters:
            return by_id
        which = DeadLetterFilter(text=search.plain)
    return await visit.broker.dead_letter_page(path, which, limit=_LETTERS, cursor=visit.text("cursor"))


async def _failing(visit: Visit) -> list[str]:
    status = await visit.broker.status(limit=50)
    return [one.path for one in status.queues if one.dead_letters][:_QUEUES]
