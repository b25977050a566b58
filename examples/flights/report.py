"""The tables that the job ends with."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from examples.flights.rules import CAUSES, error_type, title
from lazaretto import Broker


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
