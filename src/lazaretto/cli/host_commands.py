"""`lazaretto run` and `lazaretto try`: handlers at work on their queues, or on one message to see."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from lazaretto.cli import output
from lazaretto.cli.call import CallOptions, LogOptions, QueueArgument
from lazaretto.cli.command import Group, argument, option
from lazaretto.cli.dead_letter_text import print_block
from lazaretto.cli.exits import Exit, usage
from lazaretto.cli.parse import address, duration, number
from lazaretto.model.installing import install

commands = Group()

_COLUMNS = ("queue", "rate/s", "active", "completed", "retries", "dead", "breaker", "waiting for")
#: How often the table is drawn anew, and a line written where there is no terminal, in seconds.
_DRAW_EVERY = 0.5
_SAY_EVERY = 5.0


@commands.command("run")
def run(
    call: CallOptions,
    handlers: Annotated[str, argument("Module with the handlers.", "MODULE[:NAME]")],
    logs: LogOptions,
    stop_when_idle: Annotated[
        bool, option("Exit when the queues are empty, with code 4 if messages are held back.")
    ] = False,
    grace: Annotated[
        Any, option("Time for running handlers to finish on shutdown.", "DURATION", parser=duration)
    ] = "30s",
    concurrency: Annotated[
        int | None,
        option(
            "Batches, or sessions, that each handler processes at once.  [default: the handler's own]",
            "NUMBER",
            parser=number(1, 1024),
        ),
    ] = None,
    metrics: Annotated[
        Any, option("Answer Prometheus at this address.", "[HOST:]PORT", parser=address)
    ] = None,
) -> None:
    """Run handlers on their queues.

    They run until SIGTERM or Control-C, each message isolated from the others. MODULE has functions
    decorated with @handler(queue); NAME is one of them, or a list. What they print goes to standard error.
    With --json, the final counts are printed as JSON Lines.
    """
    from lazaretto.broker.handling.logs import shown
    from lazaretto.host import ServiceHost, load_handlers

    handlers_ = load_handlers(handlers)
    with call.broker() as broker, _listening(metrics):
        host = ServiceHost(broker, handlers_, grace=grace, concurrency=concurrency)
        view = _View(host, broker)
        as_json = logs.format == "json"
        own = shown(logs.level, as_json=as_json)
        with _shown(view, json=call.json) as (look, say), logs.shown(say), own:
            idle = _Idle(host) if stop_when_idle else None

            def until() -> bool:
                look()
                return idle is not None and idle.is_over()

            host.run(until=until)
        if call.json:
            for report in host.reports():
                output.json_line(report)
        if idle is not None and idle.why:
            raise idle.why[0]


@contextmanager
def _listening(at: tuple[str, int] | None) -> Iterator[None]:
    """Answer Prometheus with what this process measures, if an address is given."""
    if at is None:
        yield
        return
    if importlib.util.find_spec("prometheus_client") is None:
        raise usage(f"metrics need more packages: {install('serve')}")
    from lazaretto.observe.metrics import listen

    try:
        server = listen(*at)
    except OSError as error:
        raise usage(f"nothing can listen at {at[0]}:{at[1]}: {error.strerror}") from None
    try:
        output.lines_to_stderr(f"metrics at http://{at[0]}:{server.server_port}/metrics\n")
        yield
    finally:
        server.shutdown()
        server.server_close()


class _View:
    """What is shown of a host: its own counts, and what the store knows of its queues."""

    def __init__(self, host: Any, broker: Any) -> None:
        self.host = host
        self._broker = broker

    def rows(self) -> list[tuple[object, ...]]:
        return [self._row(report) for report in self.host.reports()]

    def _row(self, report: Any) -> tuple[object, ...]:
        counts, breaker = self._store_side(report.queue)
        return (
            report.queue,
            round(report.rate),
            counts,
            report.completed,
            report.retried,
            report.dead,
            breaker,
            report.waiting,
        )

    def _store_side(self, path: str) -> tuple[object, str]:
        from lazaretto.errors import LazarettoError
        from lazaretto.model.entities import EntityPath, Subqueue

        try:
            counts = self._broker.queue(path).counts
            parsed = EntityPath.parse(path)
            if parsed.subqueue is not Subqueue.MAIN:
                return counts.dead_letter, ""
            return counts.active + counts.suspect, self._broker.breaker(path).status.value
        except LazarettoError as error:
            return "", error.code


class _Idle:
    """Finds out whether everything is done: asked often, it looks now and then."""

    def __init__(self, host: Any) -> None:
        self._host = host
        self._next = time.monotonic() + 0.2
        #: Why what is left cannot be handed out.
        self.why: list[Any] = []

    def is_over(self) -> bool:
        from lazaretto.errors import StoreError

        if time.monotonic() < self._next:
            return False
        self._next = time.monotonic() + 0.2
        try:
            why = self._host.idle()
        except StoreError:
            # The handlers wait for it, too.
            return False
        self.why = why or []
        return why is not None


@contextmanager
def _shown(view: _View, *, json: bool) -> Iterator[tuple[Callable[[], None], Callable[[str], object]]]:
    """Give a function to call often, which shows how the host stands, and one that shows text of the log."""
    if json:
        yield (lambda: None), output.lines_to_stderr
    elif output.on_terminal():
        with _drawn(view) as found:
            yield found
    else:
        lines = _Lines(view)
        yield lines.look, output.lines_to_stderr
        lines.say()


class _Lines:
    """A line for each queue now and then, when something has changed."""

    def __init__(self, view: _View) -> None:
        self._view = view
        self._next = time.monotonic() + _SAY_EVERY
        self._before: dict[object, tuple[object, ...]] = {}
        output.say("running; Control-C ends it")

    def look(self) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _SAY_EVERY
            self.say()

    def say(self) -> None:
        for row in self._view.rows():
            facts = (*row[2:],)
            if self._before.get(row[0]) != facts:
                self._before[row[0]] = facts
                named = zip(_COLUMNS[1:], row[1:], strict=True)
                said = ", ".join(f"{name} {value}" for name, value in named if value not in (None, ""))
                output.say(f"{row[0]}: {said}")


@contextmanager
def _drawn(view: _View) -> Iterator[tuple[Callable[[], None], Callable[[str], object]]]:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

    def table() -> Table:
        drawn = Table(box=SIMPLE_HEAD, pad_edge=False)
        for index, name in enumerate(_COLUMNS):
            drawn.add_column(Text(name), justify="right" if 0 < index < 6 else "left")
        for row in view.rows():
            drawn.add_row(*(Text(f"{v:,}" if isinstance(v, int) else output.safe(str(v or ""))) for v in row))
        return drawn

    console = Console(highlight=False, markup=False, emoji=False)
    due = time.monotonic()
    with Live(console=console, auto_refresh=False, redirect_stderr=False) as live:

        def look() -> None:
            nonlocal due
            if time.monotonic() >= due:
                due = time.monotonic() + _DRAW_EVERY
                live.update(table(), refresh=True)

        yield look, console.print
        live.update(table(), refresh=True)


@commands.command("try")
def try_(
    call: CallOptions,
    queue: QueueArgument,
    sequence: Annotated[int, argument("Sequence number of the message.", parser=number(1))],
    handler: Annotated[str, argument("Handler to try.", "MODULE:FUNCTION")],
    deadline: Annotated[
        Any, option("Time that the handler may take.  [default: 30s]", "DURATION", parser=duration)
    ] = None,
) -> None:
    """Try a handler on one message, in a sandbox.

    The message is a dead letter or a queued message. Nothing is settled, and nothing is sent: the command
    says what would happen. The exit code is 1 if the message would fail.
    """
    import dataclasses

    from lazaretto.host import Handler, HandlerOptions, load_function
    from lazaretto.host.dry_run import try_message

    function = load_function(handler)
    options = function.options if isinstance(function, Handler) else HandlerOptions()
    if deadline is not None:
        options = dataclasses.replace(options, deadline=deadline)
    with call.broker() as broker:
        trial = try_message(broker, queue, sequence, Handler.with_options(queue, function, options))
    call.print(trial, lambda: _say(trial))
    if trial.outcome not in ("completed", "deferred", "dead_lettered"):
        raise typer.Exit(Exit.FAILED)


def _say(trial: Any) -> None:
    output.line(f"message {trial.sequence_number} of {trial.queue} ({trial.message_id})")
    error = None if trial.error_type is None else f"{trial.error_type}: {trial.error_message or ''}"
    output.fields([("outcome", trial.outcome), ("consequence", trial.consequence), ("error", error)], "  ")
    if trial.stack:
        print_block(trial.stack, "    ")
    for sent in trial.sends:
        output.line(f"  would send to {sent.queue}: {output.body_text(sent.body)}")
    for sql, parameters in trial.statements:
        output.line(f"  would execute: {sql} with {parameters!r}")
    if trial.output:
        output.line("  it printed:")
        print_block(trial.output, "    ")
