"""Listings: one way to print many of a thing, as a table, CSV, JSON or JSON Lines."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any

import typer

from lazaretto.cli import output
from lazaretto.cli.call import Call
from lazaretto.cli.exits import usage

_META = "lazaretto.listing"
_OPTIONS = {
    "jsonl": (bool, typer.Option("--jsonl", help="Print JSON Lines: one object a line."), False),
    "csv": (bool, typer.Option("--csv", help="Print CSV."), False),
    "columns": (
        str | None,
        typer.Option("--columns", metavar="NAME,NAME…", help="Columns of the table or CSV."),
        None,
    ),
}


@dataclasses.dataclass(frozen=True, slots=True)
class _Shape:
    jsonl: bool = False
    csv: bool = False
    columns: str | None = None


def takes_listing_options(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command that uses `print_listing` the options of all listings."""
    signature = inspect.signature(function, eval_str=True)

    @functools.wraps(function)
    def run(*positional: Any, **given: Any) -> None:
        shape = _Shape(**{name: given.pop(name) for name in _OPTIONS})
        if shape.jsonl + shape.csv + given["json"] > 1:
            raise usage("give one of --json, --jsonl and --csv")
        given["context"].meta[_META] = shape
        function(*positional, **given)

    extra = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option]
        )
        for name, (kind, option, default) in _OPTIONS.items()
    ]
    run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *extra])  # type: ignore[attr-defined]
    run.__annotations__ = {
        name: parameter.annotation
        for name, parameter in run.__signature__.parameters.items()  # type: ignore[attr-defined]
    }
    return run


def wants_objects(context: typer.Context, call: Call) -> bool:
    """Return whether objects are printed as JSON, not rows of columns."""
    return call.json or _shape(context).jsonl


def _shape(context: typer.Context) -> _Shape:
    found = context.meta.get(_META)
    return found if isinstance(found, _Shape) else _Shape()


def print_listing(
    context: typer.Context,
    call: Call,
    found: Iterable[Any],
    columns: Sequence[str],
    row: Callable[[Any], Sequence[object]],
    empty: str,
    *,
    spare: Sequence[str] = (),
    shortened: str | None = "",
) -> None:
    """Print objects as the options say; a table has `columns`, with what `row` returns for each."""
    shape = _shape(context)
    chosen = _chosen(shape.columns, columns)
    if chosen is not None and (call.json or shape.jsonl):
        raise usage("--columns goes with tables and --csv; JSON has every field")
    if shape.csv:
        _print_csv(chosen or columns, _picked(map(row, found), columns, chosen))
    elif call.json:
        output.json_array(found)
    elif shape.jsonl:
        for one in found:
            output.json_line(one)
    elif chosen is not None:
        output.table(chosen, _picked(map(row, found), columns, chosen), empty)
    else:
        output.table(columns, map(row, found), empty, spare=spare, shortened=shortened)


def _chosen(text: str | None, columns: Sequence[str]) -> list[str] | None:
    if text is None:
        return None
    known = {name.replace(" ", "-"): name for name in columns}
    names = [part.strip().lower().replace("_", "-").replace(" ", "-") for part in text.split(",")]
    for name in names:
        if name not in known:
            raise usage(f"no column {name!r}; there are: {', '.join(known)}")
    return [known[name] for name in names]


def _picked(
    rows: Iterable[Sequence[object]], columns: Sequence[str], chosen: Sequence[str] | None
) -> Iterable[Sequence[object]]:
    if chosen is None:
        return rows
    places = [columns.index(name) for name in chosen]
    return ([row[place] for place in places] for row in rows)


def _print_csv(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    import csv
    import sys

    safe = output.on_terminal()
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([output.cell(value) if safe else value for value in row])
    sys.stdout.flush()
