"""Handlers that cannot be used: each is refused with a reason, before anything is started."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lazaretto import (
    Broker,
    EntityNotFound,
    HandlerError,
    InvalidOption,
    InvalidPath,
    Message,
    ReceivedMessage,
    SandboxSetupError,
)
from lazaretto.host import Handler, HandlerContext, ServiceHost, handler, load_function, load_handlers
from lazaretto.host.handlers import GivenIsolation

from .serving import send, serve


def generator(message: object) -> Iterator[int]:
    yield 1


async def agenerator(message: object):  # type: ignore[no-untyped-def]
    yield 1


@pytest.mark.parametrize(
    "function",
    [5, None, "name", lambda: None, lambda a, b, c: None, lambda *, message: None, generator, agenerator],
)
def test_what_cannot_be_a_handler(function: object) -> None:
    with pytest.raises(HandlerError, match="expected a handler"):
        Handler("q", function)  # type: ignore[arg-type]


class Callable_:  # noqa: N801
    def __call__(self, message: object, context: object) -> None: ...


@pytest.mark.parametrize(
    ("function", "with_context"),
    [
        (lambda message: None, False),
        (lambda message, context: None, True),
        (lambda message, context=None: None, True),
        (lambda message, retries=3: None, False),
        (lambda *arguments: None, False),
        (Callable_(), True),
        (functools.partial(lambda a, message: None, 1), False),
        (functools.partial(lambda a, message, context: None, 1), True),
    ],
)
def test_who_gets_the_context(function: object, with_context: bool) -> None:
    assert Handler("q", function).takes_context is with_context  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"deadline": 0}, "deadline"),
        ({"deadline": -1}, "deadline"),
        ({"memory": 1}, "memory"),
        ({"concurrency": 0}, "concurrency"),
        ({"batch_size": 0}, "batch_size"),
        ({"isolation": "thread"}, "process, inline"),
        ({"validator": 5}, "validator"),
        ({"middleware": [5]}, "middleware"),
        ({"on_poison": "x"}, "on_poison"),
        ({"policy": "wcf"}, "policy"),
        ({"batchsize": 5}, "did you mean 'batch_size'"),
    ],
)
def test_options_that_are_refused(options: dict[str, Any], error: str) -> None:
    with pytest.raises(InvalidOption, match=error):
        Handler("q", lambda m: None, **options)


def test_paths_that_are_refused() -> None:
    with pytest.raises(InvalidPath):
        Handler("no such/ path", lambda m: None)
    with pytest.raises(InvalidOption, match="dead-letter"):
        Handler("q;retry", lambda m: None)


class TestLoading:
    @pytest.fixture(autouse=True)
    def _module(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "loading_good.py").write_text(
            "from lazaretto.host import handler\n"
            "@handler('work')\ndef first(message): ...\n"
            "@handler('out')\ndef second(message): ...\n"
            "def plain(message): ...\n"
            "def wrong(): ...\n"
            "both = [first, second]\n"
            "number = 5\n"
        )
        (tmp_path / "loading_exits.py").write_text("import sys; sys.exit(3)")
        (tmp_path / "loading_raises.py").write_text("1 / 0")
        (tmp_path / "loading_empty.py").write_text("")
        monkeypatch.syspath_prepend(str(tmp_path))

    def test_all_of_a_module_or_one_or_a_list(self) -> None:
        assert [h.__name__ for h in load_handlers("loading_good")] == ["first", "second"]
        assert [h.__name__ for h in load_handlers("loading_good:second")] == ["second"]
        assert [h.__name__ for h in load_handlers("loading_good:both")] == ["first", "second"]
        assert load_function("loading_good:plain").__name__ == "plain"

    @pytest.mark.parametrize(
        ("reference", "text"),
        [
            ("no_such_module", "cannot be imported: ModuleNotFoundError"),
            ("loading_exits", "cannot be imported: SystemExit: 3"),
            ("loading_raises", "cannot be imported: ZeroDivisionError"),
            ("loading_empty", "has no handlers: decorate"),
            ("loading_good:frist", "did you mean 'first'"),
            ("loading_good:number", "expected loading_good:number to be a Handler"),
            ("loading_good:plain", "expected loading_good:plain to be a Handler"),
        ],
    )
    def test_what_cannot_be_loaded_says_why(self, reference: str, text: str) -> None:
        with pytest.raises(HandlerError, match=text):
            load_handlers(reference)

    @pytest.mark.parametrize(
        ("reference", "text"),
        [("loading_good", "module:function"), ("loading_good:wrong", "expected a handler")],
    )
    def test_what_is_no_function_says_so(self, reference: str, text: str) -> None:
        with pytest.raises(HandlerError, match=text):
            load_function(reference)

    def test_a_decorated_function_runs_in_the_sandbox_by_its_name(self, broker: Broker) -> None:
        send(broker, "work", b"1")
        (found,) = load_handlers("loading_good:first")
        assert found.reference() == ("loading_good", "first")
        assert serve(broker, found)[0].completed == 1


class TestHost:
    def test_queues_that_do_not_exist(self, broker: Broker) -> None:
        with pytest.raises(EntityNotFound, match="did you mean 'work'"):
            ServiceHost(broker, Handler("wrok", lambda m: None)).start()

    def test_two_handlers_of_one_queue(self, broker: Broker) -> None:
        with pytest.raises(HandlerError, match="expected one handler for 'work'"):
            ServiceHost(broker, [Handler("work", lambda m: None), Handler("WORK", lambda m: None)])

    @pytest.mark.parametrize("handlers", [[], {}, 5, "work", [5]])
    def test_no_handlers(self, broker: Broker, handlers: object) -> None:
        with pytest.raises(HandlerError):
            ServiceHost(broker, handlers)  # type: ignore[arg-type]

    def test_no_broker(self) -> None:
        with pytest.raises(InvalidOption, match="expected broker"):
            ServiceHost("x.db", {"work": lambda m: None})  # type: ignore[arg-type]

    def test_functions_by_queue(self, broker: Broker) -> None:
        host = ServiceHost(broker, {"work": lambda m: None, "out": lambda m: None})
        with host:
            assert [r.queue for r in host.reports()] == ["work", "out"]
        with pytest.raises(HandlerError, match="started only once"):
            host.start()

    def test_what_cannot_be_sent_to_another_process(self, broker: Broker) -> None:
        lock = threading.Lock()

        def locked(message: object) -> None:
            with lock:
                pass

        with pytest.raises(HandlerError, match="isolation='inline'"):
            ServiceHost(broker, Handler("work", locked)).start()

    def test_a_setup_that_fails_there(self, broker: Broker) -> None:
        with pytest.raises((InvalidOption, SandboxSetupError), match="JSON Schema"):
            ServiceHost(broker, Handler("work", lambda m: None, validator={"type": "nonsense"})).start()


def test_a_handler_is_still_its_function() -> None:
    @handler("work", deadline=5)
    def double(message: Any, context: HandlerContext | None = None) -> Any:
        """Twice."""
        return 2 * message

    assert double(4) == 8
    assert (double.__name__, double.__doc__, double.options.deadline) == ("double", "Twice.", 5.0)


def test_a_failing_dead_letter_is_not_tried_without_a_pause(
    broker: Broker, isolation: GivenIsolation
) -> None:
    broker.sender("work").send([Message(b"bad"), Message(b"good")])
    with broker.receiver("work") as receiver:
        receiver.dead_letter(receiver.receive(2))

    def fix(message: ReceivedMessage) -> None:
        if message.body == b"bad":
            raise ValueError("still bad")

    host = ServiceHost(broker, Handler("work/$deadletterqueue", fix, isolation=isolation))
    host.run(until=lambda: host.idle() == [])
    (report,) = host.reports()
    assert (report.completed, report.failing) == (1, 1)
    assert report.retried <= 2
