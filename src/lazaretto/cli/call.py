"""What every command shares: the store it works on, and whether it prints JSON.

All listings print many of a thing in one way: as a table, CSV, JSON or JSON Lines.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from lazaretto.cli import output
from lazaretto.cli.command import Options, argument, option
from lazaretto.cli.completion import names_of_queues
from lazaretto.cli.exits import CommandError, Exit, usage
from lazaretto.cli.output import Columns
from lazaretto.cli.parse import number

if TYPE_CHECKING:
    from lazaretto.broker.broker import Broker
    from lazaretto.commands import Command

ENVIRONMENT = "LAZARETTO_STORE"

YesOption = Annotated[bool, option("Do not ask.", "", "-y")]


def limit_option(help_: str, most: int | None = None) -> Any:
    """Return the option --limit, a number of at least 1 and at most `most`."""
    return option(help_, "NUMBER", "--limit", "-n", parser=number(1, most))


QueueArgument = Annotated[str, argument("Path of the queue.", "QUEUE", complete=names_of_queues)]


PatternOption = Annotated[str, option("Only on these entities: shop/*, orders.", "PATTERN", "-q")]
NamedQueuesOption = Annotated[str | None, option("Only queues with this text in their path.", "TEXT")]


_STORE = f"Store: FILE, sqlite:///FILE or postgresql://SERVER/DB.  [default: ${ENVIRONMENT}]"
StoreOption = Annotated[str | None, option(_STORE, "STORE", "--store")]
JsonOption = Annotated[bool, option("Print JSON.", "", "--json")]


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """One call of the command."""

    store: StoreOption = None
    json: JsonOption = False

    def url(self) -> str:
        """Return the store's URL. Raises CommandError if none was named."""
        url = self.store or os.environ.get(ENVIRONMENT)
        if not url:
            raise CommandError(
                "no_store",
                f"no store was named; give --store sqlite:///orders.db or set {ENVIRONMENT}",
                Exit.USAGE,
            )
        return url

    @contextlib.contextmanager
    def broker(self, *, create: bool = False) -> Iterator[Broker]:
        """Open the store; only `create` makes one where there is none."""
        from lazaretto.broker.broker import connect
        from lazaretto.store.addresses import without_password

        url = self.url()
        try:
            broker = connect(url, create=create)
        except FileNotFoundError:
            raise CommandError(
                "store_not_found",
                f"no store exists at {without_password(url)}; check the path (--store or {ENVIRONMENT}), "
                "or create one with `lazaretto queue create`",
                Exit.STORE,
            ) from None
        except OSError as error:
            raise CommandError(
                "store_error", f"the store {without_password(url)} cannot be opened: {error}", Exit.STORE
            ) from None
        with broker:
            yield broker

    def print_done(self, result: Any, shown: str | Callable[[], None]) -> None:
        """Print what a change has done. It stays done if that cannot be printed, and the error says so."""
        try:
            Call.print(self, result, shown)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise CommandError(
                "io_error", f"it is done, but standard output does not take the answer: {error.strerror}"
            ) from error

    def print(self, result: Any, shown: str | Callable[[], None]) -> None:
        """Print a result: as JSON, or as a text for people, or by what prints it for them."""
        if self.json:
            (output.json_array if isinstance(result, list) else output.json_object)(result)
        elif callable(shown):
            shown()
        else:
            output.line(shown)


@dataclasses.dataclass(frozen=True)
class Keys:
    """Who changes something, and the key under which it is changed once."""

    actor: Annotated[str | None, option("Who asks.  [default: the user]", "NAME")] = None
    idempotency_key: Annotated[str | None, option("Make the change once under this key.", "KEY")] = None


@dataclasses.dataclass(frozen=True)
class Change(Keys, Call):
    """A call of a command that changes something."""

    def print(self, result: Any, shown: str | Callable[[], None]) -> None:
        """Print what a change has done."""
        self.print_done(result, shown)

    def run(self, broker: Broker, command: Command, part: int | None = None) -> Any:
        """Make a change, and return its answer as JSON values.

        `part`: which of several changes of this call it is: each has a key of its own.
        """
        key = self.idempotency_key
        if key is not None and part is not None:
            key = f"{key}#{part}"
        return broker.run(command, actor=self.actor, idempotency_key=key)


def _calls(kind: type[Call]) -> Options:
    """Return the options of a call. What was given in front of the command counts, too."""

    def make(context: typer.Context, options: dict[str, Any]) -> Call:
        outer = context.find_root().params
        return kind(**{name: value or outer.get(name) or value for name, value in options.items()})

    return Options.of(kind, make, last=True)


CallOptions = Annotated[Call, _calls(Call)]
KeyOptions = Annotated[Keys, Options.of(Keys)]
ChangeOptions = Annotated[Change, _calls(Change)]


def keyed(call: Call, keys: Keys) -> Change:
    """Return a call that changes something."""
    return Change(call.store, call.json, keys.actor, keys.idempotency_key)


def confirm(doing: str, done: str, question: str, yes: bool) -> None:
    """Ask before something is done that cannot be undone, unless `yes`.

    Raises CommandError if nobody can be asked, or the answer is no.
    """
    if yes:
        return
    require_person(doing)
    if not typer.confirm(output.safe(question), err=True):
        raise CommandError("cancelled", f"nothing was {done}")


def require_person(doing: str, instead: str = "--yes") -> None:
    """Raise CommandError if nobody can be asked whether something is to be done."""
    if not sys.stdin.isatty() or not sys.stderr.isatty():
        raise usage(f"{doing} needs {instead}")


def ask_count(doing: str) -> int:
    """Return the number that a person types before something is deleted. Raises CommandError."""
    require_person(doing, "--count")
    return int(typer.prompt(output.safe(f"{doing}: type their number"), type=int, err=True))


def confirm_deletion(what: str, yes: bool) -> None:
    """Ask before something is deleted, unless `yes`. Raises CommandError if it is not to be."""
    confirm(f"deleting {what}", "deleted", f"Delete {what}?", yes)


@dataclasses.dataclass(frozen=True, slots=True)
class Listing(Call):
    """A call of a command that lists things."""

    columns: Annotated[str | None, option("Comma-separated columns of the table or CSV.", "NAMES")] = None
    csv: Annotated[bool, option("Print CSV.")] = False
    jsonl: Annotated[bool, option("Print JSON Lines: one object a line.")] = False

    def __post_init__(self) -> None:
        if self.jsonl + self.csv + self.json > 1:
            raise usage("give one of --json, --jsonl and --csv")

    @property
    def wants_objects(self) -> bool:
        """Whether objects are printed as JSON, not rows of columns."""
        return self.json or self.jsonl

    def print_all(
        self,
        objects: Iterable[Any],
        columns: Columns,
        empty: str,
        *,
        spare: Sequence[str] = (),
        shortened: str | None = "",
    ) -> None:
        """Print objects as the options say."""
        chosen = columns if self.columns is None else _chosen(self.columns, columns)
        if self.columns is not None and self.wants_objects:
            raise usage("--columns goes with tables and --csv; JSON has every field")
        if self.csv:
            _print_csv(list(chosen), output.rows_of(objects, chosen))
        elif self.json:
            output.json_array(objects)
        elif self.jsonl:
            for one in objects:
                output.json_line(one)
        elif self.columns is not None:
            output.table(list(chosen), output.rows_of(objects, chosen), empty)
        else:
            rows = output.rows_of(objects, chosen)
            output.table(list(chosen), rows, empty, spare=spare, shortened=shortened)


ListingOptions = Annotated[Listing, _calls(Listing)]
LimitOption = Annotated[int | None, limit_option("Maximum number of rows.")]


def _chosen(text: str, columns: Columns) -> Columns:
    by_name = {name.replace(" ", "-"): name for name in columns}
    names = [part.strip().lower().replace("_", "-").replace(" ", "-") for part in text.split(",")]
    for name in names:
        if name not in by_name:
            raise usage(f"no column {name!r}; there are: {', '.join(by_name)}")
    return {by_name[name]: columns[by_name[name]] for name in names}


def _print_csv(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    import csv
    import sys

    from lazaretto.model.records.messages import csv_cell

    safe = output.on_terminal()
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow(
            [csv_cell(output.cell(value) if safe else output.plain_value(value)) for value in row]
        )
    sys.stdout.flush()


@dataclasses.dataclass(frozen=True, slots=True)
class Logs:
    """Which log records are printed, and how."""

    format: Annotated[
        Literal["text", "json"], option("How log records are printed on standard error.", "", "--log-format")
    ] = "text"
    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        option("From which level on they are printed.", "", "--log-level"),
    ] = "warning"

    @contextlib.contextmanager
    def shown(self, say: Callable[[str], object] = output.lines_to_stderr) -> Iterator[None]:
        """Show what the package logs meanwhile; `say` prints it."""
        as_json = self.format == "json"

        class Shown(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                try:
                    text = self.format(record)
                    say(output.safe_json(text) if as_json else output.safe_lines(text))
                except Exception:
                    # Whoever reads it may be gone.
                    return

        handler, log = Shown(), logging.getLogger("lazaretto")
        if as_json:
            from lazaretto.tools.json_logs import JsonFormatter

            handler.setFormatter(JsonFormatter())
        else:
            handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
        before, level = log.level, getattr(logging, self.level.upper())
        handler.setLevel(level)
        log.addHandler(handler)
        # Other handlers go on to get what they got.
        log.setLevel(min(level, log.getEffectiveLevel()))
        try:
            yield
        finally:
            log.setLevel(before)
            log.removeHandler(handler)


LogOptions = Annotated[Logs, Options.of(Logs)]
