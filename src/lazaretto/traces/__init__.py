"""Traces by OpenTelemetry: whether somebody traces, which costs nothing if nobody does.

Nothing here imports OpenTelemetry. A program that traces has imported it, and has set a tracer provider.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from lazaretto.traces.context import context_of

if TYPE_CHECKING:
    from lazaretto.model.messages import StoredMessage
    from lazaretto.traces.spans import Tracing

#: Links of one span at most, which is what OpenTelemetry keeps. Larger batches have no span for each message.
MOST_LINKS = 128
_API = "opentelemetry.trace"
#: The provider that was set when somebody last asked, and what makes spans with it.
_known: tuple[Any, Tracing | None] = (None, None)
_nothing = nullcontext()


def active() -> Tracing | None:
    """Return what makes spans; None if this program has set no tracer provider."""
    api = sys.modules.get(_API)
    # By its private name: the public function looks at the environment, which takes longer than a send may.
    return None if api is None or getattr(api, "_TRACER_PROVIDER", None) is None else _tracing(api)


def _tracing(api: Any) -> Tracing | None:
    global _known
    provider = api.get_tracer_provider()
    if _known[0] is not provider:
        from lazaretto.traces.spans import tracing_with

        _known = provider, tracing_with(provider)
    return _known[1]


def within(message: StoredMessage) -> AbstractContextManager[None]:
    """Make a message's own trace context the current one, where OpenTelemetry is imported.

    So what a handler traces in a process of its own goes on with the trace of the message's sender.
    """
    if _API not in sys.modules or (context := context_of(message.properties)) is None:
        return _nothing
    from lazaretto.traces.spans import current

    return current(context)
