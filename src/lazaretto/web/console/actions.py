"""A form's action as a command: run once, however often the form is sent."""

from __future__ import annotations

import urllib.parse
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from lazaretto.commands import COMMANDS, Command, PlanRepair
from lazaretto.errors import InvalidOption
from lazaretto.web.access import key_of, require_for
from lazaretto.web.console.render import address
from lazaretto.web.console.visit import Page, Visit, moved_to
from lazaretto.web.refusals import HttpError

#: How deep a part of a field may be.
_DEEPEST: Final = 3
#: The fields of a form that are no parts of its command.
_OWN = ("csrf", "key", "back", "version")


async def act(visit: Visit) -> Page:
    """Run the command that a form makes, and return where to go, or what is shown only now.

    Raises what the command raises.
    """
    kind = COMMANDS.get(visit.request.path_params["command"])
    if kind is None:
        raise HttpError("route_not_found", "expected the name of a command")
    command = command_of(kind, visit.form, datetime.now(UTC))
    require_for(command, visit.require)
    key, version = _first(visit.form, "key"), _first(visit.form, "version")
    if command.shown_once:
        key = ""
    answer = await visit.broker.run(
        command, actor=visit.who.actor, idempotency_key=None if not key else key_of(visit.who.name, key),
        version=version or None,
    )  # fmt: skip
    back = _back(visit)
    if command.shown_once:
        values = {"command": command, "answer": answer, "back": back}
        return Page("secret.html", "access", "Shown only now", values)
    if isinstance(command, PlanRepair):
        back = address(visit.base, f"/repairs/{answer['name']}")
    elif command.command_name in ("delete_queue", "delete_topic"):
        back = address(visit.base, "/queues")
    entries = await visit.broker.audit(actor=visit.who.name, limit=1)
    if entries:
        back = f"{back}{'&' if '?' in back else '?'}did={entries[0].position}"
    return moved_to(back)


def command_of(kind: type[Command], form: dict[str, list[str]], now: datetime) -> Command:
    """Return the command that the fields of a form make. Raises InvalidOption.

    A field's name may end with what its text is: `:json`; `:hours` from now on, which is none if it is
    empty; `:text`, which is none if it is empty; `:lines`, the same as it is spelled; `:list` of parts
    between commas; `:numbers`, which may come several times; `:pairs` of a name and a text in each line. A
    name with points is that of a part of a field, which is left out if it is none.
    """
    filled: dict[str, Any] = {}
    names = {field.name: field for field in msgspec.structs.fields(kind)}
    for field, values in form.items():
        if field in _OWN:
            continue
        place, _, how = field.partition(":")
        name, *parts = place.split(".")
        if name not in names or (len(values) != 1 and how != "numbers") or len(parts) > _DEEPEST:
            raise InvalidOption(f"expected each field of {kind.command_name} once, got {field!r}")
        text = ",".join(values) if how == "numbers" else values[0].replace("\r\n", "\n")
        value = _value(name, how, text, now)
        if parts and value is None:
            continue
        whole: Any = filled
        for part in (name, *parts)[:-1]:
            whole = whole.setdefault(part, {}) if isinstance(whole, dict) else None
        last = parts[-1] if parts else name
        if not isinstance(whole, dict) or last in whole:
            raise InvalidOption(
                f"expected each field of {kind.command_name} once, as a whole or in parts, got {field!r}"
            )
        whole[last] = value
    try:
        return msgspec.convert(filled, kind, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidOption(f"{kind.command_name}: {error}") from None


def _value(name: str, how: str, text: str, now: datetime) -> Any:
    match how:
        case "":
            return text
        case "text":
            return text.strip() or None
        case "lines":
            return text or None
        case "pairs":
            return _pairs(name, text)
        case "list":
            return [part.strip() for part in text.split(",") if part.strip()]
        case "numbers":
            parts = text.split(",")
            if not all(part.isascii() and part.isdigit() and len(part) < 19 for part in parts):
                raise InvalidOption(f"expected {name} to be numbers, got {text[:100]!r}")
            return [int(part) for part in parts]
        case "number":
            return text.strip() or None
        case "hours":
            if not text.strip():
                return None
            try:
                return now + timedelta(hours=float(text))
            except (ValueError, OverflowError):
                raise InvalidOption(f"expected {name} as hours, got {text!r}") from None
        case "json":
            try:
                return msgspec.json.decode(text)
            except (msgspec.DecodeError, RecursionError) as error:
                raise InvalidOption(f"expected {name} as JSON: {error}") from None
    raise InvalidOption(f"expected {name} as text, list, number, hours, pairs or json, got {how!r}")


def _pairs(name: str, lines: str) -> dict[str, str]:
    """Return the texts by name that lines such as "shop=main" mean. Raises InvalidOption."""
    pairs: dict[str, str] = {}
    for line in filter(str.strip, lines.split("\n")):
        key, equals, value = line.partition("=")
        if not equals or not key.strip() or key.strip() in pairs:
            raise InvalidOption(f"expected {name} as one name=value in a line, got {line[:100]!r}")
        pairs[key.strip()] = value
    return pairs


def _first(form: dict[str, list[str]], name: str) -> str:
    return form.get(name, [""])[0]


def _back(visit: Visit) -> str:
    """Return the page that a form names, if it is one of this console: no other site is ever opened."""
    address_ = _first(visit.form, "back")
    parts = urllib.parse.urlsplit(address_) if address_.isprintable() else urllib.parse.urlsplit("")
    own = not parts.scheme and not parts.netloc and "\\" not in address_ and parts.path.startswith("/")
    if not own or parts.path.startswith("//") or not parts.path.startswith(f"{visit.base}/"):
        return f"{visit.base}/"
    return address("", parts.path) + (f"?{parts.query}" if parts.query else "")
