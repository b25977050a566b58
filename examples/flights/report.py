"""The tables that the job ends with."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from examples.flights.rules import CAUSES, error_type, title
from lazaretto import Broker, Explanation


def show(console: Console, heading: str, broker: Broker, queue: str, processed: int, sent: int) -> bool:
    """Print what became of the flights; return whether each of those sent is accounted for once."""
    dead = dict.fromkeys(CAUSES, 0)
    by_type = {error_type(cause): cause for cause in CAUSES}
    others = 0
    for group in broker.dead_letter_groups(queue):
        cause = by_type.get(group.error_type or "")
        if cause is None:
            others += group.count
        else:
            dead[cause] += group.count
    table = Table(title=heading, title_justify="left", show_footer=True)
    total = processed + sum(dead.values()) + others
    table.add_column("", footer="total")
    table.add_column("Flights", justify="right", footer=f"{total:,}")
    table.add_row("processed", f"{processed:,}")
    for cause, count in dead.items():
        table.add_row(f"dead letters: {title(cause)}", f"{count:,}")
    if others:
        table.add_row("dead letters: other causes", f"{others:,}")
    console.print()
    console.print(table)
    console.print()
    if total != sent:
        console.print(f"expected {sent:,} flights in all, got {total:,}: this is a bug", style="bold red")
    return total == sent


def show_causes(console: Console, explanations: list[Explanation]) -> None:
    """Print why flights failed: what those of each cause have that processed ones lack."""
    console.print("What they have that processed flights lack, which nobody told the queue:")
    for cause in explanations:
        told = "no difference found"
        if cause.differences:
            first = cause.differences[0]
            told = f"{first.filter}: {first.letters:,} of them, {first.good:,} of {cause.good:,} good ones"
        console.print(f"  {cause.letters:,} flights: {told}", soft_wrap=True, markup=False)
    console.print()
