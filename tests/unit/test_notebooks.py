"""What notebooks show: tables in which nothing that users made is markup."""

from __future__ import annotations

import re

import lazaretto
from lazaretto import DeadLetterFilter, Message, PoisonPolicy, QueueOptions, testing
from lazaretto.model.shown_text import html_table

HOSTILE = "<script>alert('x')</script>\" onload=\"y & \u202e\x00\ud800"


def test_a_table_shows_texts_as_they_are() -> None:
    found = html_table(HOSTILE, [HOSTILE, "n"], [[HOSTILE, 1234567], [None, "x" * 600]])
    assert "<script" not in found
    assert set(re.findall(r"<(/?\w+)", found)) == {
        name for tag in ("table", "caption", "thead", "tbody", "tr", "th", "td") for name in (tag, f"/{tag}")
    }
    shown = (
        "&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt;&quot; onload=&quot;y &amp; \\u202e\\u0000\\ud800"
    )
    assert found.count(shown) == 3
    assert "1,234,567" in found
    assert f">{'x' * 499}…<" in found


def test_triage_counts_and_repairs_are_shown() -> None:
    with testing.temporary_broker() as broker:
        look(broker)


def look(broker: lazaretto.Broker) -> None:
    broker.create_queue("a-b", QueueOptions(policy=PoisonPolicy(receive_retry_count=0)))
    broker.sender("a-b").send([Message(b"x"), Message(b"y")])
    with broker.receiver("a-b") as receiver:
        (message,) = receiver.receive(1)
        receiver.abandon(message, error=ValueError("<b>no</b>"))
    counts, queue = broker.queue("a-b").counts, broker.queue("a-b")
    for value in (counts, queue):
        found = value._repr_html_()
        assert "<th>active</th>" in found
        assert '<td style="text-align: right">1</td>' in found
    assert "a-b, active" in queue._repr_html_()
    triage = broker.triage("a-b")._repr_html_()
    assert "1 dead letters of a-b" in triage
    assert "&lt;b&gt;no&lt;/b&gt;" in triage
    assert "<b>" not in triage
    repair = broker.plan_repair("a-b", DeadLetterFilter(), everything=True, name="mend")
    assert "repair mend of a-b: planned, 1 letters" in repair.status()._repr_html_()
