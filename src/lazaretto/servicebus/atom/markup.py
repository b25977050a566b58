"""XML of requests, read within limits and without what a DTD brings; texts for answers. Pure."""

from __future__ import annotations

import re
from typing import Any, Final
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat
from xml.sax.saxutils import escape

from lazaretto.servicebus.atom.refusals import Refusal

#: Elements within elements: entries of Service Bus have less than ten.
_DEEPEST: Final = 32
#: The name of the attribute that says of which kind a filter or a value is.
_TYPE: Final = "http://www.w3.org/2001/XMLSchema-instance type"
#: What no XML can have, however it is written.
_IMPOSSIBLE: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


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
