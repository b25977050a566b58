"""`python -m bench.isolation`: what the sandbox costs, next to the same handler in a plain loop.

The handler parses a JSON text of 230 bytes. The plain loop has the try/except that any worker has. Times
are of one item; a crash is one among two good items.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.figures import Figure
from bench.payload import order
from bench.rounds import options, run
from lazaretto.isolation import Sandbox, SandboxOptions, Status

SIZE = 230
_SIZES = (1, 10, 100, 1000)
_ITEMS = 10_000
_CRASH = b"crash"


def setup() -> Callable[[bytes], None]:
    """Return the handler."""
    import json
    import os

    def handle(item: bytes) -> None:
        if item == _CRASH:
            os.abort()
        json.loads(item)

    return handle


def inline(items: list[bytes]) -> list[object]:
    """Run the handler on each item in this process."""
    outcomes: list[object] = []
    for item in items:
        try:
            json.loads(item)
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


def _measure(sandbox: Sandbox) -> Iterator[Figure]:
    clean = [order(n, SIZE) for n in range(_ITEMS)]
    for size in _SIZES:
        # Few batches of one: each is a call to another process.
        batches = [clean[start : start + size] for start in range(0, min(_ITEMS, 200 * size), size)]
        for name, work in (("sandbox", sandbox.run), ("plain loop", inline)):
            yield Figure(f"an item, batches of {size:,}", name, _each(work, batches), "µs", less=True)
    spoilt = [b"{" if n % 100 == 50 else item for n, item in enumerate(clean)]
    for name, items in (("1 % exceptions", spoilt), ("clean", clean)):
        batches = [items[start : start + 1_000] for start in range(0, _ITEMS, 1_000)]
        yield Figure("1 % exceptions, batches of 1,000", name, _each(sandbox.run, batches), "µs", less=True)
    start = time.perf_counter()
    verdicts = sandbox.run([clean[0], _CRASH, clean[1]])
    yield Figure("a crash", "sandbox", (time.perf_counter() - start) * 1e3, "ms", less=True)
    assert [v.status for v in verdicts] == [Status.DONE, Status.CRASH, Status.DONE]


def main() -> int:
    """Measure and print."""
    parser = options("bench.isolation", __doc__, 15)
    parser.add_argument("--mode", choices=("fork", "spawn"), default="fork")
    given = parser.parse_args()
    with Sandbox(setup, SandboxOptions(mode=given.mode)) as sandbox:

        def measure(_folder: Path, _number: int) -> Iterator[Figure]:
            return _measure(sandbox)

        return run(given, measure)


if __name__ == "__main__":
    raise SystemExit(main())
