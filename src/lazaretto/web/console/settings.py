"""Options of queues and topics as fields of a form, with units, defaults and texts of their declaration."""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from lazaretto.errors import InvalidOption
from lazaretto.model.checks import FOREVER
from lazaretto.model.entity_changes import NESTED
from lazaretto.model.options import Kind, Option, abbreviate_duration, format_size, options_of
from lazaretto.model.policy import UNLIMITED, Backoff, Growth
from lazaretto.model.spans import seconds_of

#: Options of tools and of dialogs, which have other ways to be set.
_ELSEWHERE: Final = ("dialogs", "retention", "annotations")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(|b|bytes?|[kmgt]i?b?)", re.IGNORECASE)
_SIZES: Final = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
#: Cycles of a policy for dead letters are ignored.
_IGNORED: Final = ("dead_letter_policy.max_retry_cycles", "dead_letter_policy.retry_cycle_delay")
#: What a person types for an option that has no value, and for a number that is never reached.
NONE, ENDLESS = "none", "unlimited"


@dataclasses.dataclass(frozen=True, slots=True)
class OptionField:
    """An option as a form has it. `name`: with points for those of a policy. `group`: its title in a form.

    `accepts`: the values that it takes, in words. `fixed`: it cannot change any more.
    """

    name: str
    label: str
    group: str
    kind: Kind
    value: str
    default: str
    choices: tuple[str, ...]
    text: str
    accepts: str
    fixed: bool
    optional: bool


@dataclasses.dataclass(frozen=True, slots=True)
class OptionChange:
    """An option that a form changes."""

    label: str
    before: str
    after: str


def settings_of(options: Any, *, new: bool = False) -> list[OptionField]:
    """Return every option of a queue or topic, plain ones first. `new`: all can change."""
    settings = _settings(type(options), options, "", "")
    return [dataclasses.replace(one, fixed=False) for one in settings] if new else settings


def _settings(kind: type[Any], options: Any, prefix: str, group: str) -> list[OptionField]:
    plain: list[OptionField] = []
    nested: list[OptionField] = []
    usual = kind() if options is None else options
    for name, option in options_of(kind).items():
        if name in _ELSEWHERE and not prefix:
            continue
        value, path = getattr(usual, name), f"{prefix}{name}"
        if path in _IGNORED:
            continue
        inner = NESTED.get(name)
        if inner is None:
            plain.append(_setting(path, group, option, value))
            continue
        title = f"{group}, {_words(name)}" if group else _words(name)
        if option.check.optional:
            plain.append(_presence(path, group, option, value))
        if inner is Backoff and not isinstance(value, Backoff):
            value = Backoff(initial=value, growth=Growth.CONSTANT)
        nested += _settings(inner, value, f"{path}.", title)
    return plain + nested


def _words(name: str) -> str:
    return name.replace("_", " ")


def _setting(name: str, group: str, option: Option, value: Any) -> OptionField:
    check = option.check
    choices = ("yes", "no") if check.kind is Kind.FLAG else tuple(check.choices)
    return OptionField(
        name,
        _words(name.rpartition(".")[2]),
        group,
        check.kind,
        _shown(check.kind, value),
        _shown(check.kind, option.default),
        choices,
        option.text.replace("`", ""),
        check.accepts.replace("`", "").replace("; None", ""),
        option.fixed,
        check.optional,
    )


def _presence(name: str, group: str, option: Option, value: Any) -> OptionField:
    """Return the setting that says whether there is a policy at all."""
    shown, default = ("no" if one is None else "yes" for one in (value, option.default))
    text = option.text.replace("`", "")
    return OptionField(
        name, _words(name), group, Kind.OBJECT, shown, default, ("yes", "no"), text, "", option.fixed, True
    )


def _shown(kind: Kind, value: Any) -> str:
    if value is None:
        return NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, enum.Enum):
        return str(value.value)
    if kind is Kind.DURATION:
        return NONE if value >= FOREVER else abbreviate_duration(value)
    if kind is Kind.SIZE:
        return format_size(value)
    if isinstance(value, int) and value >= UNLIMITED:
        return ENDLESS
    return f"{value:g}" if isinstance(value, float) else str(value)


def options_shown(options: Any) -> list[OptionField]:
    """Return the options of a queue as its page has them, without those of a policy that it has not."""
    settings = settings_of(options)
    absent = tuple(f"{one.name}." for one in settings if one.kind is Kind.OBJECT and one.value == "no")
    return [one for one in settings if not one.name.startswith(absent)] if absent else settings


def changes_of(
    settings: Sequence[OptionField], typed: Mapping[str, str]
) -> tuple[list[OptionChange], dict[str, Any]]:
    """Return which options a form changes, and the changes as JSON has them. Raises InvalidOption."""
    changed: list[OptionChange] = []
    changes: dict[str, Any] = {}
    for one in settings:
        text = typed.get(one.name, one.value).strip() or one.default
        if one.fixed or text == one.value or _is_same(one, text):
            continue
        group = f"{one.group}: " if one.group else ""
        changed.append(OptionChange(f"{group}{one.label}", one.value, text))
        _put(changes, one, text)
    return changed, changes


def _is_same(setting: OptionField, text: str) -> bool:
    """Return whether a text means the value that the setting has."""
    if setting.kind is Kind.OBJECT:
        return False
    return bool(value_of(setting, text) == value_of(setting, setting.value))


def _put(changes: dict[str, Any], setting: OptionField, text: str) -> None:
    """Add an option to changes, as a part of its policy if it is one."""
    whole = changes
    *groups, name = setting.name.split(".")
    for group in groups:
        inner = whole.setdefault(group, {})
        if inner is None:
            # There is no such policy any more, so it has no options.
            return
        whole = inner
    if setting.kind is not Kind.OBJECT:
        whole[name] = value_of(setting, text)
    elif text == "no":
        whole[name] = None
    else:
        whole.setdefault(name, {})


def value_of(setting: OptionField, text: str) -> Any:
    """Return the value that a text means, as JSON has it. Raises InvalidOption."""
    if text.lower() == NONE and setting.optional:
        return None
    if setting.kind in (Kind.INTEGER, Kind.SIZE) and text.lower() == ENDLESS:
        return UNLIMITED
    value: Any = None
    match setting.kind:
        case Kind.FLAG:
            value = {"yes": True, "no": False}.get(text)
        case Kind.INTEGER:
            plain = text.replace(",", "")
            value = int(plain) if plain.isascii() and plain.isdigit() and len(plain) < 19 else None
        case Kind.SIZE:
            value = _bytes(text)
        case Kind.DURATION:
            value = seconds_of(text)
        case Kind.SHARE:
            value = float(text) if re.fullmatch(r"\d*\.?\d+", text) else None
        case _:
            value = text
    if value is None:
        raise InvalidOption(f"expected {setting.label} to be {setting.accepts}, got {text!r}")
    return value


def _bytes(text: str) -> int | None:
    match = _SIZE.fullmatch(text.replace(",", ""))
    return None if match is None else round(float(match[1]) * _SIZES[match[2][:1].lower()])
