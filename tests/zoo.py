"""Everything a message can do to the process that handles it: for the drills, and for the tests."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import msgspec

#: Numbers of descriptors end before it, also in a process that ran many tests.
_MOST = 4096


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class ExitsWhenPrinted(Exception):
    def __str__(self) -> str:
        raise SystemExit(9)


class NotEvenText(Exception):
    def __str__(self) -> str:
        return 5  # type: ignore[return-value]


class Unpicklable(Exception):
    def __init__(self) -> None:
        super().__init__("cannot be pickled")
        self.lock = threading.Lock()


class OwnBase(BaseException):
    pass


def value_error() -> None:
    raise ValueError("bad value")


def own_base() -> None:
    raise OwnBase("base")


def system_exit() -> None:
    sys.exit(3)


def keyboard_interrupt() -> None:
    raise KeyboardInterrupt


def generator_exit() -> None:
    raise GeneratorExit


def recursion() -> None:
    recursion()


def group() -> None:
    raise ExceptionGroup("several", [ValueError("one"), KeyError("two")])


def unprintable() -> None:
    raise Unprintable


def exits_when_printed() -> None:
    raise ExitsWhenPrinted


def not_even_text() -> None:
    raise NotEvenText


def unpicklable() -> None:
    raise Unpicklable


def surrogates() -> None:
    raise ValueError("\ud800 alone")


def long_message() -> None:
    raise ValueError("x" * 10_000_000)


def not_bytes() -> object:
    return {"a": 1}


def huge_result() -> bytes:
    return b"x" * 40_000_000


def warning_as_error() -> None:
    warnings.simplefilter("error")
    warnings.warn("deprecated", DeprecationWarning, stacklevel=1)


def segfault() -> None:
    ctypes.string_at(0)


def c_recursion() -> None:
    sys.setrecursionlimit(10**8)

    class Endless:
        def __repr__(self) -> str:
            return repr(self)

    repr(Endless())


def abort() -> None:
    os.abort()


def exit_0() -> None:
    os._exit(0)


def exit_3() -> None:
    os._exit(3)


def kill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_parent() -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)


def python_hang() -> None:
    while True:
        pass


def c_hang() -> None:
    re.match(r"(a+)+$", "a" * 50 + "b")


def sleeps() -> None:
    time.sleep(60)


def deaf_sleep() -> None:
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    time.sleep(60)


def memory_bomb() -> None:
    hoard = []
    while True:  # a step larger than any limit here is refused before a page of it is touched
        hoard.append(bytearray(1_000_000_000))


def descriptor_leak() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    leaked = []
    while True:
        leaked.append(os.open("/dev/null", os.O_RDONLY))


def quiet_leak() -> None:
    for _ in range(100):
        os.dup(2)


def closes_descriptors() -> None:
    os.closerange(0, _MOST)


def prints_much() -> None:
    for _ in range(50):
        print("x" * 1_000_000)


def replaces_stdout() -> None:
    sys.stdout = None


def lingering_thread() -> None:
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()


def fork_returns() -> None:
    os.fork()


def fork_raises() -> None:
    if os.fork() == 0:
        raise ValueError("in the child")


def fork_stays() -> None:
    if os.fork() == 0:
        time.sleep(60)


def daemon_stays() -> None:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(60)
        os._exit(0)


def subprocess_stays() -> None:
    subprocess.Popen(["sleep", "60"])


def _descriptors() -> list[int]:
    return [fd for fd in range(3, _MOST) if _is_open(fd)]


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _truncate(size: int) -> None:
    for fd in _descriptors():
        with contextlib.suppress(OSError):
            os.ftruncate(fd, size)


def truncates_descriptors() -> None:
    _truncate(0)


def grows_descriptors() -> None:
    _truncate(1 << 40)


def garbles_descriptors() -> None:
    for fd in _descriptors():
        with contextlib.suppress(OSError):
            os.write(fd, b"garbage" * 100)
        with contextlib.suppress(OSError):
            os.pwrite(fd, b"\xff" * 5000, 0)


def hurries_descriptors() -> None:
    for fd in _descriptors():
        os.set_blocking(fd, False)


def pipes_in_place() -> None:
    os.closerange(3, _MOST)
    for _ in range(20):
        _, write = os.pipe()
        os.write(write, b"garbage" * 100)


def sockets_in_place() -> None:
    os.closerange(3, _MOST)
    for _ in range(20):
        for end in socket.socketpair():
            end.send(b"garbage" * 100)
            end.detach()


def stops_parent() -> None:
    os.kill(os.getppid(), signal.SIGSTOP)


def stops_parent_and_ends() -> None:
    stops_parent()
    os._exit(3)


def stops_parent_and_sleeps() -> None:
    stops_parent()
    time.sleep(60)


def stops_itself() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def signals_itself() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(os.getpid(), number)


def patches_msgpack() -> None:
    msgspec.msgpack.encode = lambda *_: b"no msgpack"


def patches_msgpack_and_raises() -> None:
    patches_msgpack()
    raise ValueError("patched")


#: Why a queue sets a message aside, by how a sandbox says that it ended.
REASONS = {
    "error": "MaxDeliveryCountExceeded",
    "crash": "WorkerCrashed",
    "timeout": "HandlerTimeout",
    "memory": "OutOfMemory",
}

#: Kind, its status, the error's type, and what the stack must name (None: no stack is asked for).
ZOO: dict[str, tuple[Callable[[], Any], str, str | None, str | None]] = {
    f.__name__: (f, status, error, stack)
    for f, status, error, stack in (
        (value_error, "error", "ValueError", "value_error"),
        (own_base, "error", "zoo.OwnBase", "own_base"),
        (system_exit, "error", "SystemExit", "system_exit"),
        (keyboard_interrupt, "error", "KeyboardInterrupt", "keyboard_interrupt"),
        (generator_exit, "error", "GeneratorExit", "generator_exit"),
        (recursion, "error", "RecursionError", "recursion"),
        (group, "error", "ExceptionGroup", "group"),
        (unprintable, "error", "zoo.Unprintable", None),
        (exits_when_printed, "error", "zoo.ExitsWhenPrinted", None),
        (not_even_text, "error", "zoo.NotEvenText", None),
        (unpicklable, "error", "zoo.Unpicklable", "unpicklable"),
        (surrogates, "error", "ValueError", "surrogates"),
        (long_message, "error", "ValueError", "long_message"),
        (not_bytes, "error", "TypeError", None),
        (huge_result, "error", "ResultTooLarge", None),
        (warning_as_error, "error", "DeprecationWarning", "warning_as_error"),
        (descriptor_leak, "error", "OSError", "descriptor_leak"),
        (segfault, "crash", "WorkerCrashed", "segfault"),
        (c_recursion, "crash", "WorkerCrashed", "__repr__"),
        (abort, "crash", "WorkerCrashed", "abort"),
        (exit_0, "crash", "WorkerCrashed", None),
        (exit_3, "crash", "WorkerCrashed", None),
        (kill_itself, "crash", "WorkerCrashed", None),
        (kill_parent, "crash", "WorkerCrashed", None),
        (python_hang, "timeout", "HandlerTimeout", "python_hang"),
        (c_hang, "timeout", "HandlerTimeout", "c_hang"),
        (sleeps, "timeout", "HandlerTimeout", "sleeps"),
        (deaf_sleep, "timeout", "HandlerTimeout", None),
        (memory_bomb, "memory", "OutOfMemory", "memory_bomb"),
        (quiet_leak, "done", None, None),
        (closes_descriptors, "done", None, None),
        (prints_much, "done", None, None),
        (replaces_stdout, "done", None, None),
        (lingering_thread, "done", None, None),
        (fork_returns, "done", None, None),
        (fork_raises, "done", None, None),
        (fork_stays, "done", None, None),
        (daemon_stays, "done", None, None),
        (subprocess_stays, "done", None, None),
        (truncates_descriptors, "done", None, None),
        (grows_descriptors, "done", None, None),
        (garbles_descriptors, "done", None, None),
        (hurries_descriptors, "done", None, None),
        (pipes_in_place, "done", None, None),
        (sockets_in_place, "done", None, None),
        (stops_parent, "done", None, None),
        (stops_parent_and_ends, "crash", "WorkerCrashed", None),
        (stops_parent_and_sleeps, "timeout", "HandlerTimeout", None),
        (stops_itself, "timeout", "HandlerTimeout", None),
        (signals_itself, "done", None, None),
        (patches_msgpack, "done", None, None),
        (patches_msgpack_and_raises, "error", "ValueError", "patches_msgpack_and_raises"),
    )
}

#: The latest of them turn against whoever isolates them; the drills do without.
AGAINST_ISOLATION = tuple(ZOO)[tuple(ZOO).index("truncates_descriptors") :]


def act(item: bytes) -> bytes | None:
    """Do what the item says: a kind of the zoo, or b"good …", which is returned."""
    word = item.split(b" ")[0].decode("utf-8", "replace")
    if word in ZOO:
        done: bytes | None = ZOO[word][0]()
        return done
    return None if word == "quiet" else item


def setup() -> Callable[[bytes], bytes | None]:
    """Return the function that the sandbox runs."""
    return act


#: The kinds of the zoo that end badly; what a handler returns is of no concern to a queue.
BAD_ZOO = sorted(
    name
    for name, (_, status, _, _) in ZOO.items()
    if status != "done" and name not in ("huge_result", "not_bytes", *AGAINST_ISOLATION)
)
