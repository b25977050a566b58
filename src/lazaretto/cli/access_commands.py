"""`lazaretto access` and `redaction`: who may do what, and which fields of messages people may not read."""

from __future__ import annotations

import urllib.parse
from typing import Annotated, Any

from msgspec import UNSET

from lazaretto.cli import output
from lazaretto.cli.call import ChangeOptions, ListingOptions, PatternOption
from lazaretto.cli.command import Group, argument, option
from lazaretto.cli.derived import add_change
from lazaretto.cli.output import Columns
from lazaretto.cli.parse import NOTHING, optional_count, optional_future
from lazaretto.commands import (
    CreateLink,
    CreateToken,
    EndSessions,
    GrantRole,
    RemovePerson,
    RemoveRedaction,
    RevokeToken,
    SetFourEyes,
    SetRedaction,
    WithdrawRole,
)
from lazaretto.model.grants import Role
from lazaretto.model.redaction import Form

commands = Group()
access = commands.group("access")
people = access.group("person", "List people and groups, and remove them.")
tokens = access.group("token", "Create, list and revoke tokens.")
sessions = access.group("session", "List and end the sessions of browsers.")

PersonArgument = Annotated[str, argument("Name of the person; of a group: group:NAME.")]
RoleArgument = Annotated[Role, argument("Role.", "ROLE")]
OfPersonOption = Annotated[str | None, option("Only of this person.")]
_USE: Columns = {"created": "created", "expires": "expires", "last used": "seen"}
_TOKENS: Columns = {"id": "id", "person": "person", "for": "label", **_USE}
_SESSIONS: Columns = {"id": "id", "person": "person", "address": "label", **_USE}
_PEOPLE: Columns = {"person": "name", "roles": lambda person: _granted(person), "since": "created"}
_RULES: Columns = {"queue": "queue", "field": "field", "form": "form"}

_ROLE = {"person": PersonArgument, "role": RoleArgument, "queue": PatternOption}

redaction = commands.group("redaction")

FieldArgument = Annotated[str, argument("Field: body.card.number, body..password, user.name, error, body.")]


def _granted(person: Any) -> str:
    return ", ".join(
        f"{grant.role.value}" + ("" if grant.pattern == "*" else f" on {grant.pattern}")
        for grant in person.grants
    )


add_change(
    access,
    "grant",
    GrantRole,
    "granted {role} on {queue} to {person}",
    text="Grant a role to a person or group.\n\n"
    "Roles: viewer sees names, counts, causes, errors; reader also bodies; inspector also redacted fields; "
    "client sends and receives; operator looks after dead letters, sessions, breakers; admin may do "
    "everything.",
    parameters=_ROLE,
)


add_change(
    access,
    "withdraw",
    WithdrawRole,
    "withdrew {role} on {queue} from {person}",
    parameters=_ROLE,
)


@access.command("link")
def link(
    call: ChangeOptions,
    person: Annotated[str | None, argument("Who logs in.  [default: you, as admin]")] = None,
    url: Annotated[str, option("Address of the server.")] = "http://localhost:8080",
) -> None:
    """Print a link that logs a browser in once, within a minute."""
    with call.broker() as broker:
        made = call.run(broker, CreateLink(person=person))
    fields = {"person": made["person"], "url": login_url(url, made["secret"]), "expires": made["expires"]}
    call.print(fields, fields["url"])


def login_url(server: str, code: str) -> str:
    """Return the address that logs a browser in."""
    return f"{server.rstrip('/')}/login?code={urllib.parse.quote(code)}"


@access.command("four-eyes")
def four_eyes(
    call: ChangeOptions,
    letters: Annotated[
        Any,
        argument(
            "The most letters that one person may send.  [default: show it]",
            "[NUMBER|none]",
            parser=optional_count,
        ),
    ] = None,
) -> None:
    """Show or set how many letters one person may send.

    It holds for an hour, and for letters that are deleted, too. Whoever planned a repair of more letters
    cannot apply it. A wish for more, made over HTTP, is shown until a second person asks for the same.
    """
    with call.broker() as broker:
        if letters is None:
            letters_now = broker.four_eyes()
        else:
            letters_now = call.run(broker, SetFourEyes(letters=None if letters is NOTHING else letters))
        wish = broker.four_eyes_wish()

    def show() -> None:
        output.line(_number_of_letters(letters_now))
        if wish is not None:
            since, until = output.shown_time(wish.time), output.shown_time(wish.ends)
            output.line(
                f"{wish.actor} asks for {_number_of_letters(wish.letters)} since {since}; "
                f"it holds once somebody else sets the same before {until}"
            )

    call.print({"letters": letters_now} | ({} if wish is None else {"asked": wish}), show)


def _number_of_letters(number: int | None) -> str:
    return "any number" if number is None else output.plural(number, "letter")


@people.command("list")
def list_people(call: ListingOptions) -> None:
    """List people and groups with their roles."""
    with call.broker() as broker:
        call.print_all(broker.people(), _PEOPLE, "nobody was granted a role")


add_change(
    people,
    "remove",
    RemovePerson,
    lambda fields, removed: (
        f"removed {fields['person']} and {output.plural(removed['secrets'], 'token or session')}"
    ),
    asks="Remove {person} with all tokens?",
    parameters={"person": PersonArgument},
    result=lambda broker, fields, answer: {"person": fields["person"], "secrets": answer},
)


@tokens.command("create")
def create_token(
    call: ChangeOptions,
    person: PersonArgument,
    label: Annotated[str, option("What the token is for.", "TEXT", "--for")] = "",
    expires: Annotated[
        Any,
        option("When it ends: 30d, a time, or never.  [default: 90d]", "TIME|never", parser=optional_future),
    ] = None,
) -> None:
    """Make a token for a person, and print it.

    It is shown only now: the store keeps its hash. What it may do is what was granted to the person.
    """
    with call.broker() as broker:
        ends = UNSET if expires is None else None if expires is NOTHING else expires
        made = call.run(broker, CreateToken(person=person, label=label, expires=ends))
    call.print(made, made["secret"])


@tokens.command("list")
def list_tokens(call: ListingOptions, person: OfPersonOption = None) -> None:
    """List tokens, and when each was last used, to the hour."""
    with call.broker() as broker:
        call.print_all(broker.tokens(person), _TOKENS, "no tokens", spare=("created",))


add_change(
    tokens,
    "revoke",
    RevokeToken,
    "revoked {id} of {answer}",
    text="Revoke a token by its ID.\n\n"
    "The next request with it is refused, and the sessions of its person end.",
    asks="Delete token {id}?",
    parameters={"id": Annotated[str, argument("ID of the token.")]},
    result=lambda broker, fields, answer: {"id": fields["id"], "person": answer},
)


@sessions.command("list")
def list_sessions(call: ListingOptions, person: OfPersonOption = None) -> None:
    """List the sessions of browsers."""
    with call.broker() as broker:
        call.print_all(broker.browser_sessions(person), _SESSIONS, "no sessions")


add_change(
    sessions,
    "end",
    EndSessions,
    lambda fields, ended: f"ended {output.plural(ended['sessions'], 'session')} of {fields['person']}",
    parameters={"person": PersonArgument},
    result=lambda broker, fields, answer: {"person": fields["person"], "sessions": answer},
)


@redaction.command("list")
def list_rules(call: ListingOptions) -> None:
    """List the fields that are redacted."""
    with call.broker() as broker:
        call.print_all(broker.redaction(), _RULES, "nothing is redacted")


add_change(
    redaction,
    "set",
    SetRedaction,
    "{field} is redacted on {queue}: {form}",
    text="Redact a field for who may not read secrets.\n\n"
    "It holds over HTTP, in the console, and for what a queue keeps of completed messages. Receivers and "
    "handlers get messages as they were sent; the command line shows them so, too.",
    parameters={
        "field": FieldArgument,
        "queue": PatternOption,
        "form": Annotated[Form, option("What is shown: nothing, a mark, or a hash of the value.")],
    },
)


add_change(
    redaction,
    "remove",
    RemoveRedaction,
    "{field} is not redacted on {queue} any more",
    text="Redact a field no longer.",
    asks="Redact {field} no longer?",
    parameters={"field": FieldArgument, "queue": PatternOption},
)
