"""The sandbox against everything an item can do: that item fails, the others are done exactly once."""

from __future__ import annotations

import array
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import zoo
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from patience import wait_until

from lazaretto.errors import InvalidOption, SandboxError, SandboxSetupError
from lazaretto.isolation import (
    Blobs,
    Columns,
    FailedResult,
    Nullable,
    Repeated,
    Sandbox,
    SandboxOptions,
    Status,
    Verdict,
)
from lazaretto.isolation import sandbox as sandbox_module

MODES = ("fork", "spawn")
MARK = "LAZARETTO_TEST_MARK"
_, HARD_LIMIT = resource.getrlimit(resource.RLIMIT_NOFILE)


def descendants() -> set[int]:
    """Return the processes that carry this test's mark, which everything started from here inherits."""
    mark = f"{MARK}={os.environ[MARK]}".encode()
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                alive = (entry / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
                if alive and mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.add(int(entry.name))
            except OSError:
                continue
    return found


@pytest.fixture(autouse=True)
def nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """After each test no process is left that it started."""
    monkeypatch.setenv(MARK, f"{os.getpid()}-{random.random()}")
    yield
    wait_until(lambda: not descendants())


#: A deadline that is waited for in full, and in which the others of a batch end many times over.
SHORT = 3.0


def options(mode: str, **changes: object) -> SandboxOptions:
    given_ = {"deadline": 120.0, "memory": 100_000_000, "mode": mode, **changes}
    return SandboxOptions(**given_)  # type: ignore[arg-type]


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def printed() -> list[bytes]:
    return []


@pytest.fixture
def sandbox(mode: str, printed: list[bytes]) -> Iterator[Sandbox]:
    with Sandbox(zoo.setup, options(mode), on_output=printed.append) as sandbox:
        assert sandbox.mode == mode
        yield sandbox


@pytest.fixture
def brief(mode: str) -> Iterator[Sandbox]:
    with Sandbox(zoo.setup, options(mode, deadline=SHORT), on_output=lambda text: None) as sandbox:
        yield sandbox


@pytest.mark.parametrize("kind", zoo.ZOO)
def test_each_kind_costs_only_itself(request: pytest.FixtureRequest, mode: str, kind: str) -> None:
    sandbox: Sandbox = request.getfixturevalue("brief" if zoo.ZOO[kind][1] == "timeout" else "sandbox")
    _, status, error, stack = zoo.ZOO[kind]
    before, verdict, *after = sandbox.run([b"good 1", kind.encode(), b"good 2", b"quiet", b"good 3"])
    assert before == Verdict(Status.DONE, b"good 1")
    assert after == [
        Verdict(Status.DONE, b"good 2"),
        Verdict(Status.DONE),
        Verdict(Status.DONE, b"good 3"),
    ]
    assert verdict.status.value == status, verdict
    if error is not None:
        assert verdict.error_type is not None
        assert verdict.error_type.endswith(error)
        assert len(verdict.error_message or "") <= 4096
    if stack is not None:
        assert stack in (verdict.stack or "")
        assert len(verdict.stack or "") <= 65_536
    # The sandbox is as good as new.
    assert sandbox.run([b"good"]) == [Verdict(Status.DONE, b"good")]


def test_a_crash_tells_its_signal_or_exit_status(sandbox: Sandbox) -> None:
    verdicts = sandbox.run([b"segfault", b"kill_itself", b"exit_3", b"exit_0"])
    assert [(v.signal, v.exit_status) for v in verdicts] == [(11, None), (9, None), (None, 3), (None, 0)]
    assert verdicts[0].error_message == "killed by signal 11 (SIGSEGV)"
    assert sandbox.deaths == 4


def test_a_timeout_tells_how_long_it_was(brief: Sandbox) -> None:
    (verdict,) = brief.run([b"sleeps"])
    assert verdict.elapsed >= SHORT
    assert verdict.error_message == f"no answer within {SHORT:g} s"


def test_what_an_item_has_patched_does_not_garble_the_errors_of_others(sandbox: Sandbox) -> None:
    patched, raised = sandbox.run([b"patches_msgpack", b"value_error"])
    assert patched == Verdict(Status.DONE)
    assert (raised.status, raised.error_type) == (Status.ERROR, "ValueError")


def test_a_parent_that_was_stopped_keeps_nobody_waiting(sandbox: Sandbox) -> None:
    """It is found out by the next death, which costs what it always costs."""
    stops, dies, raises, good = sandbox.run([b"stops_parent", b"exit_3", b"value_error", b"good"])
    assert (stops, dies.status, raises.status) == (Verdict(Status.DONE), Status.CRASH, Status.ERROR)
    assert dies.exit_status == 3
    assert good == Verdict(Status.DONE, b"good")


def test_a_runner_that_says_nothing_between_rounds(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is replaced; what its items did is known, and nobody is blamed."""
    monkeypatch.setattr(sandbox_module, "ANSWER", 1.0)

    def setup() -> Callable[[bytes], bytes]:
        class Hanging:
            def flush(self) -> None:
                time.sleep(3600)

        def act(item: bytes) -> bytes:
            if item == b"hang":
                sys.stdout = Hanging()
            return item

        return act

    with Sandbox(setup, options(mode, deadline=None)) as sandbox:
        for _ in range(2):
            verdicts = sandbox.run([b"good", b"hang", b"good"])
            assert [(v.status, v.result) for v in verdicts] == [
                (Status.DONE, b"good"), (Status.DONE, b"hang"), (Status.DONE, b"good"),
            ]  # fmt: skip


@pytest.mark.parametrize("value", [0x00, 0x01, 0xFF])
def test_memory_that_was_overwritten_is_not_believed(mode: str, value: int) -> None:
    """Nothing is known of a round then; when its items come again, each is alone."""

    def setup() -> Callable[[bytes], bytes]:
        import ctypes

        def act(item: bytes) -> bytes:
            if item == b"scribble":
                for line in Path("/proc/self/maps").read_text().splitlines():
                    if "memfd:lazaretto-sandbox" in line and "rw-s" in line:
                        ctypes.memset(int(line.split("-")[0], 16), value, 4096)
            return item

        return act

    items = [b"good 1", b"good 2", b"scribble", b"good 3"]
    with Sandbox(setup, options(mode)) as sandbox:
        for _ in range(2):
            first = sandbox.run(items)
            assert {v.status for v in first} <= {Status.DONE, Status.NOT_RUN, Status.CRASH}
            assert all(v.result == i for v, i in zip(first, items, strict=True) if v.status is Status.DONE)
            second = sandbox.run(items)
            assert second[2].status is not Status.NOT_RUN
            assert [v.result for v in second[:2] + second[3:]] == [b"good 1", b"good 2", b"good 3"]


def test_results_that_are_none_of_ours_are_not_believed(mode: str) -> None:
    """The memory is well, what is in it is not."""

    def setup() -> Callable[[bytes], bytes]:
        from lazaretto.isolation import child

        def act(item: bytes) -> bytes:
            if item == b"garble":
                child._encode = lambda *_: b"no msgpack"
                raise ValueError
            return item

        return act

    with Sandbox(setup, options(mode)) as sandbox:
        assert sandbox.run([b"garble"])[0].status is Status.CRASH
        statuses = [v.status for v in sandbox.run([b"good", b"garble", b"good"])]
        assert statuses == [Status.DONE, Status.NOT_RUN, Status.NOT_RUN]
        statuses = [v.status for v in sandbox.run([b"good", b"garble", b"good"])]
        assert statuses == [Status.DONE, Status.CRASH, Status.DONE]


def take_descriptors_of(pid: int) -> Callable[[bytes], bytes | None]:
    """Leave another process none to open."""
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, HARD_LIMIT))
    return zoo.setup()


def test_a_start_without_descriptors_is_not_waited_for(mode: str) -> None:
    """Who has become ready cannot be looked up: it must not count as a stranger until the setup times out."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        with pytest.raises(OSError, match="Too many open files"):
            Sandbox(partial(take_descriptors_of, os.getpid()), options(mode))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_setup_that_takes_the_descriptors_is_refused() -> None:
    for kind in ("pipes_in_place", "closes_descriptors", "garbles_descriptors"):

        def setup(kind: str = kind) -> Callable[[bytes], bytes]:
            zoo.ZOO[kind][0]()
            return lambda item: item

        with pytest.raises(SandboxSetupError):
            Sandbox(setup, options("auto", setup_timeout=2.0))


def test_texts_that_are_too_long_say_so(sandbox: Sandbox) -> None:
    (verdict,) = sandbox.run([b"long_message"])
    assert "characters left out" in (verdict.error_message or "")


def test_output_is_bounded_and_says_so(mode: str, printed: list[bytes]) -> None:
    with Sandbox(zoo.setup, options(mode, max_output=1000), on_output=printed.append) as sandbox:
        sandbox.run([b"prints_much"])
    text = b"".join(printed)
    assert len(text) < 1100
    assert b"bytes of output left out" in text


def test_small_empty_and_enormous_items(mode: str) -> None:
    big = b"quiet " + bytes(100_000_000)
    with Sandbox(zoo.setup, options(mode, memory=None, deadline=120)) as sandbox:
        assert sandbox.run([]) == []
        items = [b"", b"\xff\xfe\x00", big, b"good"]
        verdicts = sandbox.run(items)
    assert [v.status for v in verdicts] == [Status.DONE] * 4
    assert [v.result for v in verdicts] == [b"", b"\xff\xfe\x00", None, b"good"]


def test_items_of_several_values(mode: str) -> None:
    def setup() -> Callable[[tuple[int, bytes, None]], bytes]:
        def act(item: tuple[int, bytes, None]) -> bytes:
            number, body, nothing = item
            assert nothing is None
            return b"%d" % number + body[:1]

        return act

    with Sandbox(setup, options(mode, memory=None, deadline=120)) as sandbox:
        # More than a round holds: what each is said to have counts.
        data = b"-" + b"x" * 150_000_000
        offsets = memoryview(array.array("q", range(1, len(data) + 1, 30_000_000)))
        bodies = Blobs(memoryview(data), offsets)
        verdicts = sandbox.run(Columns([range(5), bodies, [None] * 5], [30_000_000] * 5))
        assert sandbox.run(Columns([[1], [b"y"]], [1]))[0].status is Status.ERROR
    assert [v.result for v in verdicts] == [b"%dx" % number for number in range(5)]


def test_items_of_columns_that_stand_in_the_memory(mode: str) -> None:
    def setup() -> Callable[[tuple[Any, ...]], bytes]:
        return lambda item: repr(item).encode()

    def numbers(code: str, values: Sequence[float]) -> memoryview:
        return memoryview(array.array(code, values))

    texts = ["", "Straße", "a", "東京", "b" * 300]
    encoded = [text.encode() for text in texts]
    offsets = numbers("i", [sum(map(len, encoded[:at])) for at in range(len(texts) + 1)])
    data = memoryview(b"".join(encoded))
    columns: list[Sequence[Any]] = [
        numbers("q", [0, -1, 1 << 62, 3, 4]),
        numbers("d", [0.5, -1.0, 2.0, 3.0, 4.0]),
        Blobs(data, offsets),
        Blobs(data, offsets, is_text=True),
        Nullable(Blobs(data, offsets, is_text=True), numbers("B", [1, 0, 1, 0, 1])),
        Nullable(numbers("h", [1, 2, 3, 4, 5]), numbers("B", [0, 1, 1, 1, 0])),
        Repeated("orders", 5),
        [None, 1, "x", b"y", (2,)],
    ]
    items = Columns(columns, Repeated(100, 5))
    expected = [tuple(column[at] for column in columns) for at in range(5)]
    assert [list(column) for column in columns] == [list(column) for column in zip(*expected, strict=True)]
    with Sandbox(setup, options(mode)) as sandbox:
        for some, values in ((items, expected), (items[1:4], expected[1:4]), (items.take([4, 0]), None)):
            verdicts = sandbox.run(some)
            assert [v.result for v in verdicts] == [
                repr(value).encode() for value in values or [expected[4], expected[0]]
            ]


def test_results_beyond_one_round(mode: str) -> None:
    """They come in several rounds; each item still has its own."""

    def setup() -> Callable[[bytes], bytes]:
        return lambda item: item * 3_000_000

    with Sandbox(setup, options(mode, memory=None, deadline=120)) as sandbox:
        verdicts = sandbox.run([b"%d" % (n % 10) for n in range(60)])
    assert [(v.result or b"")[:1] for v in verdicts] == [b"%d" % (n % 10) for n in range(60)]
    assert {len(v.result or b"") for v in verdicts} == {3_000_000}


def test_stop_on_failure_leaves_the_rest(brief: Sandbox) -> None:
    for bad in (b"value_error", b"segfault", b"sleeps"):
        verdicts = brief.run([b"good", bad, b"good", b"good"], stop_on_failure=True)
        assert [v.status for v in verdicts][2:] == [Status.NOT_RUN] * 2
        assert verdicts[0].status is Status.DONE
        assert verdicts[1].status not in (Status.DONE, Status.NOT_RUN)


def test_a_result_may_stand_for_a_failure(mode: str) -> None:
    def setup() -> Callable[[bytes], bytes]:
        return lambda item: FailedResult(item) if item == b"bad" else item

    items = [b"a", b"bad", b"c", b"d"]
    with Sandbox(setup, options(mode)) as sandbox:
        done = [Verdict(Status.DONE, item, failed=item == b"bad") for item in items]
        assert sandbox.run(items) == done
        verdicts = sandbox.run(items, stop_on_failure=True)
        assert verdicts == [*done[:2], Verdict(Status.NOT_RUN), Verdict(Status.NOT_RUN)]


def test_stop_gives_the_running_item_its_grace(mode: str, tmp_path: Path) -> None:
    begun, end = tmp_path / "begun", tmp_path / "end"

    def setup() -> Callable[[bytes], None]:
        def act(item: bytes) -> None:
            begun.touch()
            while not end.exists():
                time.sleep(0.005)

        return act

    def stop(sandbox: Sandbox, grace: float, ends: bool) -> None:
        sandbox.stop(grace)
        if ends:
            end.touch()

    for grace, ends, expected in ((0.1, False, Status.NOT_RUN), (120.0, True, Status.DONE)):
        begun.unlink(missing_ok=True)
        with Sandbox(setup, options(mode, deadline=None)) as sandbox:
            sandbox.start([b""] * 3)
            wait_until(begun.exists)
            threading.Thread(target=stop, args=(sandbox, grace, ends)).start()
            first, *rest = sandbox.collect()
        assert first.status is expected
        assert [v.status for v in rest] == [Status.NOT_RUN] * 2


def test_a_fresh_process_after_so_many_items(mode: str) -> None:
    def setup() -> Callable[[bytes], bytes]:
        return lambda item: b"%d" % os.getpid()

    with Sandbox(setup, options(mode, refork_every=3)) as sandbox:
        pids = [v.result for v in sandbox.run([b""] * 8)]
    assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [3, 3, 2]


def test_nothing_more_is_run_once_a_batch_is_over(mode: str) -> None:
    def setup() -> Callable[[bytes], bytes]:
        return lambda item: item

    asked: list[list[bytes | None]] = []

    def is_over(verdicts: list[Verdict]) -> bool:
        asked.append([verdict.result for verdict in verdicts])
        return b"4" in asked[-1]

    with Sandbox(setup, options(mode, refork_every=2)) as sandbox:
        verdicts = sandbox.run([b"%d" % n for n in range(1, 9)], is_over=is_over)
        assert asked == [[b"1", b"2"], [b"3", b"4"]]
        assert [v.result for v in verdicts[:4]] == [b"1", b"2", b"3", b"4"]
        assert [v.status for v in verdicts[4:]] == [Status.NOT_RUN] * 4
        assert sandbox.run([b"9"]) == [Verdict(Status.DONE, b"9")]


def test_a_setup_with_threads_is_not_forked() -> None:
    def setup() -> Callable[[bytes], bytes]:
        threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
        return lambda item: item

    with Sandbox(setup, options("auto")) as sandbox:
        assert sandbox.mode == "spawn"
        assert sandbox.run([b"x"]) == [Verdict(Status.DONE, b"x")]


class TestSetup:
    def _fails(self, setup: Callable[[], object], text: str, **changes: object) -> SandboxSetupError:
        with pytest.raises(SandboxSetupError, match=text) as caught:
            Sandbox(setup, options("auto", **changes))  # type: ignore[arg-type]
        return caught.value

    def test_that_raises(self) -> None:
        error = self._fails(zoo.value_error, "ValueError: bad value")
        assert error.error_type == "ValueError"
        assert "value_error" in (error.stack or "")

    def test_that_returns_no_function(self) -> None:
        self._fails(lambda: 5, "expected the setup to return a function, got int")

    @pytest.mark.parametrize("kind", ["system_exit", "recursion", "unprintable"])
    def test_that_raises_anything(self, kind: str) -> None:
        self._fails(zoo.ZOO[kind][0], "the setup failed")

    def test_that_ends_its_process(self) -> None:
        self._fails(zoo.exit_3, "exit status 3")
        error = self._fails(zoo.segfault, "SIGSEGV")
        assert "segfault" in (error.stack or "")

    def test_that_hangs(self) -> None:
        self._fails(zoo.sleeps, "longer than 0.3 s", setup_timeout=0.3)

    def test_that_cannot_be_sent(self) -> None:
        lock = threading.Lock()
        self._fails(lambda: lock, "cannot be sent")

    def test_that_is_no_function(self) -> None:
        with pytest.raises(InvalidOption):
            Sandbox(5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong", [{"deadline": 0}, {"deadline": -1}, {"memory": 5}, {"mode": "thread"}, {"dedline": 3}]
)
def test_options_out_of_bounds_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidOption):
        SandboxOptions(**wrong)  # type: ignore[arg-type]


def test_a_closed_sandbox_says_so(mode: str) -> None:
    sandbox = Sandbox(zoo.setup, options(mode))
    sandbox.close()
    sandbox.close()
    with pytest.raises(SandboxError, match="closed"):
        sandbox.run([b"good"])


def test_nothing_outlives_a_parent_that_is_killed() -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import zoo\n"
        "from lazaretto.isolation import Sandbox\n"
        "sandbox = Sandbox(zoo.setup)\n"
        "sandbox.start([b'sleeps'])\n"
        "print('at work', flush=True)\n"
        "sandbox.collect()\n"
    )
    root = str(Path(__file__).parents[1])
    parent = subprocess.Popen([sys.executable, "-c", script, root], stdout=subprocess.PIPE)
    with parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"at work\n"
        # It, the guard, the template and the runner.
        wait_until(lambda: len(descendants()) == 4)
        parent.send_signal(signal.SIGKILL)
    wait_until(lambda: not descendants())


#: Without those that take long.
SLOW = ("memory_bomb", "prints_much", "huge_result", "long_message", "stops_parent", "stops_parent_and_ends")
KINDS = [k for k in zoo.ZOO if k not in SLOW]


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_comes_in_whatever_order(data: st.DataObject, tmp_path: Path) -> None:
    """One verdict for each item, in order; the good ones are run exactly once."""
    slow = {k for k in KINDS if zoo.ZOO[k][1] == "timeout"}
    drawn = st.lists(st.sampled_from(["good", "quiet", *(k for k in KINDS if k not in slow)]), max_size=30)
    words = data.draw(drawn)
    log = tmp_path / "log"
    log.unlink(missing_ok=True)

    def setup() -> Callable[[bytes], bytes | None]:
        def act(item: bytes) -> bytes | None:
            if item.startswith((b"good", b"quiet")):
                with log.open("ab") as file:
                    file.write(item + b"\n")
            return zoo.act(item)

        return act

    items = [f"{word} {n}".encode() for n, word in enumerate(words)]
    with Sandbox(setup, options("auto"), on_output=lambda text: None) as sandbox:
        verdicts = sandbox.run(items)
    expected = [zoo.ZOO[word][1] if word in zoo.ZOO else "done" for word in words]
    assert [v.status.value for v in verdicts] == expected
    good = [i for i, word in zip(items, words, strict=True) if word in ("good", "quiet")]
    assert (log.read_bytes().splitlines() if good else []) == good


def test_thousands_of_items_with_a_zoo_among_them(tmp_path: Path) -> None:
    """Every good one is done exactly once, every bad one has its verdict."""
    log, draw = tmp_path / "log", random.Random(3)
    cheap = [k for k in KINDS if zoo.ZOO[k][1] != "timeout"]

    def setup() -> Callable[[bytes], bytes | None]:
        def act(item: bytes) -> bytes | None:
            if item.startswith(b"good"):
                with log.open("ab") as file:
                    file.write(item + b"\n")
                return None
            return zoo.act(item)

        return act

    words = [draw.choice(cheap) if draw.random() < 0.01 else "good" for _ in range(5000)]
    items = [f"{word} {n}".encode() for n, word in enumerate(words)]
    with Sandbox(setup, options("auto"), on_output=lambda text: None) as sandbox:
        verdicts = [v for start in range(0, 5000, 100) for v in sandbox.run(items[start : start + 100])]
    expected = [zoo.ZOO[word][1] if word in zoo.ZOO else "done" for word in words]
    assert [v.status.value for v in verdicts] == expected
    assert log.read_bytes().splitlines() == [i for i in items if i.startswith(b"good")]
