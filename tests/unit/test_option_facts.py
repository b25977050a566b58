"""What `queue show` and `topic show` print of options: each that there is, whatever its value."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from lazaretto import Backoff, PoisonPolicy, QueueOptions, TopicOptions
from lazaretto.cli.queue_options import option_facts, option_sections
from lazaretto.model.breaker import BreakerPolicy
from lazaretto.model.options import Kind, options_of

CASES = [
    (kind, name)
    for kind in (QueueOptions, TopicOptions, PoisonPolicy, BreakerPolicy)
    for name in options_of(kind)
]


def _facts(options: Any) -> list[Any]:
    return [option_facts(options), option_sections(options) if isinstance(options, QueueOptions) else []]


def _other(kind: type[Any], name: str, value: Any) -> Any:
    """Return another value of an option."""
    check = options_of(kind)[name].check
    objects = {
        "policy": PoisonPolicy(receive_retry_count=1),
        "dead_letter_policy": PoisonPolicy(on_poison="drop", on_invalid="drop"),
        "breaker": None,
        "retry_cycle_delay": Backoff(initial=7),
        "annotations": {"team": "shop"},
    }
    match check.kind:
        case Kind.OBJECT:
            return objects[name]
        case Kind.FLAG:
            return not value
        case Kind.CHOICE:
            return next(one for one in check.choices.values() if one != value)
        case Kind.TEXT:
            return "elsewhere"
        case Kind.SHARE:
            return 0.25
    return 1 if value is None else value + 1


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_each_option_is_shown(kind: type[Any], name: str) -> None:
    options = kind()
    changed = copy.copy(options)
    object.__setattr__(changed, name, _other(kind, name, getattr(options, name)))
    assert _facts(changed) != _facts(options)
