"""Ends long work in good order when the process is told to end."""

from __future__ import annotations

import _thread
import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

#: What tells a process to end: a supervisor, Control-C, a terminal that is closed.
ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name))
#: A program above this one may pass on the Control-C that the terminal has sent already, in seconds.
_SAME_PRESS = 0.2
#: After which an interrupt that was lost comes again, in seconds.
_AGAIN = 0.05


class Ending:
    """Whether this process was told to end. It is to be polled: a signal's handler must take no lock."""

    def __init__(self) -> None:
        self._since: float | None = None
        #: Whether Control-C was pressed again: end at once.
        self.hurried = False

    @property
    def asked(self) -> bool:
        """Whether to end."""
        return self._since is not None

    def ask(self) -> None:
        """Have it end; may be called in a signal's handler."""
        if self._since is None:
            self._since = time.monotonic()

    @contextlib.contextmanager
    def on_signals(self) -> Iterator[None]:
        """Be asked by SIGTERM, SIGINT and SIGHUP instead of ending at once; in the main thread only."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def on_signal(number: int, frame: FrameType | None) -> None:
            again = self._since is not None and time.monotonic() - self._since >= _SAME_PRESS
            self.hurried = self.hurried or (again and number == signal.SIGINT)
            self.ask()

        with _handled(on_signal):
            yield


@contextlib.contextmanager
def interrupting() -> Iterator[None]:
    """Have SIGTERM and SIGHUP raise KeyboardInterrupt, as SIGINT does; in the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with _handled(signal.default_int_handler), _never_lost():
        yield


@contextlib.contextmanager
def _never_lost() -> Iterator[None]:
    """Get SIGTERM again where Python drops a KeyboardInterrupt: while it forks, or in a `__del__`, say."""
    before = sys.unraisablehook
    # Held while the signal comes again, so that none comes once nobody handles it any more.
    coming = threading.Lock()
    handled = True

    def come_again() -> None:
        with coming:
            if handled:
                _interrupt_main()

    def on_dropped(dropped: sys.UnraisableHookArgs) -> None:
        if not issubclass(dropped.exc_type, KeyboardInterrupt):
            before(dropped)
            return
        # Raised here and now, it would be dropped as well.
        later = threading.Timer(_AGAIN, come_again)
        later.daemon = True
        later.start()

    sys.unraisablehook = on_dropped
    try:
        yield
    finally:
        try:
            with coming:
                handled = False
        finally:
            sys.unraisablehook = before


def _interrupt_main() -> None:
    main = threading.main_thread().ident
    if hasattr(signal, "pthread_kill") and main is not None:
        # It ends what the thread waits for, too: Python's own call is heard behind that.
        signal.pthread_kill(main, signal.SIGTERM)
    else:
        _thread.interrupt_main(signal.SIGTERM)


@contextlib.contextmanager
def _handled(action: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    # Under nohup it goes on when the terminal is closed.
    numbers = [number for number in ENDING if not _is_deaf_to(number)]
    before = {number: signal.signal(number, action) for number in numbers}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


def _is_deaf_to(number: signal.Signals) -> bool:
    return number.name == "SIGHUP" and signal.getsignal(number) == signal.SIG_IGN


def on_loop_signal(number: signal.Signals, call: Callable[[], object]) -> None:
    """Call a function in the running event loop when a signal comes; in the main thread only."""
    import asyncio

    loop = asyncio.get_running_loop()
    try:
        loop.add_signal_handler(number, call)
    except NotImplementedError:
        # Loops of Windows have none.
        signal.signal(number, lambda number, frame: loop.call_soon_threadsafe(call))
