"""What failing messages have that good ones lack: planted causes are found, chance is not."""

from __future__ import annotations

import json
import os
import random
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lazaretto import FilterError
from lazaretto.model.filters.sql import compile_filter
from lazaretto.model.filters.view import MessageView
from lazaretto.model.headers import Headers
from lazaretto.model.triage.differences import HOLE, Cause, find_difference, find_differences, unite
from lazaretto.model.triage.features import Features, Group, features_of, rows_of

from .planted import CAUSES, Order, Planted, bad, features, good

SOAK = bool(os.environ.get("LAZARETTO_SOAK"))
SEEDS = range(20) if SOAK else range(2)
#: Failing, good, share of foreign letters among the failing, share of good ones with the cause.
MIXES = [
    (20, 2_000, 0.0, 0.0), (50, 1_000, 0.0, 0.0), (500, 2_000, 0.0, 0.0), (500, 2_000, 0.15, 0.0),
    (500, 2_000, 0.0, 0.02),
]  # fmt: skip
#: The short form: few failing ones, and some that failed for another reason.
QUICK = [[(20, 2_000, 0.0, 0.0)], [(200, 2_000, 0.15, 0.0)]]


def seen(body: bytes) -> MessageView:
    return MessageView(Headers(), size=len(body), body=lambda: body)


def group(orders: list[Order]) -> Group:
    return Group([features(o) for o in orders])


def is_right(cause: Planted, found: Any) -> bool:
    texts = {found.filter, *found.also} if found else set()
    return bool(texts & cause.truth) or (
        cause.name == "range" and found is not None and found.filter.startswith("body.amount >= ")
    )


def test_planted_causes_are_found_exactly() -> None:
    wrong, total = [], 0
    for seed in SEEDS:
        for failing, well, foreign, diluted in MIXES if SOAK else QUICK[seed]:
            r = random.Random(seed * 1000 + failing)
            pool = group(good(r, well)).rows
            for cause in CAUSES:
                spoiled = group(bad(r, cause, round(well * diluted))).rows
                others = Group([*pool[: well - len(spoiled)], *spoiled])
                found = find_difference(group(bad(r, cause, failing, foreign)), others)
                total += 1
                if not is_right(cause, found):
                    wrong.append((seed, failing, well, foreign, diluted, cause.name, found and found.filter))
    assert len(wrong) <= 0.02 * total, wrong


def test_groups_that_differ_in_nothing_have_no_difference() -> None:
    r = random.Random(99)
    pool = [features(o) for o in good(r, 6_000 if SOAK else 1_500)]
    found = []
    rounds = 400 if SOAK else 30
    for _ in range(rounds):
        failing, well = r.choice([10, 20, 50, 200, 600]), r.choice([300, 800, 3_000] if SOAK else [300, 800])
        rows = r.sample(pool, failing + well)
        difference = find_difference(Group(rows[:failing]), Group(rows[failing:]))
        if difference is not None:
            found.append((failing, well, difference.filter, difference.gain))
    assert len(found) <= 0.01 * rounds, found


def test_what_is_found_is_a_filter_that_holds_for_what_it_says() -> None:
    r = random.Random(5)
    well = good(r, 500)
    for cause in CAUSES:
        failing = bad(r, cause, 100, 0.1)
        found = find_difference(group(failing), group(well))
        assert found is not None, cause.name
        condition = compile_filter(found.filter)
        for orders, mask in ((failing, found.failing), (well, found.good)):
            holds = [i for i, o in enumerate(orders) if matches(condition, json.dumps(o).encode())]
            assert holds == rows_of(mask, len(orders)), found.filter


def matches(condition: Any, body: bytes) -> bool:
    try:
        return condition(seen(body)) is True
    except FilterError:
        return False


def test_a_cause_may_have_two_differences() -> None:
    r = random.Random(3)
    failing = bad(r, CAUSES[1], 120) + bad(r, CAUSES[5], 80)
    found, left = find_differences(group(failing), group(good(r, 1_000)))
    assert [d.filter for d in found] == [
        "body.app_version = '2.3.1'",
        "NOT EXISTS(body.customer.address.zip)",
    ]
    assert left == []


def _cause(r: random.Random, word: str, spoil: Any, well: Group, text: str = "missing field {}") -> Cause:
    orders = good(r, 300)
    for one in orders:
        spoil(one)
    sample = group(orders)
    text = text.format(word)
    return Cause("KeyError", text, 300, sample, (word,), find_difference(sample, well, text))


def test_siblings_are_one_cause_if_one_difference_says_more() -> None:
    r = random.Random(3)
    well = group(good(r, 1_500))
    missing = [
        _cause(r, field, lambda o, field=field: o.pop(field), well)
        for field in ("amount", "payment", "region", "channel")
    ]
    assert sorted(c.difference.filter for c in unite(missing, well) if c.difference) == [
        f"NOT EXISTS(body.{field})" for field in ("amount", "channel", "payment", "region")
    ]
    regions = [
        _cause(r, name, lambda o, name=name: o.update(region=name), well, "no region '{}' here")
        for name in ("mars", "venus", "pluto")
    ]
    (one,) = unite(regions, well)
    assert one.difference is not None
    assert one.difference.filter == "body.region IN ('mars', 'pluto', 'venus')"
    assert (one.text, one.letters, sorted(one.members)) == (
        f"no region '{HOLE}' here",
        900,
        ["mars", "pluto", "venus"],
    )


def test_a_text_with_two_holes_is_no_sibling_of_itself() -> None:
    r = random.Random(3)
    well = group(good(r, 500))
    alone = _cause(r, "", lambda o: o.update(region="mars"), well, f"order {HOLE} to {HOLE}")
    assert unite([alone], well) == [alone]


def test_properties_and_system_fields_are_features() -> None:
    headers = Headers(
        subject="s", content_type="text/plain",
        properties={
            "tenant": 5, "Traceparent": "00-1", "tracestate": "x", "Diagnostic-Id": "y", "odd name": True,
        },
    )  # fmt: skip
    view = MessageView(headers, "m-1", size=3, body=lambda: b"abc")
    assert features_of(view) == {
        "sys.Label": "s", "sys.ContentType": "text/plain", "sys.Size": 3, "user.tenant": 5,
        "user.[odd name]": True,
    }  # fmt: skip
    rows = [
        features_of(MessageView(Headers(properties={"tenant": n % 7}), body=lambda: b"")) for n in range(300)
    ]
    failing = [
        features_of(MessageView(Headers(properties={"tenant": 9}), body=lambda: b"")) for n in range(30)
    ]
    found = find_difference(Group(failing), Group(rows))
    assert found is not None
    assert found.filter in ("user.tenant = 9", "user.tenant >= 9", "user.tenant >= 7")


def test_fields_can_be_left_out_with_all_below() -> None:
    body = b'{"a": {"b": 1}, "c": [{"d": 2}]}'
    view = seen(body)
    assert features_of(view, ["BODY.a", "sys.size"]).keys() == {"body.c", "body.c[0]", "body.c[0].d"}
    assert features_of(view, ["body", "sys.size"]) == {}


HOSTILE: dict[str, Any] = {
    "not JSON": lambda n: b"\xff\x00" * (n % 50),
    "deep": lambda n: b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
    "distinct texts": lambda n: json.dumps({"text": f"{n}-{n * 7919}", "id": n}).encode(),
    "wide": lambda n: json.dumps({f"k{n}-{i}": i for i in range(1_000)}).encode(),
    "huge numbers": lambda n: b'{"a": %d, "b": 1e308, "c": -%d}' % (10**300 + n, 10**18 + n),
    "controls": lambda n: json.dumps(
        {"\x1b[31m": f"\u202e\x00'{n % 3}", "": 1, "]": "]]", "a" * 300: 1}
    ).encode(),
    "arrays": lambda n: json.dumps([[[[n]]]] * 500).encode(),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_bodies_cost_bounded_time_and_say_nothing_wrong(name: str) -> None:
    make = HOSTILE[name]
    start = time.process_time()
    bodies = [make(n) for n in range(1_000 if SOAK else 300)]
    rows = [features_of(seen(body)) for body in bodies]
    found = find_difference(Group(rows[::2]), Group(rows[1::2]), "\x1b[31m" * 10_000)
    assert time.process_time() - start < 20
    assert found is None or callable(compile_filter(found.filter))


def test_a_text_of_a_megabyte_is_a_feature_by_its_traits() -> None:
    body = json.dumps({"text": " " + "é" * 400_000}, ensure_ascii=False).encode()
    found = features_of(seen(body), ["sys.size"])
    assert found == {"body.text": (400_001, False, False, False)}


_ROWS = st.lists(
    st.dictionaries(
        st.sampled_from(["a", "b", "]", "x y", "é"]),
        st.one_of(
            st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4),
            st.lists(st.integers(), max_size=2),
        ),
    ),
    min_size=1,
    max_size=12,
)  # fmt: skip


@given(_ROWS, _ROWS, st.integers(1, 40))
@settings(max_examples=150 if not SOAK else 2_000, deadline=None)
def test_every_difference_holds_for_exactly_the_rows_it_says(
    failing: list[Features], well: list[Features], times: int
) -> None:
    sides = [[json.dumps(o).encode() for o in side] * times for side in (failing, well)]
    groups = [Group([features_of(seen(b)) for b in side]) for side in sides]
    for found in find_differences(groups[0], groups[1])[0][:1]:
        condition = compile_filter(found.filter)
        for side, mask in zip(sides, (found.failing, found.good), strict=True):
            assert [i for i, b in enumerate(side) if matches(condition, b)] == rows_of(mask, len(side)), (
                found.filter
            )
