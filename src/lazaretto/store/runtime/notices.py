"""Logs the notable results of a commit: failed attempts, dead letters, halted queues."""

from __future__ import annotations

import contextlib
import logging
import textwrap
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lazaretto.model.shown_text import safe, safe_lines
from lazaretto.store.records.messages import Notice

_log = logging.getLogger("lazaretto.messages")

#: Maximum log records of one level about one queue in a period, and the period in seconds.
MOST, WHILE = 100, 10.0


class NoticeLog:
    """Collects notices while a commit is written, and logs them afterwards; threads share it.

    More than MOST of one level about one queue within WHILE are counted, and only their number is logged.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        #: What is to be written.
        self.new: deque[Notice] = deque()
        self._lock = threading.Lock()
        self._spans: dict[tuple[str, int], _Span] = {}

    def add(self, notices: Sequence[Notice]) -> None:
        """Keep notices for `write`."""
        self.new.extend(notices)

    def write(self) -> None:
        """Log the added notices. Errors of log handlers are suppressed."""
        while True:
            try:
                notice = self.new.popleft()
            except IndexError:
                return
            if not _log.isEnabledFor(notice.level):
                continue
            for text, fields in self._lines(notice):
                with contextlib.suppress(Exception):
                    _log.log(notice.level, "%s", text, extra={"queue": notice.queue, **fields})

    def _lines(self, notice: Notice) -> list[tuple[str, Mapping[str, Any]]]:
        now, key = self._clock(), (notice.queue, notice.level)
        lines: list[tuple[str, Mapping[str, Any]]] = []
        with self._lock:
            if (span := self._spans.get(key)) is None:
                span = self._spans[key] = _Span(now)
            if now - span.since >= WHILE:
                if span.count > MOST:
                    lines.append((f"{notice.queue!r}: {span.count - MOST} more were not logged", {}))
                span.since, span.count = now, 0
            span.count += 1
            if span.count == MOST + 1:
                lines.append(
                    (f"{notice.queue!r}: too many failures; for {WHILE:g} s they are not logged", {})
                )
            elif span.count <= MOST:
                # A reason is one line, and a stack stands apart: nothing looks like a line of the log.
                text = safe(notice.text)
                if notice.stack:
                    text = f"{text}\n{textwrap.indent(safe_lines(notice.stack.rstrip()), '  ')}"
                lines.append((text, {**notice.fields, "text": notice.text, "stack": notice.stack}))
        return lines


class _Span:
    """Notices of one kind: how many came, and since when."""

    __slots__ = ("count", "since")

    def __init__(self, since: float) -> None:
        self.since = since
        self.count = 0
