"""The options of a queue and its poison policy as the command line has them: one table for all commands."""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from lazaretto.cli.exits import usage
from lazaretto.cli.parse import NOTHING, count, duration, optional_count, optional_duration, optional_text
from lazaretto.model.breaker import BreakerPolicy
from lazaretto.model.entities import PoisonSession, QueueOptions
from lazaretto.model.policy import Backoff, Disposition, Growth, PoisonPolicy

_QUEUE, _POISON, _DEAD = "Queue", "Poison policy", "Policy for reading the dead-letter subqueue"
_BREAKER = "Breaker"
_REFUSED_BY_MSMQ3 = (Disposition.MOVE, Disposition.REJECT)


class Preset(enum.Enum):
    """The poison policies that have a name."""

    SERVICE_BUS = "service_bus"
    WCF = "wcf"
    WCF_MSMQ3 = "wcf_msmq3"
    SERVICE_BROKER = "service_broker"
    NSERVICEBUS = "nservicebus"


def _option(
    kind: Any,
    help_: str,
    panel: str,
    *names: str,
    parser: Callable[[str], Any] | None = None,
    metavar: str = "",
) -> Any:
    option = typer.Option(
        *names, help=help_, parser=parser, metavar=metavar or None, rich_help_panel=panel, show_default=False
    )
    return Annotated[kind | None, option]


def _duration(help_: str, panel: str, *, none: bool = False) -> Any:
    parser = optional_duration if none else duration
    return _option(float, help_, panel, parser=parser, metavar="DURATION|none" if none else "DURATION")


#: Every option, by the name of its parameter.
_TABLE: dict[str, Any] = {
    "lock_duration": _duration("How long a peek-lock holds, 1s to 1d [60s].", _QUEUE),
    "default_time_to_live": _duration("The most any message lives [none].", _QUEUE, none=True),
    "dead_letter_on_expiration": _option(
        bool,
        "Dead-letter expired messages, else discard and count them [no].",
        _QUEUE,
        "--dead-letter-on-expiration/--no-dead-letter-on-expiration",
    ),
    "requires_session": _option(
        bool,
        "Messages are received by session. Fixed once it is created [no].",
        _QUEUE,
        "--requires-session/--no-requires-session",
    ),
    "requires_duplicate_detection": _option(
        bool,
        "Drop messages whose id was sent lately. Fixed once it is created [no].",
        _QUEUE,
        "--requires-duplicate-detection/--no-requires-duplicate-detection",
    ),
    "duplicate_detection_window": _duration("How long ids are remembered, 1s to 7d [10m].", _QUEUE),
    "dead_letter_on_filter_errors": _option(
        bool,
        "Of a subscription: dead-letter what its rules fail on, else leave it out [yes].",
        _QUEUE,
        "--dead-letter-on-filter-errors/--no-dead-letter-on-filter-errors",
    ),
    "max_message_size": _option(int, "Bytes of body and headers together [262144].", _QUEUE, metavar="BYTES"),
    "max_size": _option(
        int, "Bytes of all its messages together [none].", _QUEUE, parser=optional_count, metavar="BYTES|none"
    ),
    "forward_to": _option(
        str, "The queue or topic its messages go on to.", _QUEUE, parser=optional_text, metavar="PATH|none"
    ),
    "forward_dead_lettered_messages_to": _option(
        str, "The queue or topic its dead letters go to.", _QUEUE, parser=optional_text, metavar="PATH|none"
    ),
    "auto_delete_on_idle": _duration(
        "How long unused until it is deleted, 5m or more [none].", _QUEUE, none=True
    ),
    "on_poison_session": _option(
        PoisonSession, "What becomes of a session with a poison message [skip].", _QUEUE
    ),
    "breaker": _option(bool, "Tell an outage from poison [yes].", _BREAKER, "--breaker/--no-breaker"),
    "breaker_messages": _option(
        int, "Different messages that must fail in one way [10].", _BREAKER, metavar="NUMBER"
    ),
    "breaker_share": _option(
        float, "The share of the latest messages they must be, 0 to 1 [0.8].", _BREAKER, metavar="SHARE"
    ),
    "breaker_window": _duration("How long failures are part of one outage [60s].", _BREAKER),
    "breaker_probe_interval": _duration("How long until the first probe [1s].", _BREAKER),
    "breaker_longest_probe_interval": _duration("The longest time between probes [5s].", _BREAKER),
    "preset": _option(Preset, "A whole poison policy; the options below change parts of it.", _POISON),
    "receive_retry_count": _option(
        int, "R: retries in a cycle, or 'unlimited' [9].", _POISON, parser=count, metavar="NUMBER"
    ),
    "max_retry_cycles": _option(
        int,
        "C: how often it waits and is tried R+1 times again [0].",
        _POISON,
        parser=count,
        metavar="NUMBER",
    ),
    "retry_cycle_delay": _duration("How long it waits between cycles [30m].", _POISON),
    "retry_cycle_growth": _option(Growth, "How that delay grows from cycle to cycle.", _POISON),
    "retry_cycle_maximum": _duration("The longest delay between cycles when it grows [1d].", _POISON),
    "retry_cycle_jitter": _option(
        float, "The share of the delay drawn at random, 0 to 1.", _POISON, metavar="SHARE"
    ),
    "on_poison": _option(Disposition, "What is done when the attempts are used up [move].", _POISON),
    "on_invalid": _option(Disposition, "What is done when it can never succeed [move].", _POISON),
    "max_worker_deaths": _option(
        int,
        "Deaths of a worker that make a message poison [4].",
        _POISON,
        parser=optional_count,
        metavar="NUMBER|none",
    ),
    "disable_after_rollbacks": _option(
        int,
        "Rolled-back receives in a row that switch the queue off [none].",
        _POISON,
        parser=optional_count,
        metavar="NUMBER|none",
    ),
    "dead_letter_policy_receive_retry_count": _option(int, "R there.", _DEAD, parser=count, metavar="NUMBER"),
    "dead_letter_policy_on_poison": _option(Disposition, "fault, drop or reject.", _DEAD),
    "dead_letter_policy_on_invalid": _option(Disposition, "fault, drop or reject [as on-poison].", _DEAD),
    "dead_letter_policy_max_worker_deaths": _option(
        int, "Deaths of a worker that are enough there.", _DEAD, parser=optional_count, metavar="NUMBER|none"
    ),
    "no_dead_letter_policy": _option(
        bool, "Count nothing there, as Service Bus does.", _DEAD, "--no-dead-letter-policy"
    ),
}

_GROUPED = ("policy", "dead_letter_policy", "breaker")
_PLAIN = [field.name for field in dataclasses.fields(QueueOptions) if field.name not in _GROUPED]
_POLICY = [field.name for field in dataclasses.fields(PoisonPolicy) if field.name != "retry_cycle_delay"]
_DEAD_PREFIX = "dead_letter_policy_"


def takes_options(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command options of the table, as one argument `given`: those that were given."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        own = [p for name, p in signature.parameters.items() if name != "given"]
        shared = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_TABLE[name])
            for name in names
        ]

        @functools.wraps(command)
        def wrapped(**arguments: Any) -> None:
            values = {name: arguments.pop(name) for name in names}
            command(**arguments, given={name: value for name, value in values.items() if value is not None})

        wrapped.__signature__ = signature.replace(parameters=[*own, *shared])  # type: ignore[attr-defined]
        wrapped.__annotations__ = {p.name: p.annotation for p in [*own, *shared]}
        # Whoever looks for the signature must find this one, not that of the command within.
        del wrapped.__wrapped__
        return wrapped

    return decorate


takes_queue_options = takes_options(*_TABLE)


def changes_of(given: Mapping[str, Any], current: QueueOptions) -> dict[str, Any]:
    """Return the fields of QueueOptions that were given, on the ground of the current options.

    Raises InvalidOption, CommandError.
    """
    values = {name: None if value is NOTHING else value for name, value in given.items()}
    changes = {name: values[name] for name in _PLAIN if name in values}
    policy = _policy(values, current.policy)
    if policy != current.policy:
        changes["policy"] = policy
    breaker = _breaker(values, current.breaker)
    if breaker != current.breaker:
        changes["breaker"] = breaker
    dead = {name: values[name] for name in values if name.startswith(_DEAD_PREFIX)}
    if values.get("no_dead_letter_policy"):
        if dead:
            raise usage("give --no-dead-letter-policy or --dead-letter-policy-…, not both")
        changes["dead_letter_policy"] = None
    elif dead:
        changes["dead_letter_policy"] = _dead_letter_policy(dead, current.dead_letter_policy)
    return changes


def _breaker(values: Mapping[str, Any], current: BreakerPolicy | None) -> BreakerPolicy | None:
    prefix = "breaker_"
    changes = {name.removeprefix(prefix): values[name] for name in values if name.startswith(prefix)}
    wanted = values.get("breaker", current is not None or bool(changes))
    if not wanted:
        if changes:
            raise usage("give --no-breaker or --breaker-…, not both")
        return None
    return dataclasses.replace(current or BreakerPolicy(), **changes)


def _policy(values: Mapping[str, Any], current: PoisonPolicy) -> PoisonPolicy:
    preset = values.get("preset")
    if preset is not None:
        current = getattr(PoisonPolicy, preset.value)()
    changes = {name: values[name] for name in _POLICY if name in values}
    if preset is Preset.WCF_MSMQ3:
        for name in ("on_poison", "on_invalid"):
            if changes.get(name) in _REFUSED_BY_MSMQ3:
                option = name.replace("_", "-")
                raise usage(
                    f"expected --{option} to be fault or drop with the preset wcf_msmq3, "
                    f"got {changes[name].value}: MSMQ 3 had nowhere to move or return a message to"
                )
        changes.setdefault("on_invalid", changes.get("on_poison", current.on_invalid))
    delay = _delay(values, current.retry_cycle_delay)
    return dataclasses.replace(current, retry_cycle_delay=delay, **changes)


def _delay(values: Mapping[str, Any], current: float | Backoff) -> float | Backoff:
    names = {
        "retry_cycle_delay": "initial",
        "retry_cycle_growth": "growth",
        "retry_cycle_maximum": "maximum",
        "retry_cycle_jitter": "jitter",
    }
    changes = {field: values[name] for name, field in names.items() if name in values}
    if isinstance(current, Backoff):
        return dataclasses.replace(current, **changes) if changes else current
    if changes.keys() <= {"initial"}:
        return float(changes.get("initial", current))
    return Backoff(**{"initial": current, "growth": Growth.CONSTANT, **changes})


def _dead_letter_policy(given: Mapping[str, Any], current: PoisonPolicy | None) -> PoisonPolicy:
    changes = {name.removeprefix(_DEAD_PREFIX): value for name, value in given.items()}
    if current is not None:
        return dataclasses.replace(current, **changes)
    if "on_poison" not in changes:
        raise usage("a dead-letter policy needs --dead-letter-policy-on-poison: fault, drop or reject")
    return PoisonPolicy(**{"on_invalid": changes["on_poison"], **changes})
