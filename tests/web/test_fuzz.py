"""Every operation of the API under generated requests, right and wrong: what it answers is what it describes.

The requests are the same in each run. `LAZARETTO_SOAK=1` makes a thousand of each operation.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import checks
from schemathesis.specs.openapi import checks as described

import lazaretto
from lazaretto import Message, PoisonPolicy, QueueOptions
from lazaretto import commands as c

from . import openapi_file
from .conftest import serving

schema = schemathesis.openapi.from_dict(openapi_file.described())
CHECKS = (
    checks.not_a_server_error,
    described.status_code_conformance,
    described.content_type_conformance,
    described.response_schema_conformance,
    described.negative_data_rejection,
)
#: What requests name in every other case, in place of a text that nothing is called.
KNOWN = {"queue": "q", "path": "q", "topic": "t", "subscription": "s", "session": "s", "name": "mend"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    url = f"sqlite:///{tmp_path_factory.mktemp('fuzz') / 'store.db'}"
    with lazaretto.connect(url) as broker:
        broker.create_queue("q", QueueOptions(policy=PoisonPolicy(receive_retry_count=0)))
        broker.create_topic("t")
        broker.create_subscription("t", "s")
        broker.sender("q").send([Message(b"%d" % n, properties={"n": n}) for n in range(9)])
        with broker.receiver("q") as receiver:
            receiver.dead_letter(receiver.receive(5), reason="R", error="E: e")
        broker.plan_repair("q", [1, 2], name="mend")
        broker.run(c.GrantRole(person="ana", role="viewer"))
    with serving(url) as served:
        yield f"http://127.0.0.1:{served.port}"


@schema.exclude(path_regex="/stream$").parametrize()
@settings(
    max_examples=1000 if os.environ.get("LAZARETTO_SOAK") else 2, derandomize=True, database=None,
    deadline=None, suppress_health_check=list(HealthCheck),
)  # fmt: skip
def test_operation(case: Any, server: str) -> None:
    headers = {"Authorization": "Bearer token-of-admin"}
    for given in (case.query or {}, case.path_parameters or {}):
        for name in given.keys() & KNOWN.keys():
            if isinstance(given[name], str) and len(given[name]) % 2:
                given[name] = KNOWN[name]
    if "wait" in (case.query or {}) and isinstance(case.query["wait"], int | float):
        case.query["wait"] = min(case.query["wait"], 0.01)
    response = case.call(base_url=server, headers=headers, timeout=120)
    case.validate_response(response, checks=CHECKS)
