"""Forms of commands: their fields follow from those that a command declares; and what they send is run."""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
import urllib.parse
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from lazaretto.commands import COMMANDS, Command, PlanRepair
from lazaretto.engine.command import hints_of
from lazaretto.errors import InvalidOption, LazarettoError
from lazaretto.model.entities import OPTIONS_OF_TOPICS, EntityPath, QueueOptions
from lazaretto.model.grants import Permission
from lazaretto.model.paths import split_subscription, subscription_path
from lazaretto.model.records.plain import changes_from, plain
from lazaretto.web.access import key_of, require_for
from lazaretto.web.console.queues import attempts_of
from lazaretto.web.console.render import address, line_of
from lazaretto.web.console.settings import OptionChange, changes_of, settings_of
from lazaretto.web.console.visit import Page, Visit, moved_to
from lazaretto.web.refusals import HttpError

#: The fields of commands that have parts of options.
_OPTIONS: Final = ("options", "changes")
#: Fields of an address that are no fields of a command.
_OWN: Final = ("back", "did")
#: Places that a form can name, suggested while somebody types.
_PLACES: Final = 200


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """A field of a form. `name`: with what its text is, as `command_of` reads it.

    `kind`: "text", "number", "lines", "flag", "hidden" or "file". `places`: it takes the path of a queue or
    topic.
    """

    name: str
    label: str
    kind: str
    value: str
    required: bool
    hint: str
    lines: int = 1
    places: bool = False


def fields_of(kind: type[Command], typed: Mapping[str, str]) -> list[Field]:
    """Return the fields of a command's form. Those that it needs and that are known already are hidden."""
    hints = typing.get_type_hints(kind, include_extras=True)
    texts = hints_of(kind)
    fields = []
    for field in msgspec.structs.fields(kind):
        if field.name in _OPTIONS and kind.options_class is not None:
            continue
        fields.append(_field(field, hints[field.name], typed.get(field.name), texts.get(field.name, "")))
    return fields


def _field(field: msgspec.structs.FieldInfo, hint: Any, typed: str | None, text: str) -> Field:
    lines = next((one.extra["lines"] for one in _meta(hint) if one.extra and "lines" in one.extra), 1)
    suffix, kind, unit = _way(_bare(hint), optional=not field.required)
    value = typed
    if value is None:
        usual = field.default
        value = str(usual) if isinstance(usual, int | float) and not isinstance(usual, bool) else ""
    if field.name.endswith("_base64"):
        kind = "file"
    elif lines > 1:
        suffix, kind = ":lines", "lines"
    if typed is not None and field.required:
        kind = "hidden"
    label = field.name.replace("_base64", " from a file").replace("_", " ")
    places = field.name in ("path", "to", "topic")
    text = text[:1].upper() + text[1:] + ("." if text else "")
    return Field(
        f"{field.name}{suffix}", label, kind, value, field.required, f"{text} {unit}".strip(), lines, places
    )


def _meta(hint: Any) -> list[msgspec.Meta]:
    """Return what annotations say of a type, or of the alternatives of a union."""
    if typing.get_origin(hint) is typing.Annotated:
        return [one for one in hint.__metadata__ if isinstance(one, msgspec.Meta)]
    return [one for part in typing.get_args(hint) for one in _meta(part)]


def _bare(hint: Any) -> Any:
    """Return a type without annotations and without what stands for nothing."""
    if typing.get_origin(hint) is typing.Annotated:
        return _bare(hint.__origin__)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        (first, *_) = (one for one in typing.get_args(hint) if one not in (type(None), msgspec.UnsetType))
        return _bare(first)
    return hint


def _way(hint: Any, *, optional: bool) -> tuple[str, str, str]:
    """Return what a field's text is, its kind of input, and the unit, by its type."""
    origin = typing.get_origin(hint) or hint
    if origin is bool:
        return "", "flag", ""
    if origin is datetime:
        return ":hours", "number", "In hours from now."
    if origin in (int, float):
        return (":number" if optional else ""), "number", ""
    if origin is tuple:
        numbers = typing.get_args(hint)[:1] == (int,)
        return (":numbers" if numbers else ":list"), "text", "Several with commas between them."
    if origin is dict and typing.get_args(hint)[:1] == (str,):
        return ":pairs", "lines", "One name=value in a line."
    if origin in (dict, list):
        return ":json", "lines", "As JSON."
    return (":text" if optional else ""), "text", ""


async def show(visit: Visit) -> Page:
    """Show the form of a command, and what its options would be."""
    name = visit.request.path_params["command"]
    kind = COMMANDS.get(name)
    if kind is None:
        raise HttpError("route_not_found", "expected the name of a command")
    typed = {key: value for key, value in visit.request.query_params.items() if key not in _OWN}
    fields = fields_of(kind, typed)
    place = typed.get("path") or typed.get("topic")
    # Who may see the place sees the form; its button says what they lack.
    visit.require(Permission.SEE, place)
    text = (inspect.getdoc(kind) or name).partition("\n")[0]
    values: dict[str, Any] = {
        "command": name, "text": text, "final": kind.final, "fields": fields, "place": place,
        "permission": kind.permission, "back": _after(visit, kind, typed), "settings": [], "version": "",
        "places": await _places(visit) if any(one.places and one.kind != "hidden" for one in fields) else [],
    }  # fmt: skip
    if kind.options_class is not None:
        values |= await _options(visit, kind, typed)
        sent = {one.name: one.value for one in values["fields"] if one.value}
        values["line"] = _line(kind, {**sent, values["field"]: values["value"]}) if values["ready"] else ""
        return Page("options.html", "queues", text.rstrip("."), values)
    # What is still to be typed stands there by its name.
    values["line"] = _line(
        kind,
        {
            one.name: one.value or ("QUEUE" if one.places else one.label.upper())
            for one in fields
            if one.value or one.required or one.lines > 1
        },
    )
    return Page("form.html", "queues", text.rstrip("."), values)


def _line(kind: type[Command], form: Mapping[str, str]) -> str:
    """Return the command line that does the same as a form; empty where there is none yet."""
    try:
        command = command_of(kind, {name: [value] for name, value in form.items()}, datetime.now(UTC))
    except InvalidOption:
        return ""
    return "" if kind.shown_once else line_of(command)


async def _places(visit: Visit) -> list[str]:
    """Return the paths of queues and topics that can be sent to."""
    queues = await visit.broker.queues(limit=_PLACES)
    topics = await visit.broker.topics(limit=_PLACES)
    paths = [one.path for one in queues if split_subscription(EntityPath.parse(one.path)) is None]
    return sorted([*paths, *(one.path for one in topics)])


def _after(visit: Visit, kind: type[Command], typed: Mapping[str, str]) -> str:
    """Return the page to go to when a command is done: the one that its link came from, or the queue's."""
    back = visit.text("back")
    if back is not None:
        return back
    path = _entity(kind, typed)
    return address(visit.base, "/queue", queue=path) if path else address(visit.base, "/queues")


def _entity(kind: type[Command], typed: Mapping[str, str]) -> str | None:
    """Return the queue or subscription that a command is about; None for topics and what has no page."""
    topic, subscription = typed.get("topic"), typed.get("subscription")
    try:
        if topic and subscription:
            return str(subscription_path(topic, subscription))
    except LazarettoError:
        return None
    return None if "topic" in kind.command_name else typed.get("path")


async def _options(visit: Visit, kind: type[Command], typed: Mapping[str, str]) -> dict[str, Any]:
    """Return what a form of options shows: each with its text, and what would change."""
    creates = "changes" not in kind.__struct_fields__
    current, version = await _current(visit, kind, typed, creates=creates)
    settings = settings_of(current, new=creates)
    if kind.command_name.endswith("subscription"):
        settings = [one for one in settings if one.name not in OPTIONS_OF_TOPICS]
    changed: list[OptionChange] = []
    options: dict[str, Any] = {}
    wrong = None
    try:
        changed, changes = changes_of(settings, typed)
        then = dataclasses.replace(current, **changes_from(type(current), changes, current))
        options = {name: plain(getattr(then, name)) for name in changes} if creates else changes
    except InvalidOption as error:
        then, wrong = current, str(error)
    named = [field for field in fields_of(kind, {}) if field.kind != "flag"]
    filled = [
        dataclasses.replace(field, value=typed.get(field.name.partition(":")[0], "")) for field in named
    ]
    return {
        "settings": settings, "typed": typed, "changed": changed, "wrong": wrong, "creates": creates,
        "fields": [field for field in filled if not field.name.startswith("rules")],
        "ready": all(field.value for field in filled if field.required),
        "field": "options:json" if creates else "changes:json",
        "value": msgspec.json.encode(options).decode(), "version": version,
        "tried": tried(current), "then": tried(then),
    }  # fmt: skip


def tried(options: Any) -> str | None:
    """Return how often a message is tried with some options; None for those of a topic."""
    return attempts_of(options.policy) if isinstance(options, QueueOptions) else None


async def _current(
    visit: Visit, kind: type[Command], typed: Mapping[str, str], *, creates: bool
) -> tuple[Any, str]:
    """Return the options that a form begins with, and the version of the entity that has them."""
    assert kind.options_class is not None
    if creates:
        return kind.options_class(), ""
    if kind.command_name == "update_topic":
        topic = await visit.broker.topic(typed.get("path", ""))
        return topic.options, topic.version
    path = _entity(kind, typed)
    if path is None:
        raise InvalidOption("expected the path of a queue")
    queue = await visit.broker.queue(path)
    return queue.options, queue.version


#: How deep a part of a field may be.
_DEEPEST: Final = 3
#: The fields of a form that are no parts of its command.
_NO_FIELDS = ("csrf", "key", "back", "version")


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
        if field in _NO_FIELDS:
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
