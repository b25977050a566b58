"""Traces by OpenTelemetry: whether somebody traces, which costs nothing if nobody does.

Nothing here imports OpenTelemetry. A program that traces has imported it, and has set a tracer provider.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from lazaretto.observe.traces.context import MOST_LINKS, TracedStore, context_of

if TYPE_CHECKING:
    from lazaretto.model.messages import StoredMessage
    from lazaretto.observe.traces.spans import Tracing

    MakeTracing = Callable[[TracedStore], Tracing]

__all__ = ["API", "MOST_LINKS", "TracedStore", "active", "is_traced", "within"]

#: Nobody traces before this module is imported.
API = "opentelemetry.trace"
#: The provider that was set when somebody last asked, and what makes a store's spans with it.
_known: tuple[Any, MakeTracing | None] = (None, None)
_nothing = nullcontext()


def is_traced() -> bool:
    """Return whether this program has set a tracer provider."""
    api = sys.modules.get(API)
    return api is not None and getattr(api, "_TRACER_PROVIDER", None) is not None


def active(store: TracedStore) -> Tracing | None:
    """Return what makes the spans of a store; None if this program has set no tracer provider."""
    api = sys.modules.get(API)
    # By its private name: the public function looks at the environment, which takes longer than a send may.
    return None if api is None or getattr(api, "_TRACER_PROVIDER", None) is None else _tracing(api, store)


def _tracing(api: Any, store: TracedStore) -> Tracing | None:
    global _known
    provider = api.get_tracer_provider()
    if _known[0] is not provider:
        from lazaretto.observe.traces.spans import tracing_with

        _known = provider, tracing_with(provider)
    make = _known[1]
    return None if make is None else make(store)


def within(message: StoredMessage) -> AbstractContextManager[None]:
    """Make a message's own trace context the current one, where OpenTelemetry is imported.

    So what a handler traces in a process of its own goes on with the trace of the message's sender.
    """
    if API not in sys.modules or (context := context_of(message.properties)) is None:
        return _nothing
    from lazaretto.observe.traces.spans import current

    return current(context)
