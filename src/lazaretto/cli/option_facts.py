"""How options are printed: every option that there is, by its declaration."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, Final

from lazaretto.cli import output
from lazaretto.cli.output import Facts
from lazaretto.model.breaker import BreakerPolicy
from lazaretto.model.options import Check, Kind, options_of
from lazaretto.model.policy import UNLIMITED, Backoff, Growth, PoisonPolicy

#: What is called otherwise than its option.
_LABELS: Final[Mapping[str, str]] = {
    "dead_letter_on_expiration": "dead-letter on expiration",
    "dead_letter_on_filter_errors": "dead-letter on filter errors",
    "forward_dead_lettered_messages_to": "forward dead letters to",
    "auto_delete_on_idle": "auto-delete on idle",
}
#: The titles of options that are objects of options.
_TITLES: Final[Mapping[str, str]] = {
    "breaker": "breaker",
    "policy": "poison policy",
    "dead_letter_policy": "policy for reading dead letters",
}


def label_of(name: str) -> str:
    """Return what an option is called where it is printed."""
    return _LABELS.get(name, name.replace("_", " "))


def option_facts(options: Any) -> Facts:
    """Return the names and values of options, without those that are objects of options themselves."""
    facts: Facts = []
    for name, option in options_of(type(options)).items():
        value = getattr(options, name)
        if not isinstance(value, PoisonPolicy | BreakerPolicy):
            facts.append((label_of(name), _shown(value, option.check)))
    return facts


def option_sections(options: Any) -> list[tuple[str, Facts]]:
    """Return the titles of options that are objects of options, with what is in them."""
    sections = []
    for name, title in _TITLES.items():
        value = getattr(options, name)
        if value is not None:
            sections.append((title, option_facts(value)))
            if isinstance(value, PoisonPolicy):
                sections[-1][1].append(("attempts in all", _count(value.total_attempts)))
    return sections


def _shown(value: Any, check: Check) -> object:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={text}" for name, text in value.items()) or "none"
    if isinstance(value, Backoff):
        return _backoff(value)
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, enum.Enum):
        return value.value
    if check.kind is Kind.SHARE:
        return f"{value:g}"
    if check.kind is Kind.DURATION or isinstance(value, float):
        return output.shown_duration(value)
    return _count(value) if isinstance(value, int) else value


def _count(number: int) -> object:
    return "unlimited" if number >= UNLIMITED else number


def _backoff(delay: Backoff) -> str:
    shown = f"{output.shown_duration(delay.initial)}, {delay.growth.value}"
    if delay.growth is not Growth.CONSTANT:
        shown += f", at most {output.shown_duration(delay.maximum)}"
    return shown + (f", {delay.jitter:.0%} of it at random" if delay.jitter else "")
