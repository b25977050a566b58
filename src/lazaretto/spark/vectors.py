"""Functions of whole Arrow batches: a batch that fails is halved until the messages to blame stand alone."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from lazaretto.errors import HandlerError
from lazaretto.host.handler_calls import why_unsendable
from lazaretto.isolation import Sandbox, Status, Verdict
from lazaretto.isolation.pickling import pickle_value
from lazaretto.spark.sandbox_handler import ADVICE

#: Messages that the function is given at once.
MOST_ROWS = 10_000


class VectorSetup:
    """Called in a sandbox: returns the function of bytes that runs a function of batches there."""

    def __init__(self, function: Callable[..., Any]) -> None:
        try:
            self._pickled = pickle_value(function)
        except Exception as error:
            raise HandlerError(
                f"{function!r} cannot be sent to another process: {why_unsendable(function, error)}. {ADVICE}"
            ) from error

    @property
    def key(self) -> object:
        """Tells whether two setups, copies in other processes too, do the same."""
        return self._pickled

    def __call__(self) -> Callable[[bytes], bytes | None]:
        function = pickle.loads(self._pickled)  # noqa: S301 - from our own driver
        # Arrow imports pandas with the first array that it makes: the first batch has no time for that.
        pa.array([])

        def run(item: bytes) -> bytes | None:
            batch = decode(item)
            results = function(batch)
            if results is None:
                return None
            if not isinstance(results, pa.RecordBatch | pa.Table):
                raise TypeError(f"expected a RecordBatch, a Table or None, got {type(results).__name__}")
            if results.num_rows != batch.num_rows:
                raise ValueError(
                    f"expected a result of {batch.num_rows} rows, like the batch, got {results.num_rows}"
                )
            return encode(results)

        return run


def encode(results: pa.RecordBatch | pa.Table) -> bytes:
    """Return a batch as bytes."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, results.schema) as writer:
        writer.write(results)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def decode(data: bytes) -> pa.RecordBatch:
    """Return the batch that bytes are."""
    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        batches = reader.read_all().combine_chunks().to_batches()
        return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=reader.schema)


def run_vectors(
    sandbox: Sandbox, batch: pa.RecordBatch, most: int, before: Callable[[int], object]
) -> Iterator[tuple[int, int, Verdict]]:
    """Yield first row, number of rows and verdict of parts of a batch, in order.

    A part that fails is run again in halves; one that fails alone is a row. `before` is told the
    first row of each part that is about to be run.
    """
    stack = [(start, min(most, batch.num_rows - start)) for start in range(0, batch.num_rows, most)][::-1]
    while stack:
        first, count = stack.pop()
        before(first)
        (verdict,) = sandbox.run([encode(batch.slice(first, count))])
        if verdict.status is Status.DONE or count == 1:
            yield first, count, verdict
            continue
        half = count // 2
        stack += [(first + half, count - half), (first, half)]
