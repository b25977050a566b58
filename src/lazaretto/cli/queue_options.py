"""The options of a queue and its poison policy: one table for all commands, and how options are printed."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from lazaretto.cli import output
from lazaretto.cli.command import Options, option
from lazaretto.cli.exits import usage
from lazaretto.cli.output import Facts
from lazaretto.cli.parse import NOTHING, count, duration, optional_count, optional_duration, optional_text
from lazaretto.model.breaker import BreakerPolicy
from lazaretto.model.entities import FIXED_OPTIONS, TOPIC_OPTIONS, QueueOptions
from lazaretto.model.entity_changes import merged, parts_of
from lazaretto.model.options import Check, Kind, Option, abbreviate_duration, options_of
from lazaretto.model.policy import UNLIMITED, Backoff, Disposition, Growth, PoisonPolicy
from lazaretto.model.records.plain import changes_from, plain

_QUEUE, _POISON, _DEAD = "Queue", "Poison policy", "Policy for reading dead letters"
_BREAKER = "Breaker"
_REFUSED_BY_MSMQ3 = (Disposition.MOVE, Disposition.REJECT)

#: What a value is called in `--help`.
_METAVARS = {
    Kind.DURATION: "DURATION",
    Kind.INTEGER: "NUMBER",
    Kind.SIZE: "BYTES",
    Kind.SHARE: "SHARE",
    Kind.TEXT: "PATH",
}
#: The options of a Backoff, by their names on the command line.
_BACKOFF = {
    "retry_cycle_delay": "initial",
    "retry_cycle_growth": "growth",
    "retry_cycle_maximum": "maximum",
    "retry_cycle_jitter": "jitter",
}
_GROUPED = ("policy", "dead_letter_policy", "breaker")
#: Options of queues that belong to a service of dialogs, which sets them.
_OF_SERVICES = ("dialogs", "retention")
#: What other tools keep there.
_OF_TOOLS = ("annotations",)
_PLAIN = [name for name in options_of(QueueOptions) if name not in (*_GROUPED, *_OF_SERVICES, *_OF_TOOLS)]
_POLICY = [name for name in options_of(PoisonPolicy) if name != "retry_cycle_delay"]
_DEAD_PREFIX = "dead_letter_policy_"

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


#: The poison policies that have a name.
Preset = Literal["service_bus", "wcf", "wcf_msmq3", "service_broker", "nservicebus"]


def _option(kind: Any, help_: str, panel: str, *names: str, metavar: str = "", parser: Any = None) -> Any:
    made = option(help_, metavar, *names, parser=parser, panel=panel)
    return Annotated[kind | None, made]


def _flags(name: str) -> str:
    flag = name.replace("_", "-")
    return f"--{flag}/--no-{flag}"


def _typed(kind: Kind, value: Any) -> str:
    """Return an option's value as a person types it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, enum.Enum):
        return str(value.value)
    return abbreviate_duration(value) if kind is Kind.DURATION else f"{value}"


def _derived(name: str, declared: Option, panel: str, defaults: bool) -> Any:
    """Return an option of the command line as a class declares it."""
    check = declared.check
    help_ = declared.text.replace("`", "")
    if declared.fixed:
        help_ += " It cannot change later."
    if defaults:
        help_ += f"  [default: {_typed(check.kind, declared.default)}]"
    metavar = _METAVARS.get(check.kind, "") + ("|none" if check.optional else "")
    match check.kind:
        case Kind.FLAG:
            return _option(bool, help_, panel, _flags(name))
        case Kind.CHOICE:
            return _option(type(declared.default), help_, panel)
        case Kind.DURATION:
            parser = optional_duration if check.optional else duration
            return _option(float, help_, panel, metavar=metavar, parser=parser)
        case Kind.SHARE:
            return _option(float, help_, panel, metavar=metavar)
        case Kind.TEXT:
            return _option(str, help_, panel, metavar=metavar, parser=optional_text)
        case _ if check.optional:
            return _option(int, help_, panel, metavar=metavar, parser=optional_count)
        case _ if check.high == UNLIMITED:
            return _option(int, help_, panel, metavar=f"{metavar}|unlimited", parser=count)
        case _:
            return _option(int, help_, panel, metavar=metavar)


def _table(*, defaults: bool) -> dict[str, Any]:
    """Return every option by the name of its parameter; with `defaults`, the help says them."""
    queue, policy, backoff = options_of(QueueOptions), options_of(PoisonPolicy), options_of(Backoff)
    table = {name: _derived(name, queue[name], _QUEUE, defaults) for name in _PLAIN}
    table["breaker"] = _option(
        bool, f"Pause the queue during an outage.{'  [default: yes]' * defaults}", _BREAKER, _flags("breaker")
    )
    for name, declared in options_of(BreakerPolicy).items():
        table[f"breaker_{name}"] = _derived(f"breaker_{name}", declared, _BREAKER, defaults)
    table["preset"] = _option(
        Preset,
        "A poison policy by name: service_bus, wcf, wcf_msmq3, service_broker or nservicebus. "
        "Options below change parts of it.",
        _POISON,
        metavar="NAME",
    )
    for name, declared in policy.items():
        if name != "retry_cycle_delay":
            table[name] = _derived(name, declared, _POISON, defaults)
            continue
        text = f"{declared.text}  [default: {_typed(Kind.DURATION, declared.default)}]"
        text = text if defaults else declared.text
        table[name] = _option(float, text, _POISON, metavar="DURATION", parser=duration)
        for parameter, part in list(_BACKOFF.items())[1:]:
            table[parameter] = _derived(parameter, backoff[part], _POISON, False)
    return table | {
        "dead_letter_policy_receive_retry_count": _option(
            int, "Retries when reading dead letters.", _DEAD, metavar="NUMBER|unlimited", parser=count
        ),
        "dead_letter_policy_on_poison": _option(
            Disposition, "What happens to a message there when its attempts are used up; not move.", _DEAD
        ),
        "dead_letter_policy_on_invalid": _option(
            Disposition, "What happens to a message there that can never succeed; not move.", _DEAD
        ),
        "dead_letter_policy_max_worker_deaths": _option(
            int,
            "Number of worker crashes that make a message poison there.",
            _DEAD,
            metavar="NUMBER|none",
            parser=optional_count,
        ),
        "no_dead_letter_policy": _option(
            bool, "No limits when reading dead letters, as in Service Bus.", _DEAD, "--no-dead-letter-policy"
        ),
    }


_CREATE = _table(defaults=True)
_UPDATE = _table(defaults=False)


def _given(table: Mapping[str, Any]) -> Options:
    """Return options of the table as one parameter of a command: those that were given."""
    return Options(
        {name: (annotation, None) for name, annotation in table.items()},
        lambda context, given: {name: value for name, value in given.items() if value is not None},
    )


queue_settings, queue_changes = _given(_CREATE), _given(_UPDATE)
topic_settings = _given({name: _CREATE[name] for name in TOPIC_OPTIONS if name not in _OF_TOOLS})
topic_changes = _given(
    {name: _UPDATE[name] for name in TOPIC_OPTIONS if name not in (*FIXED_OPTIONS, *_OF_TOOLS)}
)


def parts_of_given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was given as changes of options, as JSON has them; of a policy, only what was given.

    Raises CommandError.
    """
    values = {name: None if value is NOTHING else value for name, value in options.items()}
    changes: dict[str, Any] = {name: values[name] for name in _PLAIN if name in values}
    policy = _policy(values)
    if policy:
        changes["policy"] = policy
    breaker = _of_prefix(values, "breaker_")
    if values.get("breaker") is False:
        if breaker:
            raise usage("give --no-breaker or --breaker-…, not both")
        changes["breaker"] = None
    elif breaker or values.get("breaker"):
        changes["breaker"] = breaker
    dead = _of_prefix(values, _DEAD_PREFIX)
    if values.get("no_dead_letter_policy"):
        if dead:
            raise usage("give --no-dead-letter-policy or --dead-letter-policy-…, not both")
        changes["dead_letter_policy"] = None
    elif dead:
        changes["dead_letter_policy"] = dead
    parts: dict[str, Any] = plain(changes)
    return parts


def _of_prefix(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): values[name] for name in values if name.startswith(prefix)}


def given_options(parameters: Mapping[str, Any], kind: type[Any] = QueueOptions) -> dict[str, Any]:
    """Return the options that were given, as JSON has them. Raises InvalidOption, CommandError."""
    parts = parts_of_given(parameters)
    dead = parts.get("dead_letter_policy")
    if dead is not None and "on_poison" not in dead:
        raise usage("a dead-letter policy needs --dead-letter-policy-on-poison: fault, drop or reject")
    options = changes_from(QueueOptions, parts, QueueOptions())
    # What is wrong is said before a store is made.
    kind(**options)
    fields: dict[str, Any] = plain(options)
    return fields


def _policy(values: Mapping[str, Any]) -> dict[str, Any]:
    preset = values.get("preset")
    changes = {name: values[name] for name in _POLICY if name in values}
    if preset == "wcf_msmq3":
        for name in ("on_poison", "on_invalid"):
            if changes.get(name) in _REFUSED_BY_MSMQ3:
                option = name.replace("_", "-")
                raise usage(
                    f"expected --{option} to be fault or drop with the preset wcf_msmq3, "
                    f"got {changes[name].value}: MSMQ 3 had nowhere to move or return a message to"
                )
        if "on_poison" in changes:
            changes.setdefault("on_invalid", changes["on_poison"])
    delay: Any = {field: values[name] for name, field in _BACKOFF.items() if name in values}
    if preset is None:
        return {**changes, "retry_cycle_delay": delay} if delay else changes
    # A preset is a whole policy.
    policy: PoisonPolicy = getattr(PoisonPolicy, preset)()
    parts = parts_of(PoisonPolicy, {"retry_cycle_delay": delay} if delay else {})
    whole: dict[str, Any] = plain(dataclasses.replace(policy, **merged(parts, policy), **changes))
    return whole


def label_of(name: str) -> str:
    """Return what an option is called where it is printed."""
    return _LABELS.get(name, name.replace("_", " "))


def option_facts(options: Any) -> Facts:
    """Return the names and values of options, without those that are objects of options themselves."""
    facts: Facts = []
    for name, declared in options_of(type(options)).items():
        value = getattr(options, name)
        if not isinstance(value, PoisonPolicy | BreakerPolicy):
            facts.append((label_of(name), _shown(value, declared.check)))
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
