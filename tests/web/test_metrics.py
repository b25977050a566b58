"""Metrics over HTTP and on the command line; the alert rules and the dashboard that read them."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from lazaretto import Broker, Message, PoisonPolicy, QueueOptions
from lazaretto.host import Handler, ServiceHost
from lazaretto.observe.metrics import ProcessMetrics, listen, process_exposition
from lazaretto.testing import drain

from .conftest import Served

CONTRIB = Path(__file__).parents[2] / "contrib"
RULES: list[dict[str, Any]] = yaml.safe_load((CONTRIB / "prometheus/alerts.yml").read_text())["groups"][0][
    "rules"
]

Sample = tuple[str, dict[str, str], float]


def samples_of(text: str) -> list[Sample]:
    return [
        (sample.name, sample.labels, sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]


def scrape(served: Served, path: str = "/metrics", **parameters: object) -> list[Sample]:
    token = {"Authorization": "Bearer token-of-viewer"}
    url = f"http://127.0.0.1:{served.port}{path}"
    found = httpx.get(url, params={k: str(v) for k, v in parameters.items()}, headers=token)
    assert found.status_code == 200, found.text
    assert found.headers["content-type"].startswith("text/plain")
    return samples_of(found.text)


def trouble(broker: Broker) -> None:
    """Have every kind of trouble that somebody is to be told of."""
    receiver = broker.receiver("q")
    broker.sender("q").send([Message(b"x")] * 20)
    receiver.dead_letter(receiver.receive(12))
    broker.set_breaker("q", "open")
    policy = PoisonPolicy(receive_retry_count=0, on_poison="fault")
    broker.create_queue("halts", QueueOptions(policy=policy))
    once = PoisonPolicy(receive_retry_count=0)
    broker.create_queue("held", QueueOptions(policy=once, requires_session=True, on_poison_session="block"))
    broker.sender("halts").send(Message(b"bad"))
    broker.sender("held").send(Message(b"bad", session_id="s"))
    halts = broker.receiver("halts")
    halts.abandon(halts.receive(), error="no")
    with broker.receiver("held", session="s") as held:
        held.abandon(held.receive(), error="no")


def test_how_a_store_stands(broker: Broker, served: Served) -> None:
    trouble(broker)
    found = {(name, *labels.values()): value for name, labels, value in scrape(served)}
    assert found["lazaretto_queues", "severe"] == 3
    assert found["lazaretto_queue_messages", "q", "waiting"] == 8
    assert found["lazaretto_queue_messages", "q", "dead_letter"] == 12
    assert found["lazaretto_queue_dead_letters_this_hour", "q"] == 12
    assert found["lazaretto_queue_messages_per_minute", "sent", "q"] >= 0
    assert found["lazaretto_repair_messages", "left"] == 0
    assert found["lazaretto_store_bytes",] > 0
    assert found["lazaretto_store_read_seconds",] > 0
    kinds = {labels["kind"] for name, labels, _ in scrape(served) if name == "lazaretto_queue_trouble"}
    assert kinds == {"breaker_open", "dead_letters", "halted", "held_sessions"}


def test_states_and_counters(broker: Broker, served: Served) -> None:
    trouble(broker)
    # What another process has counted is written when it ends.
    broker.close()
    found = {(name, *labels.values()): value for name, labels, value in scrape(served)}
    for queue, status, breaker in (("halts", "halted", "closed"), ("q", "active", "held_open")):
        of = {key[2]: value for key, value in found.items() if key[:2] == ("lazaretto_queue_status", queue)}
        assert [name for name, value in of.items() if value] == [status]
        assert found["lazaretto_queue_breaker_status", queue, breaker] == 1
    assert found["lazaretto_queue_held_sessions", "held"] == 1
    assert found["lazaretto_queue_fingerprints", "q"] == 1
    assert found["lazaretto_messages_sent_total",] == found["lazaretto_queue_messages_sent_total", "q"] + 2
    assert found["lazaretto_queue_messages_dead_lettered_total", "q"] == 12
    assert found["lazaretto_open_claims",] == 0


def test_names_say_what_the_metrics_are(broker: Broker, served: Served) -> None:
    """A counter ends in _total and nothing else does; all have the prefix, and a text."""
    trouble(broker)
    token = {"Authorization": "Bearer token-of-viewer"}
    text = httpx.get(f"http://127.0.0.1:{served.port}/metrics", headers=token).text
    families = list(text_string_to_metric_families(text))
    assert len(families) > 20
    for family in families:
        assert family.name.startswith("lazaretto_")
        assert family.documentation.endswith(".")
        names = {sample.name for sample in family.samples} or {family.name}
        if family.type == "counter":
            assert names == {f"{family.name}_total"}
        elif family.type == "gauge":
            assert not any(name.endswith(("_total", "_count", "_sum", "_bucket")) for name in names), names
        else:
            assert family.type in ("histogram", "info"), family


def test_which_queues_are_named(broker: Broker, served: Served) -> None:
    """Some of many; those that are asked for; never more than the limit."""
    broker.create_queues([f"shop/{n}" for n in range(110)])

    def named(**parameters: object) -> set[str]:
        return {
            labels["queue"] for name, labels, _ in scrape(served, "/api/v1/metrics", **parameters)
            if name == "lazaretto_queue_messages"
        }  # fmt: skip

    assert len(named()) == 100
    assert named(name_contains="shop/10") == {"shop/10", *(f"shop/10{n}" for n in range(10))}
    assert len(named(name_contains="shop/", limit=5)) == 5
    assert len(named(limit=2000)) > 110
    refused = served.client("viewer").get("/metrics", params={"limit": 2001})
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_option")


def test_durations_of_requests(broker: Broker, served: Served) -> None:
    """By the template of the route, not by what was asked for."""
    api = served.client("viewer")
    for path in ("/queues/q", "/queues/q", "/queues/none"):
        api.get(path)
    found = {
        (labels["method"], labels["route"], labels["status"]): value
        for name, labels, value in scrape(served)
        if name == "lazaretto_http_request_duration_seconds_count"
    }
    assert found["GET", "/queues/{path:path}", "200"] == 2
    assert found["GET", "/queues/{path:path}", "404"] == 1


def work(broker: Broker) -> None:
    """Complete two messages in a sandbox, and fail once at one within this process."""
    broker.create_queue("sandboxed")
    broker.create_queue("inline", QueueOptions(policy=PoisonPolicy(receive_retry_count=0)))
    broker.sender("sandboxed").send([Message(b"1"), Message(b"2")])
    broker.sender("inline").send(Message(b"bad"))
    handlers = [Handler("sandboxed", do_nothing), Handler("inline", fail, isolation="inline")]
    drain(ServiceHost(broker, handlers))


def do_nothing(message: Any) -> None: ...


def fail(message: Any) -> None:
    raise ValueError("no")


def test_what_a_host_in_the_same_process_measures(broker: Broker, served: Served) -> None:
    scrape(served)
    before = {(name, *labels.values()): value for name, labels, value in scrape(served)}
    work(broker)
    found = {(name, *labels.values()): value for name, labels, value in scrape(served)}

    def grown(name: str, *labels: str) -> float:
        key = (f"lazaretto_{name}", *labels)
        return found[key] - before.get(key, 0)

    assert grown("handler_duration_seconds_count", "completed", "sandboxed") == 2
    assert grown("handler_duration_seconds_count", "failed", "inline") == 1
    assert grown("message_wait_seconds_count", "sandboxed") == 2
    assert grown("message_wait_seconds_bucket", "+Inf", "sandboxed") == 2
    assert grown("message_age_at_completion_seconds_count", "sandboxed") == 2
    assert ("lazaretto_message_age_at_completion_seconds_count", "inline") not in found or not grown(
        "message_age_at_completion_seconds_count", "inline"
    )
    commits = grown("commit_duration_seconds_count")
    assert commits > 0
    assert grown("commit_operations_count") == commits
    assert grown("commit_operations_sum") >= commits
    assert 0 < grown("commit_duration_seconds_sum") < 60


def test_only_queues_that_one_sees_are_told_of(broker: Broker) -> None:
    ProcessMetrics()
    work(broker)
    told = process_exposition(lambda path: path != "inline").decode()
    assert 'queue="sandboxed"' in told and 'queue="inline"' not in told


def test_a_host_answers_by_itself(broker: Broker) -> None:
    server = listen("127.0.0.1", 0)
    try:
        work(broker)
        text = httpx.get(f"http://127.0.0.1:{server.server_port}/metrics").text
    finally:
        server.shutdown()
        server.server_close()
    names = {name for name, _, _ in samples_of(text)}
    assert {"lazaretto_handler_duration_seconds_bucket", "lazaretto_commit_operations_sum"} <= names


def test_whoever_may_see_nothing(served: Served) -> None:
    url = f"http://127.0.0.1:{served.port}/metrics"
    assert httpx.get(url).status_code == 401
    assert httpx.get(url, headers={"Authorization": "Bearer token-of-client"}).status_code == 403


# -- alert rules and the dashboard ---------------------------------------------------------------

_SELECTOR = re.compile(r"(lazaretto_\w+)(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'(\w+)(=~?)"([^"]*)"')
_RULE = re.compile(r"(lazaretto_\w+(?:\{[^}]*\})?) ([<>]) ([\d.e]+)")
_COMPARE = {"<": operator.lt, ">": operator.gt}


def selected(selector: str, samples: list[Sample]) -> Iterator[Sample]:
    """Yield what a selector of Prometheus matches."""
    found = _SELECTOR.fullmatch(selector)
    assert found is not None, selector
    matchers = _MATCHER.findall(found[2] or "")
    for sample in samples:
        if sample[0] == found[1] and all(
            re.fullmatch(wanted if how == "=~" else re.escape(wanted), sample[1].get(label, ""))
            for label, how, wanted in matchers
        ):
            yield sample


@pytest.mark.stores("sqlite")
def test_alerts(broker: Broker, served: Served) -> None:
    """Each is silent while all is well, and fires when what it is about happens."""

    def fire(samples: list[Sample]) -> set[str]:
        fired = set()
        for rule in RULES:
            found = _RULE.fullmatch(rule["expr"])
            assert found is not None, rule
            matched = list(selected(found[1], samples))
            if any(_COMPARE[found[2]](value, float(found[3])) for _, _, value in matched):
                fired.add(rule["alert"])
        return fired

    def strained(sample: Sample) -> Sample:
        # What no test can bring about on a machine that others need.
        name, labels, value = sample
        if name == "lazaretto_queue_oldest_message_age_seconds":
            value += 1_000
        if name == "lazaretto_server_memory_alarm":
            value = 1.0
        return name, labels, 1e9 if name == "lazaretto_disk_free_bytes" else value

    well = [sample for sample in scrape(served) if sample[0] != "lazaretto_disk_free_bytes"]
    assert fire(well) == set()
    trouble(broker)
    assert fire([strained(sample) for sample in scrape(served)]) == {rule["alert"] for rule in RULES}
    for rule in RULES:
        assert re.fullmatch(r"\d+[mh]", rule["for"])
        assert rule["annotations"]["summary"]


@pytest.mark.stores("sqlite")
def test_the_dashboard(broker: Broker, served: Served) -> None:
    """Every panel asks for something that there is."""
    trouble(broker)
    scrape(served)
    work(broker)
    samples = scrape(served)
    dashboard = json.loads((CONTRIB / "grafana/lazaretto.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(expressions) > 8
    for expression in expressions:
        for selector in _SELECTOR.finditer(expression.replace("$queue", ".*")):
            assert list(selected(selector[0], samples)), expression
        for label in re.findall(r"\{\{(\w+)\}\}", json.dumps(dashboard)):
            assert any(label in labels for _, labels, _ in samples)
    places = [tuple(panel["gridPos"].values()) for panel in dashboard["panels"]]
    assert len(places) == len(set(places))
