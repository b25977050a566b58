"""Rights of people: grants, tokens, four eyes, and what is redacted."""

from __future__ import annotations

from msgspec import Struct

from lazaretto.engine.access import Person, Token
from lazaretto.engine.four_eyes import FourEyesWish
from lazaretto.model.grants import Permission
from lazaretto.model.redaction import RedactionRule
from lazaretto.web.routes import Call, Query, route


class OfPerson(Query, frozen=True):
    person: str | None = None


class FourEyes(Struct):
    """The most letters that one person may send or delete in an hour; null: any number.

    `asked`: the wish to let one person send more that waits for a second person.
    """

    letters: int | None
    asked: FourEyesWish | None


@route("GET", "/access/people", Permission.ADMINISTER)
async def list_people(call: Call) -> list[Person]:
    """List the people and groups that were granted something."""
    return await call.broker.people()


@route("GET", "/access/tokens", Permission.ADMINISTER)
async def list_tokens(call: Call, query: OfPerson) -> list[Token]:
    """List the tokens of a person or of all, the latest first."""
    return await call.broker.tokens(query.person)


@route("GET", "/access/sessions", Permission.ADMINISTER)
async def list_browser_sessions(call: Call, query: OfPerson) -> list[Token]:
    """List the sessions of a person or of all in browsers, the latest first."""
    return await call.broker.browser_sessions(query.person)


@route("GET", "/access/four-eyes", Permission.SEE)
async def show_four_eyes(call: Call) -> FourEyes:
    """Show how many letters one person may send or delete, and who asks for more."""
    return FourEyes(await call.broker.four_eyes(), await call.broker.four_eyes_wish())


@route("GET", "/redaction", Permission.SEE)
async def list_redaction(call: Call) -> list[RedactionRule]:
    """List the fields of messages that are redacted for whoever may not read them."""
    return await call.broker.redaction()
