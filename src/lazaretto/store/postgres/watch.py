"""Ends the wait for a server that has disappeared, and no other wait.

The kernel's own checks do not see a proxy or a machine that still takes what is sent, and never answers. So
after some silence the server is asked on a connection of its own whether it is still at work for the first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from typing import Any, TypeVar, cast

import psycopg

T = TypeVar("T")

#: The first and the longest silence before the server is asked, in seconds.
_SILENCE = 5.0
_LONGEST_SILENCE = 60.0
#: Timeout of that question, in seconds.
_QUESTION = 5.0
_AT_WORK = (
    "SELECT 1 FROM pg_catalog.pg_stat_activity "
    "WHERE pid = %s AND coalesce(state, 'active') NOT LIKE 'idle%%' "
    "AND wait_event_type IS DISTINCT FROM 'Client'"
)


class Watch:
    """Decides at growing intervals whether a wait is in vain.

    `at_work`: asks whether the server is busy with the statement.
    """

    def __init__(self, at_work: Callable[[], bool]) -> None:
        self._at_work = at_work
        self._patience = _SILENCE
        self._since: float | None = None
        self._in_vain = False
        self._ended = False

    def end(self) -> None:
        """End the current wait and all later ones at the next silence. Any thread may call it."""
        self._ended = True

    def heard(self) -> None:
        """Record that the server has sent or accepted something."""
        self._since = None
        self._in_vain = False

    def silent(self) -> None:
        """Record a silence. Raises OperationalError if the server has disappeared, or after `end`."""
        if self._ended:
            raise psycopg.OperationalError("no caller waits for this connection")
        if self._in_vain:
            # Not even what was under way while it was asked has come.
            raise psycopg.OperationalError("the server no longer answers on this connection")
        now = time.monotonic()
        if self._since is None:
            self._since, self._patience = now, _SILENCE
        elif now >= self._since + self._patience:
            self._in_vain = not self._at_work()
            self._since = time.monotonic()
            self._patience = min(2 * self._patience, _LONGEST_SILENCE)


class WatchedConnection(psycopg.Connection[Any]):
    """A psycopg connection whose waits end if the server has disappeared."""

    #: Set behind the constructor, which is psycopg's.
    watch = Watch(lambda: False)

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **options: Any) -> T:
        """Run a generator that waits for the server."""
        answer: T = super().wait(cast(Any, self._watched(gen)), *args, **options)
        return answer

    def _watched(self, gen: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        watch = self.watch
        watch.heard()
        try:
            state = next(gen)
            while True:
                ready = yield state
                if ready:
                    watch.heard()
                else:
                    try:
                        watch.silent()
                    except psycopg.OperationalError:
                        self.close()
                        raise
                state = gen.send(ready)
        except StopIteration as done:
            return cast(T, done.value)


def is_at_work(conninfo: str, pid: int) -> bool:
    """Ask the server, on another connection, whether one of its processes is busy.

    A process that waits for its client has either replied or never received the statement.
    """
    try:
        with WatchedConnection.connect(
            conninfo, autocommit=True, application_name="lazaretto", connect_timeout=int(_QUESTION)
        ) as other:
            other.watch = Watch(lambda: False)
            # Nobody else's operators are on its path.
            other.execute("SET search_path = pg_catalog, pg_temp")
            return other.execute(_AT_WORK, (pid,)).fetchone() is not None
    except psycopg.Error as error:
        # Who is let in no more, as where all connections are taken, has been answered all the same.
        return "FATAL" in str(error)
