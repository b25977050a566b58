"""Lets processes of one machine sleep on a word of shared memory, and wake each other."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import sys
from collections.abc import Callable

_WAIT, _WAKE = 0, 1
#: The number of the system call, by machine: those of 64 bits, whose times are two whole words.
_NUMBERS = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "loongarch64": 98, "ppc64le": 221, "s390x": 238}


class _Time(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_int64), ("nanoseconds", ctypes.c_int64))


def _system_call() -> tuple[int, Callable[..., int]] | None:
    number = _NUMBERS.get(platform.machine())
    if sys.platform != "linux" or number is None or ctypes.sizeof(ctypes.c_void_p) != 8:
        return None
    try:
        call = ctypes.CDLL(None, use_errno=True).syscall
    except (AttributeError, OSError):
        return None
    call.restype = ctypes.c_long
    pointer, number32 = ctypes.c_void_p, ctypes.c_uint32
    call.argtypes = (ctypes.c_long, pointer, ctypes.c_int, number32, ctypes.POINTER(_Time), pointer, number32)
    return number, call


_CALL = _system_call()


def is_there() -> bool:
    """Return whether the system has futexes that this program can call."""
    return _CALL is not None


def wait(address: int, seen: int, seconds: float) -> None:
    """Sleep until a `wake` at `address`, a signal or the timeout; other threads keep running.

    It returns at once if the word is not `seen`.
    """
    assert _CALL is not None
    number, call = _CALL
    whole = int(seconds)
    time = _Time(whole, int((seconds - whole) * 1e9))
    if call(number, address, _WAIT, seen, ctypes.byref(time), None, 0) < 0:
        error = ctypes.get_errno()
        if error not in (errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT):
            raise OSError(error, os.strerror(error))


def wake(address: int) -> None:
    """Wake the threads that sleep at `address`."""
    assert _CALL is not None
    number, call = _CALL
    call(number, address, _WAKE, 0x7FFF_FFFF, None, None, 0)
