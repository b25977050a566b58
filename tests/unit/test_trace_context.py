"""Trace contexts in the properties of messages, which anybody may have written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from traced import PARENT, traced

from lazaretto.model.entities import EntityPath
from lazaretto.model.headers import Headers, encode_headers
from lazaretto.model.messages import ReceivedMessage
from lazaretto.model.policy import Outcome
from lazaretto.observe.traces import active
from lazaretto.observe.traces.context import context_of, properties_of

TRACE, SPAN = PARENT.split("-")[1:3]


class File:
    """A store as spans see it: one that is on no server."""

    create_spans = True
    server = None


STORE = File()


def received(properties: dict[str, Any]) -> ReceivedMessage:
    headers = encode_headers(Headers(properties=properties))
    return ReceivedMessage(1, b"", "id", 0, None, headers, None, 1, 0, 0, 0, None, None, None)


@pytest.mark.parametrize(
    "properties",
    [
        {"traceparent": PARENT},
        {"traceparent": PARENT.encode()},
        {"Diagnostic-Id": PARENT},
        {"traceparent": PARENT, "Diagnostic-Id": f"00-{'1' * 32}-{'2' * 16}-00"},
        {"traceparent": f"cc{PARENT[2:]}-what-the-future-will-be-like"},
    ],
)
def test_read(properties: dict[str, Any]) -> None:
    found = context_of(properties)
    assert found is not None
    assert (found.trace_id, found.span_id, found.flags) == (int(TRACE, 16), int(SPAN, 16), 1)


def test_there_and_back() -> None:
    for state in ("", "vendor=1,other=2"):
        found = context_of({"traceparent": PARENT, "tracestate": state})
        assert found is not None and found.state == state
        assert properties_of(found) == {"traceparent": PARENT} | ({"tracestate": state} if state else {})


HOSTILE: list[Any] = [
    "", "nonsense", PARENT.upper(), PARENT + "-more", PARENT + "\n", PARENT[:-1], "ff" + PARENT[2:],
    f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01", f"00-{TRACE}-{SPAN}-0g", PARENT[1:],
    f"00-{chr(0x661) * 32}-{SPAN}-01", "9" * 30_000, b"\xff\xfe", b"", 5, 1.5, True, "|guid.1.", "\ud83d",
]  # fmt: skip


@pytest.mark.parametrize("value", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize("name", ["traceparent", "Diagnostic-Id"])
def test_what_is_no_context_is_none(name: str, value: Any) -> None:
    assert context_of({name: value}) is None


def test_one_that_is_wrong_hides_an_older_name() -> None:
    assert context_of({"traceparent": "", "Diagnostic-Id": PARENT}) is None


@given(parent=st.text() | st.binary() | st.just(PARENT), state=st.text() | st.binary() | st.integers(0, 9))
def test_spans_can_link_to_whatever_a_message_says(parent: Any, state: Any) -> None:
    with traced() as traces:
        tracing = active(STORE)
        assert tracing is not None
        message = received({"traceparent": parent, "tracestate": state})
        processing = tracing.processing(EntityPath("q"), message)
        processing.end(Outcome.COMPLETED, None)
        (span,) = traces.take()
        assert len(span.links) == (parent == PARENT)


def test_a_state_that_is_too_long_is_left_out() -> None:
    found = context_of({"traceparent": PARENT, "tracestate": "a=" + "1" * 3000})
    assert found is not None and found.state == ""


def test_nobody_traces_before_a_provider_is_set() -> None:
    assert active(STORE) is None
    with traced():
        assert active(STORE) is not None
    assert active(STORE) is None


def test_a_provider_that_makes_no_spans_is_none() -> None:
    with traced():
        known: Any = trace
        known._TRACER_PROVIDER = trace.NoOpTracerProvider()
        assert active(STORE) is None


def test_a_program_that_does_not_trace_imports_nothing_of_it(tmp_path: Path) -> None:
    program = """
import sys, lazaretto
from lazaretto.host import Handler, ServiceHost
from lazaretto.testing import drain
with lazaretto.connect(sys.argv[1]) as broker:
    broker.create_queue("q")
    with broker.sender("q") as sender, broker.receiver("q") as receiver:
        sender.send([lazaretto.Message(b"1"), lazaretto.Message(b"2")])
        (message,) = receiver.receive()
        assert message.properties == {}
        receiver.complete(message)
    drain(ServiceHost(broker, Handler("q", print, isolation="inline")))
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""
    command = [sys.executable, "-c", program, str(tmp_path / "off.db")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout.endswith("[]\n"), done
