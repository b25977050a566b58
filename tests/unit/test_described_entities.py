"""What an administration client wrote reads back as it wrote it."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import Any
from xml.etree.ElementTree import Element

import hypothesis.strategies as st
from hypothesis import given, settings

from lazaretto.model.entities import QueueOptions, TopicOptions
from lazaretto.model.filters.rules import decode_rules, encode_rules
from lazaretto.model.spans import write_duration
from lazaretto.servicebus.atom.feeds import INSTANCE, element, parse
from lazaretto.servicebus.atom.rules import described, rule_of
from lazaretto.servicebus.atom.settings import ELEMENTS, FOREVER, changes_of, read_seconds, told

BASE = "http://localhost:5672"
SECOND = 1_000_000
DAY = 86_400 * SECOND


def duration(micros: int) -> str:
    """Return microseconds, the shortest time that Python has, as .NET writes them."""
    seconds, rest = divmod(micros, SECOND)
    return f"PT{seconds}.{rest:06}S" if rest else f"PT{seconds}S"


def durations(least: int, most: int) -> st.SearchStrategy[str]:
    return st.integers(least, most).map(duration)


NAMES = st.from_regex(r"\A[A-Za-z0-9_-][A-Za-z0-9._-]{0,20}\Z")
FLAGS = st.sampled_from(["true", "false"])
ADDRESSES = st.builds(
    "{}{}".format,
    st.sampled_from(["http://localhost/", "sb://localhost:5672/", "sb://other.example/", "amqps://h:1/", ""]),
    NAMES,
)
VALUES: dict[str, st.SearchStrategy[str]] = {
    "LockDuration": durations(5 * SECOND, 300 * SECOND),
    "MaxSizeInMegabytes": st.sampled_from(["1024", "2048", "5120", "16384", "81920"]),
    "DefaultMessageTimeToLive": durations(SECOND, 3650 * DAY) | st.just(FOREVER),
    "DuplicateDetectionHistoryTimeWindow": durations(20 * SECOND, 7 * DAY),
    "MaxDeliveryCount": st.integers(1, 2_147_483_647).map(str),
    "AutoDeleteOnIdle": durations(300 * SECOND, 3650 * DAY) | st.just(FOREVER),
    "MaxMessageSizeInKilobytes": st.integers(1024, 102_400).map(str),
    "UserMetadata": st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=50),
    **dict.fromkeys(("ForwardTo", "ForwardDeadLetteredMessagesTo"), ADDRESSES),
    **dict.fromkeys(
        ("RequiresDuplicateDetection", "RequiresSession", "DeadLetteringOnMessageExpiration",
         "DeadLetteringOnFilterEvaluationExceptions", "EnablePartitioning", "EnableBatchedOperations",
         "EnableExpress", "SupportOrdering", "FilteringMessagesBeforePublishing",
         "EnableSubscriptionPartitioning"),
        FLAGS,
    ),
}  # fmt: skip


@st.composite
def descriptions(draw: st.DrawFn) -> tuple[str, dict[str, str]]:
    """Return a kind of entity and its elements."""
    kind = draw(st.sampled_from(sorted(ELEMENTS)))
    names = draw(st.sets(st.sampled_from(sorted(ELEMENTS[kind]))))
    if names & {"ForwardTo", "ForwardDeadLetteredMessagesTo"}:
        # What forwards is never idle, which is told.
        names -= {"AutoDeleteOnIdle", "RequiresSession"}
    return kind, {name: draw(VALUES[name]) for name in sorted(names)}


@given(descriptions())
@settings(max_examples=150, deadline=None)
def test_an_entity_reads_back_as_it_was_written(drawn: tuple[str, dict[str, str]]) -> None:
    kind, written = drawn
    default: QueueOptions | TopicOptions = TopicOptions() if kind == "TopicDescription" else QueueOptions()
    made = type(default)(**changes_of(kind, written, default, creates=True, base=BASE))
    read = dict(told(kind, made, BASE))
    for name, text in written.items():
        if text.startswith("P") and name not in (
            "UserMetadata",
            "ForwardTo",
            "ForwardDeadLetteredMessagesTo",
        ):
            assert round(read_seconds(read[name]) * SECOND) == round(read_seconds(text) * SECOND), name
        elif name.startswith("Forward") and "://" not in text:
            assert read[name] == text or read[name].endswith(f"/{text}")
        else:
            assert read.get(name, "") == text, name
    # A client that writes what it read changes nothing.
    assert changes_of(kind, read, made, base=BASE) == {}


def typed(kind: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[str, str]]:
    return st.tuples(st.just(kind), values.map(str))


def moment(ticks: int) -> str:
    """Return a time of .NET, with its tenths of a microsecond."""
    seconds, rest = divmod(ticks, 10_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:07}Z"


WRITTEN = st.one_of(
    typed("string", st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=20)),
    typed("int", st.integers(-(1 << 31), (1 << 31) - 1)),
    typed("long", st.integers(-(1 << 63), (1 << 63) - 1)),
    typed("short", st.integers(-(1 << 15), (1 << 15) - 1)),
    typed("unsignedByte", st.integers(0, 255)),
    typed("double", st.floats(allow_nan=False, allow_infinity=False)),
    typed("boolean", FLAGS),
    typed("dateTime", st.integers(0, 4_000_000_000 * SECOND).map(moment)),
    typed("guid", st.uuids()),
    typed("decimal", st.decimals(-(10**9), 10**9, places=3)),
    typed("duration", st.timedeltas().map(write_duration)),
    typed("base64Binary", st.binary(max_size=9).map(lambda raw: base64.b64encode(raw).decode())),
)
PAIRS = st.dictionaries(NAMES, WRITTEN, min_size=1, max_size=4)


def pairs(values: dict[str, tuple[str, str]]) -> str:
    return "".join(
        f"<KeyValueOfstringanyType>{element('Key', name)}"
        f'<Value i:type="d6p1:{kind}" xmlns:d6p1="x">{element("v", text)[3:-4]}</Value>'
        "</KeyValueOfstringanyType>"
        for name, (kind, text) in values.items()
    )


def read_pairs(parent: Element | None) -> dict[str, tuple[str, str]]:
    found = {}
    for pair in parent if parent is not None else ():
        value = pair.find("Value")
        assert value is not None
        found[pair.findtext("Key") or ""] = (value.get("type", ""), value.text or "")
    return found


@given(PAIRS, PAIRS)
@settings(max_examples=150, deadline=None)
def test_a_rule_reads_back_as_it_was_written(
    wanted: dict[str, tuple[str, str]], parameters: dict[str, tuple[str, str]]
) -> None:
    for filter_, inner, place in (
        ("CorrelationFilter", f"<Properties>{pairs(wanted)}</Properties>", "Filter/Properties"),
        ("SqlFilter", f"<SqlExpression>1=1</SqlExpression><Parameters>{pairs(wanted)}</Parameters>",
         "Filter/Parameters"),
    ):  # fmt: skip
        raw = (
            f'<RuleDescription xmlns="s" xmlns:i="{INSTANCE}"><Filter i:type="{filter_}">{inner}</Filter>'
            f'<Action i:type="SqlRuleAction"><SqlExpression>SET a = 1</SqlExpression>'
            f"<Parameters>{pairs(parameters)}</Parameters></Action><Name>r</Name></RuleDescription>"
        )
        rule = rule_of(parse(raw.encode()), "r")
        (stored,) = decode_rules(encode_rules([rule]))
        assert stored == rule
        read = parse(described(stored, datetime.now(UTC)).encode())
        assert read_pairs(read.find(place)) == wanted
        assert read_pairs(read.find("Action/Parameters")) == parameters
