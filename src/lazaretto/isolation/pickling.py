"""Pickles functions and what they need for other processes."""

from __future__ import annotations

import io
from collections import ChainMap
from types import CodeType
from typing import Any, ClassVar

import cloudpickle


def _make_code(arguments: tuple[Any, ...], filename: str) -> CodeType:
    return CodeType(*arguments).replace(co_filename=filename)


def _reduce_code(code: CodeType) -> tuple[Any, ...]:
    _, arguments, *_ = cloudpickle.Pickler.dispatch_table[CodeType](code)
    return _make_code, (arguments, code.co_filename)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    # From 3.1.3 on cloudpickle names every file <dynamic-code>. A stack must tell where an error was raised.
    dispatch_table: ClassVar = ChainMap({CodeType: _reduce_code}, cloudpickle.Pickler.dispatch_table)


def pickle_value(value: object) -> bytes:
    """Return a value's pickle: functions and classes that have no importable name are in it whole.

    Functions keep the names of their files, so that stacks and causes tell where an error was raised.

    `pickle.loads` reads it. Raises what the value raises when it is pickled.
    """
    with io.BytesIO() as file:
        _Pickler(file).dump(value)
        return file.getvalue()
