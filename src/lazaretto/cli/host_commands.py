"""`lazaretto run` and `lazaretto try`: handlers at work on their queues, or on one message to see."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from lazaretto.cli import output
from lazaretto.cli.call import Call, JsonOption, QueueArgument, StoreOption
from lazaretto.cli.exits import Exit
from lazaretto.cli.parse import duration

HandlersArgument = Annotated[
    str, typer.Argument(metavar="MODULE[:NAME]", help="Where the handlers are.", show_default=False)
]
_COLUMNS = ("queue", "rate/s", "active", "completed", "retries", "dead", "breaker", "waiting for")
#: How often the table is drawn anew, and a line written where there is no terminal, in seconds.
_DRAW_EVERY = 0.5
_SAY_EVERY = 5.0


def run(
    context: typer.Context,
    handlers: HandlersArgument,
    stop_when_idle: Annotated[
        bool,
        typer.Option(
            "--stop-when-idle",
            help="End when the queues have nothing more to receive: with 4 if what is left is held back.",
        ),
    ] = False,
    grace: Annotated[
        Any,
        typer.Option(
            "--grace", parser=duration, metavar="DURATION", help="What running handlers get at the end [30s]."
        ),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            "--concurrency",
            min=1,
            max=1024,
            metavar="N",
            help="Batches, or sessions, that each handler works on at once [the handler's own].",
        ),
    ] = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Run handlers on their queues until SIGTERM or Control-C, each message isolated from the others.

    MODULE has functions decorated with @handler(queue); NAME is one of them, or a list. What they
    print goes to standard error. With --json the final counts are printed, one object a line.
    """
    from lazaretto.host import ServiceHost, load_handlers

    call = Call.of(context, store, json)
    found = load_handlers(handlers)
    with call.broker() as broker:
        host = ServiceHost(broker, found, grace=30.0 if grace is None else grace, concurrency=concurrency)
        view = _View(host, broker)
        with _shown(view, json=call.json) as (look, say), _logged(say):
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
        yield (lambda: None), _to_stderr
    elif output.on_terminal():
        with _drawn(view) as found:
            yield found
    else:
        lines = _Lines(view)
        yield lines.look, _to_stderr
        lines.say()


def _to_stderr(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


@contextmanager
def _logged(say: Callable[[str], object]) -> Iterator[None]:
    """Show what is logged of failures meanwhile."""

    class Shown(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            try:
                say(output.safe_lines(self.format(record)))
            except Exception:
                # Whoever reads it may be gone.
                return

    handler = Shown(logging.WARNING)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
    log = logging.getLogger("lazaretto")
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


class _Lines:
    """A line for each queue now and then, when something has changed."""

    def __init__(self, view: _View) -> None:
        self._view = view
        self._next = time.monotonic() + _SAY_EVERY
        self._before: dict[object, tuple[object, ...]] = {}
        output.line("running; Control-C ends it")

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
                output.line(output.safe(f"{row[0]}: {said}"))


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


def try_(
    context: typer.Context,
    queue: QueueArgument,
    sequence: Annotated[int, typer.Argument(metavar="SEQUENCE", min=1, help="Its sequence number.")],
    handler: Annotated[str, typer.Argument(metavar="MODULE:FUNCTION", help="The handler.")],
    deadline: Annotated[
        Any,
        typer.Option("--deadline", parser=duration, metavar="DURATION", help="How long it may take [30s]."),
    ] = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Try a handler on one dead letter, or on a message that waits, and say what would happen.

    It runs in a sandbox; nothing is settled, and what it sends is recorded, not sent. Exit code 1 if
    the message would fail.
    """
    import dataclasses

    from lazaretto.host import Handler, HandlerOptions, load_function
    from lazaretto.host.trial import try_message

    call = Call.of(context, store, json)
    function = load_function(handler)
    options = function.options if isinstance(function, Handler) else HandlerOptions()
    if deadline is not None:
        options = dataclasses.replace(options, deadline=deadline)
    with call.broker() as broker:
        trial = try_message(broker, queue, sequence, Handler(queue, function, options))
    if call.json:
        output.json_object(trial)
    else:
        _say(trial)
    if trial.outcome not in ("completed", "deferred", "dead_lettered"):
        raise typer.Exit(Exit.FAILED)


def _say(trial: Any) -> None:
    output.line(output.safe(f"message {trial.sequence_number} of {trial.queue} ({trial.message_id})"))
    error = None if trial.error_type is None else f"{trial.error_type}: {trial.error_message or ''}"
    output.fields([("outcome", trial.outcome), ("consequence", trial.consequence), ("error", error)], "  ")
    if trial.stack:
        output.lines(trial.stack.rstrip())
    for sent in trial.sends:
        output.line(output.safe(f"  would send to {sent.queue}: {output.body_text(sent.body)}"))
    for sql, parameters in trial.statements:
        output.line(output.safe(f"  would execute: {sql} with {parameters!r}"))
    if trial.output:
        output.line("  it printed:")
        sys.stdout.write(output.safe_lines(trial.output))


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("run")(run)
    app.command("try")(try_)
