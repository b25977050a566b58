"""Which failures are the same failure: after a move, an edit elsewhere, in whatever order they come."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import re
import time
import types
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lazaretto
from lazaretto.engine.repairs.course import KeyList
from lazaretto.host import Handler
from lazaretto.host.handler_calls import Caller
from lazaretto.model.failure import Failure, failure_of
from lazaretto.model.fingerprint import Fingerprint, fingerprint_of, outage_of
from lazaretto.model.shape import _MOST_KNOWN, _PIECE, HOLE, LONGEST_SHAPE, is_value, shape, templates
from lazaretto.model.site import site_in

SOAK = bool(os.environ.get("LAZARETTO_SOAK"))

SOURCE = """
import json

def check(text):
    if text == "a":
        raise ValueError(text)
    if text == "b":
        raise ValueError(text + "!")

def load_header(text):
    return json.loads(text)

def load_body(text):
    return json.loads(text)

def chained(text):
    try:
        check(text)
    except ValueError as error:
        raise ValueError(text) from error

def during(text):
    try:
        check(text)
    except ValueError:
        raise ValueError(text)

def looped(text):
    check(text)

class Handler:
    def handle(self, text):
        check(text)
"""


def _module(folder: Path, source: str = SOURCE) -> types.ModuleType:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "shop.py"
    file.write_text(source)
    spec = importlib.util.spec_from_file_location("shop", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _failure(function: object, *arguments: object) -> Failure:
    try:
        function(*arguments)  # type: ignore[operator]
    except Exception as error:
        found = failure_of(error)
        assert found is not None
        return found
    raise AssertionError


def _print(failure: Failure) -> int:
    return fingerprint_of(None, None, failure).number


def _as_text(failure: Failure) -> Failure:
    return Failure(failure.type, failure.message, failure.stack)


def test_the_folder_does_not_count(tmp_path: Path) -> None:
    one = _failure(_module(tmp_path / "app-1.2.3").check, "a")
    other = _failure(_module(tmp_path / "app-1.2.4").check, "a")
    assert one.site == "shop.check: raise ValueError(text)"
    assert _print(one) == _print(other)
    assert outage_of(one) == outage_of(other)
    assert _print(_as_text(one)) == _print(_as_text(other))


def test_two_raise_lines_of_one_function_are_two(tmp_path: Path) -> None:
    module = _module(tmp_path)
    one, other = _failure(module.check, "a"), _failure(module.check, "b")
    assert _print(one) != _print(other)
    assert outage_of(one) != outage_of(other)
    assert outage_of(_as_text(one)) != outage_of(_as_text(other))


def test_callers_of_one_library_function_are_two(tmp_path: Path) -> None:
    module = _module(tmp_path)
    one, other = _failure(module.load_header, "{"), _failure(module.load_body, "{")
    assert one.site is not None
    assert one.site.splitlines()[0] == "shop.load_header: return json.loads(text)"
    assert one.site.splitlines()[1].startswith("json.decoder.JSONDecoder.raw_decode: ")
    assert outage_of(one) != outage_of(other)
    assert outage_of(_as_text(one)) != outage_of(_as_text(other))


@pytest.mark.parametrize("name", ["chained", "during", "looped"])
def test_a_chained_error_is_where_the_first_one_was_raised(tmp_path: Path, name: str) -> None:
    module = _module(tmp_path)
    plain, other = _failure(module.check, "a"), _failure(getattr(module, name), "a")
    assert _print(other) == _print(plain)
    assert _print(_as_text(other)) == _print(_as_text(plain))


@pytest.mark.parametrize("name", ["chained", "during", "looped"])
def test_an_error_of_this_package_that_is_being_handled_is_no_site(tmp_path: Path, name: str) -> None:
    module = _module(tmp_path)
    plain = _failure(module.check, "a")
    try:
        KeyList().extend(object())  # type: ignore[arg-type]
    except TypeError as error:
        # As in a thread in which our code has caught it.
        assert error.__traceback__ is not None
        error.__traceback__ = error.__traceback__.tb_next
        assert error.__traceback__ is not None
        other = _failure(getattr(module, name), "a")
    assert other.site == plain.site
    assert site_in(other.stack) == site_in(plain.stack)


class TestWhatWasHandledBeforeIsNoCause:
    """A handler is called while another error is being handled, which Python makes a context of its own."""

    @staticmethod
    def _message(broker: lazaretto.Broker) -> lazaretto.ReceivedMessage:
        broker.create_queue("q")
        broker.sender("q").send(lazaretto.Message(b"a"))
        (message,) = broker.receiver("q").receive()
        return message

    @pytest.mark.parametrize("name", ["chained", "during", "looped"])
    @pytest.mark.parametrize("asynchronous", [False, True])
    def test_in_a_host(self, tmp_path: Path, name: str, asynchronous: bool) -> None:
        module = _module(tmp_path)

        def handle(message: lazaretto.ReceivedMessage) -> None:
            getattr(module, name)(message.body.decode())

        async def handle_async(message: lazaretto.ReceivedMessage) -> None:
            handle(message)

        with lazaretto.connect(tmp_path / "q.db") as broker:
            message = self._message(broker)
        call = Caller(Handler("q", handle_async if asynchronous else handle))
        try:
            _ = os.environ["BEFORE"]
        except KeyError:
            with pytest.raises(ValueError, match="a") as raised:
                call(message, None)
        call.close()
        found = failure_of(raised.value)
        assert found is not None
        assert found.site == "shop.check: raise ValueError(text)"
        assert "BEFORE" not in (found.stack or "")

    @pytest.mark.parametrize("name", ["chained", "during", "looped"])
    def test_in_consume(self, tmp_path: Path, name: str) -> None:
        module = _module(tmp_path)
        with lazaretto.connect(tmp_path / "q.db") as broker:
            policy = lazaretto.PoisonPolicy(receive_retry_count=0)
            broker.create_queue("q", lazaretto.QueueOptions(policy=policy))
            broker.sender("q").send(lazaretto.Message(b"a"))
            try:
                _ = os.environ["BEFORE"]
            except KeyError:
                handle = lambda message: getattr(module, name)(message.body.decode())  # noqa: E731
                broker.consume("q", handle, stop_when_idle=True, max_wait=0)
            (attempt,) = broker.attempts("q", 1)
        assert attempt.site == "shop.check: raise ValueError(text)"
        assert "BEFORE" not in (attempt.stack or "")


def test_an_edit_elsewhere_does_not_count(tmp_path: Path) -> None:
    rng = random.Random(7)
    before = _failure(_module(tmp_path / "v0").Handler().handle, "a")
    for edit in range(20):
        lines = SOURCE.splitlines()
        for _ in range(rng.randint(1, 5)):
            # Before a function, so that it stays what it was.
            places = [n for n, line in enumerate(lines) if line.startswith(("def ", "class "))]
            lines.insert(rng.choice(places), rng.choice(["", "# a comment", f"constant_{edit} = {edit}"]))
        after = _failure(_module(tmp_path / f"v{edit + 1}", "\n".join(lines)).Handler().handle, "a")
        assert _print(after) == _print(before)
        assert _print(_as_text(after)) == _print(_as_text(before))


def test_the_values_of_a_text_do_not_count(tmp_path: Path) -> None:
    check = _module(tmp_path).check
    found = _failure(check, "a")
    one, other = (
        Failure(found.type, f"order {number} of 10.0.0.{number} failed", None, found.site)
        for number in (7, 81)
    )
    assert _print(one) == _print(other) != _print(Failure(found.type, "no order", None, found.site))
    # To the breaker no text counts.
    assert outage_of(one) == outage_of(Failure(found.type, "no order", None, found.site))


def test_an_error_without_a_stack_is_known_by_its_type_and_text() -> None:
    crash = Failure("WorkerCrashed", "killed")
    assert _print(crash) == _print(Failure("WorkerCrashed", "killed", ""))
    assert _print(crash) != _print(Failure("HandlerTimeout", "killed"))
    assert outage_of(Failure("WorkerCrashed", None)) == outage_of(Failure("WorkerCrashed", "killed"))


def test_reasons_and_descriptions_count() -> None:
    prints = [
        fingerprint_of("Expired", None, None),
        fingerprint_of("Expired", "after 5 s", None),
        fingerprint_of("Full", "after 5 s", None),
    ]
    assert len({p.number for p in prints}) == 3
    assert fingerprint_of("Expired", "after 5 s", None) == fingerprint_of("Expired", "after 71 s", None)


def test_the_parts_do_not_run_together() -> None:
    assert Fingerprint("a", "b", None, None).number != Fingerprint("a", None, "b", None).number
    assert Fingerprint(None, "", None, None).number != Fingerprint(None, None, None, None).number


def test_the_fault_handler_puts_the_innermost_first() -> None:
    stack = (
        "Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call first):\n"
        '  File "/usr/lib/python3.11/ctypes.py", line {} in string_at\n'
        '  File "/srv/shop-1.2/handler.py", line 9 in handle\n'
    )
    assert site_in(stack.format(5)) == site_in(stack.format(6)) == "handler.py:handle"
    assert site_in(stack.replace("in handle", "in other")) == "handler.py:other"


def test_stacks_of_other_languages_are_read() -> None:
    java = (
        "shop.OrderError: no\n\tat shop.Orders.take(Orders.java:12)\n"
        "Caused by: java.io.IOException: broken\n\tat java.net.Socket.read(Socket.java:1)\n"
        "\tat shop.Net.read(Net.java:{})\n"
    )
    assert site_in(java.format(4)) == site_in(java.format(5)) == "shop.Net.read\njava.net.Socket.read"
    net = "   at System.Int32.Parse(String s)\n   at Shop.Take(String s) in C:\\src\\Shop.cs:line 4\n"
    assert site_in(net) == "Shop.Take\nSystem.Int32.Parse"
    script = "Error: no\n    at take (/srv/a/orders.js:10:5)\n    at node:internal/main:1:2\n"
    assert site_in(script) == "take"
    assert site_in("no stack at all") is site_in("") is site_in(None) is None


def test_the_fingerprint_of_a_release_stays() -> None:
    # Other values need another version.
    known = fingerprint_of("MaxDeliveryCountExceeded", None, Failure("KeyError", "'a' of 5", None, "m.f: x"))
    assert known.shape == f"'a' of {HOLE}"
    assert known.number == STORED


STORED = 9073264436000911837


# -- shapes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("order 17 is gone", f"order {HOLE} is gone"),
        ("expected an airport, got BQN", "expected an airport, got BQN"),
        ("id=abc, size: 4 KiB (8 KiB)", f"id={HOLE}, size: {HOLE}"),
        ("cannot open /srv/data/a.txt: gone", f"cannot open {HOLE}: gone"),
        ("at Mon, 3 Aug 2026 10:00", f"at {HOLE}"),
        ("no attribute 'split'", "no attribute 'split'"),
        ("[1, 2, 3]", f"[{HOLE}]"),
        ("[1, 2]", f"[{HOLE}]"),
        ("", ""),
    ],
)
def test_shapes(text: str, expected: str) -> None:
    assert shape(text) == expected


def test_a_cheap_native_step_may_stand_before_the_shape() -> None:
    rng = random.Random(1)
    before = re.compile(r"[A-Za-z_0-9]*[0-9][A-Za-z_0-9]*")
    for _ in range(5_000):
        text = "".join(rng.choice("ab1 :/.=-,_M@\u00e9\u0661'(") for _ in range(rng.randint(1, 25)))
        assert shape(before.sub("0", text)) == shape(text)


@pytest.mark.parametrize(
    "piece",
    ["a-", "a.", "1 ", "=", "Mon ", "a@b.", "/a", "\u2731", "\u2732", "(", "a:b", "Aug 1 ", "\0", "\u202e"],
)
def test_the_shape_of_any_text_is_bounded(piece: str) -> None:
    text = piece * 5_000
    started = time.process_time()
    for offset in range(10):
        assert len(shape(text[offset % len(piece) :] + str(offset))) <= LONGEST_SHAPE
    # 5 ms for each is the goal; a text that took a square of its length would need a second.
    assert time.process_time() - started < 1


def test_templates_join_shapes_that_differ_in_an_open_word() -> None:
    open_ = {f"no user {name} here": 1 for name in ("ann", "bob", "cid", "dan")}
    closed = {"no red light": 50, "no green light": 50}
    found = templates({**open_, **closed})
    assert {found[text] for text in open_} == {f"no user {HOLE} here"}
    assert {found[text] for text in closed} == set(closed)


def test_the_order_of_arrival_plays_no_role() -> None:
    rng = random.Random(3)
    counts = {
        f"{verb} {noun} of {name} failed": rng.randint(1, 3)
        for verb in ("read", "write")
        for noun in ("row", "page")
        for name in ("ann", "bob", "cid", "dan", "eve")
    }
    expected = templates(counts)
    assert len(set(expected.values())) < len(counts)
    for _ in range(10):
        items = list(counts.items())
        rng.shuffle(items)
        assert templates(dict(items)) == expected


def test_distinct_texts_cost_bounded_time_and_memory() -> None:
    count = 100_000 if SOAK else 4_000
    rng = random.Random(4)
    letters = "abcdefghijklmnopqrstuvwxyz"
    shapes = set()
    started = time.process_time()
    for _ in range(count):
        text = " ".join("".join(rng.choices(letters, k=6)) for _ in range(12))
        shapes.add(shape(text))
    # As many as one kind of error keeps apart.
    some = dict.fromkeys(sorted(shapes)[:1_000], 1)
    assert templates(some).keys() == some.keys()
    assert time.process_time() - started < 5 + count * 300e-6
    assert len(_PIECE.__self__) <= _MOST_KNOWN  # type: ignore[attr-defined]


_WORDS = st.lists(st.sampled_from(["no", "user", "ann", "bob", "17", "here", "row"]), min_size=1, max_size=4)


@given(st.lists(_WORDS.map(" ".join), max_size=40), st.randoms(use_true_random=False))
@settings(max_examples=2_000 if SOAK else 150, deadline=None)
def test_texts_have_the_same_templates_in_any_order(texts: list[str], r: random.Random) -> None:
    shuffled = texts[:]
    r.shuffle(shuffled)
    assert templates(Counter(map(shape, texts))) == templates(Counter(map(shape, shuffled)))


def test_site_and_shape_are_quick(tmp_path: Path) -> None:
    """The goal is 15 us a failure on a free machine; this allows for one that is not."""
    failure = _failure(_module(tmp_path).load_body, json.dumps("x")[:2])
    started = time.process_time()
    for number in range(2_000):
        fingerprint_of("Reason", None, Failure(failure.type, f"text {number}", None, failure.site))
    assert (time.process_time() - started) / 2_000 < 150e-6


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("'sofa'", True), ('"it\'s"', True), ("('a', 1)", True), ("17", True), ("{'a': None}", False),
        ("no such port", False), ("can't open 'x'", False), ("'a' is not 'b'", False), ("", False),
        ("3 items", False), ("timeout", False), ("KeyError('x')", False),
    ],
)  # fmt: skip
def test_a_text_is_a_value_if_no_word_is_its_own(text: str, value: bool) -> None:
    assert is_value(shape(text)) is value
