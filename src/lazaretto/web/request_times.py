"""Times of a server's requests, as metrics in Prometheus's format."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Histogram, generate_latest

#: Upper bounds of durations, in seconds, as OpenTelemetry advises them.
_DURATIONS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)


class RequestTimes:
    """Times that a server has taken for its requests, by route."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._seconds = Histogram(
            "lazaretto_http_request_duration_seconds",
            "How long requests of the HTTP API took.",
            ("method", "route", "status"),
            registry=self._registry,
            buckets=_DURATIONS,
        )
        #: Those that were asked for, since finding one takes as long as counting.
        self._kept: dict[tuple[str, str, int], Histogram] = {}

    def note(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request. `route`: its template."""
        key = method, route, status
        kept = self._kept.get(key)
        if kept is None:
            kept = self._kept[key] = self._seconds.labels(*key)
        kept.observe(seconds)

    def exposition(self) -> bytes:
        """Return them in Prometheus's format."""
        return generate_latest(self._registry)
