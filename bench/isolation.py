"""`python -m bench.isolation`: what the sandbox costs, next to the same handler in a plain loop.

The handler parses a JSON text of 230 bytes. The plain loop has the try/except that any worker has. The
two take turns, so that a noisy moment of the machine hits both; the figures are medians.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import time
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from lazaretto.isolation import Sandbox, SandboxOptions, Status

_SIZES = (1, 10, 100, 1000)
_CRASH = b"crash"


def body(number: int) -> bytes:
    """Return a JSON text of 230 bytes."""
    text = json.dumps({"id": number, "kind": "order", "lines": [{"sku": "A-1", "n": 2}], "note": ""})
    return f'{text[:-2]}{"x" * (230 - len(text))}"}}'.encode()


def setup() -> Callable[[bytes], None]:
    """Return the handler."""
    import json
    import os

    def handle(item: bytes) -> None:
        if item == _CRASH:
            os.abort()
        json.loads(item)

    return handle


def inline(handle: Callable[[bytes], None], items: list[bytes]) -> list[object]:
    """Run the handler on each item in this process."""
    outcomes: list[object] = []
    for item in items:
        try:
            handle(item)
        except Exception as error:
            outcomes.append(error)
        else:
            outcomes.append(None)
    return outcomes


def _each(run: Callable[[list[bytes]], object], batches: list[list[bytes]]) -> float:
    """Return the microseconds an item takes."""
    start = time.perf_counter()
    for batch in batches:
        run(batch)
    return (time.perf_counter() - start) * 1e6 / sum(map(len, batches))


def _alternating(
    first: Callable[[], float], second: Callable[[], float], rounds: int
) -> tuple[float, float, float]:
    """Return the medians of both, and of their ratio."""
    pairs = [(first(), second()) for _ in range(rounds)]
    ratios = [b / a for a, b in pairs]
    firsts, seconds = zip(*pairs, strict=True)
    return statistics.median(firsts), statistics.median(seconds), statistics.median(ratios)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--mode", choices=("fork", "spawn"), default="fork")
    arguments = parser.parse_args()
    console = Console()
    handle = setup()
    table = Table("items of a batch", "inline, µs an item", "sandbox, µs an item", "ratio")
    with Sandbox(setup, SandboxOptions(mode=arguments.mode)) as sandbox:
        for size in _SIZES:
            count = max(1, min(200, 10_000 // size))
            batches = [[body(number * size + n) for n in range(size)] for number in range(count)]
            a, b, ratio = _alternating(
                functools.partial(_each, functools.partial(inline, handle), batches),
                functools.partial(_each, sandbox.run, batches),
                arguments.rounds,
            )
            table.add_row(f"{size:,}", f"{a:.2f}", f"{b:.2f}", f"{ratio:.2f}")
        console.print(table)

        clean = [body(n) for n in range(1000)]
        spoilt = [b"{" if n % 100 == 50 else item for n, item in enumerate(clean)]
        a, b, ratio = _alternating(
            functools.partial(_each, sandbox.run, [spoilt] * 10),
            functools.partial(_each, sandbox.run, [clean] * 10),
            arguments.rounds,
        )
        console.print(f"1 % exceptions: {a:.2f} µs an item, clean {b:.2f} µs: {ratio:.2f} of its throughput")

        crashes = []
        for _ in range(arguments.rounds):
            start = time.perf_counter()
            verdicts = sandbox.run([clean[0], _CRASH, clean[1]])
            crashes.append((time.perf_counter() - start) * 1e3)
            assert [v.status for v in verdicts] == [Status.DONE, Status.CRASH, Status.DONE]
        console.print(f"a crash: {statistics.median(crashes):.1f} ms, worst {max(crashes):.1f} ms")


if __name__ == "__main__":
    main()
