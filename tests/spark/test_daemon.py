"""The daemon of Python workers: where Spark reads no further, nobody prints an error."""

from __future__ import annotations

import pytest

from lazaretto.spark.daemon import hang_up_quietly


def test_a_worker_whose_reader_has_gone_ends_without_an_error() -> None:
    def gone(_sock: object, _authenticated: bool) -> int:
        raise BrokenPipeError

    assert hang_up_quietly(gone)(None, True) == 1
    assert hang_up_quietly(lambda *_: 0)(None, True) == 0
    with pytest.raises(ConnectionRefusedError):
        hang_up_quietly(_refused)(None, True)


def _refused(_sock: object, _authenticated: bool) -> int:
    raise ConnectionRefusedError
