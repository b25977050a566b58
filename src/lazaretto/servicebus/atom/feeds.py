"""Answers as ATOM has them: entries, feeds of entries, errors. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

from lazaretto.servicebus.atom.markup import element, written
from lazaretto.servicebus.atom.refusals import Refusal, detail_of

_ATOM: Final = "http://www.w3.org/2005/Atom"
SERVICE_BUS: Final = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
INSTANCE: Final = "http://www.w3.org/2001/XMLSchema-instance"


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """An entity as an answer has it. `address`: its URL; `content`: its description, in XML."""

    address: str
    title: str
    content: str
    created: datetime
    updated: datetime


def moment(when: datetime) -> str:
    """Return a time as answers have it."""
    return when.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def description(kind: str, parts: Iterable[str]) -> str:
    """Return a description of some kind, of parts in XML."""
    return f'<{kind} xmlns="{SERVICE_BUS}" xmlns:i="{INSTANCE}">{"".join(parts)}</{kind}>'


def entry(found: Entry) -> str:
    """Return an entry in XML."""
    return f'<entry xmlns="{_ATOM}">{_inner(found)}</entry>'


def _inner(entry: Entry) -> str:
    return (
        f'<id>{written(entry.address)}</id><title type="text">{written(entry.title)}</title>'
        f"<published>{moment(entry.created)}</published><updated>{moment(entry.updated)}</updated>"
        f'<link rel="self" href="{written(entry.address)}"/>'
        f'<content type="application/xml">{entry.content}</content>'
    )


def feed(title: str, address: str, entries: Iterable[Entry], now: datetime, following: str = "") -> str:
    """Return a list of entries in XML. `following`: where the next page is; "": there is none."""
    link = f'<link rel="next" href="{written(following)}"/>' if following else ""
    listed = "".join(f"<entry>{_inner(one)}</entry>" for one in entries)
    return (
        f'<feed xmlns="{_ATOM}"><title type="text">{written(title)}</title><id>{written(address)}</id>'
        f'<updated>{moment(now)}</updated><link rel="self" href="{written(address)}"/>{link}{listed}</feed>'
    )


def error(refusal: Refusal) -> str:
    """Return an error in XML."""
    code = element("Code", str(refusal.status))
    return f"<Error>{code}{element('Detail', detail_of(refusal))}</Error>"
