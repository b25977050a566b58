"""Listings: one way to print many of a thing, as a table, CSV, JSON or JSON Lines."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any

import typer

from lazaretto.cli import output
from lazaretto.cli.call import STORE_OPTIONS, Call, limit_option, with_outer
from lazaretto.cli.command import Options
from lazaretto.cli.exits import usage


@dataclasses.dataclass(frozen=True, slots=True)
class Listing(Call):
    """A call of a command that lists things."""

    jsonl: bool = False
    csv: bool = False
    columns: str | None = None

    @property
    def wants_objects(self) -> bool:
        """Whether objects are printed as JSON, not rows of columns."""
        return self.json or self.jsonl

    def print_all(
        self,
        rows: Iterable[Any],
        columns: Sequence[str],
        row: Callable[[Any], Sequence[object]],
        empty: str,
        *,
        spare: Sequence[str] = (),
        shortened: str | None = "",
    ) -> None:
        """Print objects as the options say; a table has `columns`, with what `row` returns for each."""
        chosen = _chosen(self.columns, columns)
        if chosen is not None and self.wants_objects:
            raise usage("--columns goes with tables and --csv; JSON has every field")
        if self.csv:
            _print_csv(chosen or columns, _picked(map(row, rows), columns, chosen))
        elif self.json:
            output.json_array(rows)
        elif self.jsonl:
            for one in rows:
                output.json_line(one)
        elif chosen is not None:
            output.table(chosen, _picked(map(row, rows), columns, chosen), empty)
        else:
            output.table(columns, map(row, rows), empty, spare=spare, shortened=shortened)


def _listing(context: typer.Context, options: dict[str, Any]) -> Listing:
    listing = Listing(**with_outer(context, options))
    if listing.jsonl + listing.csv + listing.json > 1:
        raise usage("give one of --json, --jsonl and --csv")
    return listing


ListingOptions = Annotated[
    Listing,
    Options(
        {
            "columns": (
                Annotated[
                    str | None,
                    typer.Option(metavar="NAMES", help="Comma-separated columns of the table or CSV."),
                ],
                None,
            ),
            "csv": (Annotated[bool, typer.Option("--csv", help="Print CSV.")], False),
            "jsonl": (
                Annotated[bool, typer.Option("--jsonl", help="Print JSON Lines: one object a line.")],
                False,
            ),
            **STORE_OPTIONS,
        },
        _listing,
        last=True,
    ),
]
LimitOption = Annotated[
    int | None,
    limit_option("Maximum number of rows."),
]


def _chosen(text: str | None, columns: Sequence[str]) -> list[str] | None:
    if text is None:
        return None
    by_name = {name.replace(" ", "-"): name for name in columns}
    names = [part.strip().lower().replace("_", "-").replace(" ", "-") for part in text.split(",")]
    for name in names:
        if name not in by_name:
            raise usage(f"no column {name!r}; there are: {', '.join(by_name)}")
    return [by_name[name] for name in names]


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

    from lazaretto.model.records.messages import csv_cell

    safe = output.on_terminal()
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([csv_cell(output.cell(value) if safe else value) for value in row])
    sys.stdout.flush()
