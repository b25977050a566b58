"""What requests are about, their XML, read within limits, and answers as ATOM has them. Pure."""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, Final
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat
from xml.sax.saxutils import escape

from lazaretto import errors
from lazaretto.servicebus.answers import condition_of, description_of, status_of

#: Which of Service Bus's subcodes goes with a status, and what it says.
_SUBCODES: Final = {
    400: "SubCode=40000. Bad Request.",
    404: "SubCode=40400. Not Found. The Operation doesn't exist.",
    409: "SubCode=40900. Conflict.",
}

#: Elements within elements: entries of Service Bus have less than ten.
_DEEPEST: Final = 32
#: The name of the attribute that says of which kind a filter or a value is.
_TYPE: Final = "http://www.w3.org/2001/XMLSchema-instance type"
#: What no XML can have, however it is written.
_IMPOSSIBLE: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

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


class Refusal(Exception):
    """A request is not done: the status, and what the client is told."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


def refusal_of(error: BaseException, sees: Callable[[str], bool]) -> Refusal:
    """Return how a client is told of an error. `sees`: which other entities it may be told of."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, errors.InvalidPath):
        return Refusal(400, str(error))
    return Refusal(status_of(condition_of(error)), description_of(error, sees))


def detail_of(refusal: Refusal) -> str:
    """Return what stands in an error's body."""
    subcode = _SUBCODES.get(refusal.status)
    return refusal.detail if subcode is None else f"{subcode} {refusal.detail}"


def parse(body: bytes) -> Element:
    """Return the root of a document, with names without their namespaces. Raises Refusal.

    A document with a DTD is refused: entities in it can name files, and can be of any size.
    """
    builder, depth = TreeBuilder(), 0
    parser = expat.ParserCreate(namespace_separator=" ")

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal depth
        depth += 1
        if depth > _DEEPEST:
            raise Refusal(400, f"expected at most {_DEEPEST} elements within one another, got more")
        kind = attributes.get(_TYPE)
        builder.start(_local(name), {} if kind is None else {"type": kind.rpartition(":")[2]})

    def end(name: str) -> None:
        nonlocal depth
        depth -= 1
        builder.end(_local(name))

    def refuse(*_: Any) -> None:
        raise Refusal(400, "expected an entry without a DTD, got one")

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = builder.data
    parser.StartDoctypeDeclHandler = refuse
    parser.EntityDeclHandler = refuse
    try:
        parser.Parse(body, True)
    except (expat.ExpatError, ValueError, LookupError) as error:
        raise Refusal(400, f"expected an entry in XML: {error}") from None
    root: Element = builder.close()
    return root


def _local(name: str) -> str:
    return name.rpartition(" ")[2]


def text_of(element: Element | None) -> str:
    """Return the text of an element that may be missing, without the space around it."""
    return "" if element is None else (element.text or "").strip()


def written(text: str) -> str:
    """Return text as it stands in XML, also within an attribute's double quotes."""
    return escape(_IMPOSSIBLE.sub("\N{REPLACEMENT CHARACTER}", text), {'"': "&quot;", "\r": "&#13;"})


def element(name: str, text: str) -> str:
    """Return an element that holds text."""
    return f"<{name}>{written(text)}</{name}>"


def moment(when: datetime) -> str:
    """Return a time as answers have it."""
    return when.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def description(kind: str, parts: Iterable[str]) -> str:
    """Return a description of some kind, of parts in XML."""
    return f'<{kind} xmlns="{SERVICE_BUS}" xmlns:i="{INSTANCE}">{"".join(parts)}</{kind}>'


def entry(one: Entry) -> str:
    """Return an entry in XML."""
    return f'<entry xmlns="{_ATOM}">{_inner(one)}</entry>'


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


class Kind(enum.Enum):
    """A kind of resource."""

    NAMESPACE = "namespace"
    QUEUES = "queues"
    TOPICS = "topics"
    ENTITY = "entity"
    SUBSCRIPTIONS = "subscriptions"
    SUBSCRIPTION = "subscription"
    RULES = "rules"
    RULE = "rule"


@dataclasses.dataclass(frozen=True, slots=True)
class Resource:
    """The resource of a path. `entity`: a queue's or a topic's path; it does not say which."""

    kind: Kind
    entity: str = ""
    subscription: str = ""
    rule: str = ""

    @property
    def path(self) -> str:
        """The entity that one needs a right on."""
        return f"{self.entity}/Subscriptions/{self.subscription}" if self.subscription else self.entity


def resource_of(path: str) -> Resource:
    """Return what a path names, decoded and without a host. Raises Refusal."""
    parts = path.strip("/").split("/")
    words = [part.lower() for part in parts]
    if words == ["$namespaceinfo"]:
        return Resource(Kind.NAMESPACE)
    if words in (["$resources", "queues"], ["$resources", "topics"]):
        return Resource(Kind(words[1]))
    if not all(parts):
        raise Refusal(400, "expected the name of an entity in the path, got none")
    if "subscriptions" not in words[1:]:
        return Resource(Kind.ENTITY, "/".join(parts))
    at = words.index("subscriptions", 1)
    topic, below = "/".join(parts[:at]), parts[at + 1 :]
    if not below:
        return Resource(Kind.SUBSCRIPTIONS, topic)
    if len(below) == 1:
        return Resource(Kind.SUBSCRIPTION, topic, below[0])
    if words[at + 2] != "rules" or len(below) > 3:
        raise Refusal(400, "expected a subscription or its rules below a topic, got another path")
    if len(below) == 2:
        return Resource(Kind.RULES, topic, below[0])
    return Resource(Kind.RULE, topic, below[0], below[2])
