"""What clients say about themselves in headers is believed only where somebody named who says it."""

from __future__ import annotations

import pytest
from web.conftest import Served

from lazaretto import Broker
from lazaretto.commands import GrantRole
from lazaretto.web import Proxies

USER, GROUPS = "X-Forwarded-User", "X-Forwarded-Groups"
HERE = "127.0.0.1"
OTHERS = Proxies([HERE], "Remote-User", "Remote-Groups")
ELSEWHERE = Proxies(["10.0.0.0/8"], USER, GROUPS)

pytestmark = pytest.mark.stores("sqlite")


@pytest.mark.parametrize(
    ("served", "sent", "status"),
    [
        ({}, {USER: "root"}, 401),
        ({"proxies": Proxies([HERE])}, {USER: "root", GROUPS: "admins"}, 401),
        ({"proxies": ELSEWHERE}, {USER: "root", "X-Forwarded-For": "10.0.0.1"}, 401),
        ({"proxies": Proxies([HERE], USER)}, {USER: "root"}, 200),
        ({"proxies": Proxies([HERE], USER)}, {USER: "ana", GROUPS: "admins"}, 403),
        ({"proxies": Proxies([HERE], USER)}, {USER: "ana", "Remote-Groups": "admins"}, 403),
        ({"proxies": OTHERS}, {USER: "root"}, 401),
        ({"proxies": OTHERS}, {"Remote-User": "a", GROUPS: "admins"}, 403),
        ({"proxies": Proxies([HERE], USER, GROUPS)}, {USER: "ana", GROUPS: "staff, admins"}, 200),
    ],
    indirect=["served"],
)  # fmt: skip
def test_only_headers_that_were_named_are_believed(
    broker: Broker, served: Served, sent: dict[str, str], status: int
) -> None:
    for name in ("group:admins", "root"):
        broker.run(GrantRole(person=name, role="admin"))
    assert served.client(None).get("/queues", headers=sent).status_code == status


@pytest.mark.parametrize("served", [{"proxies": Proxies([HERE], USER, GROUPS)}], indirect=True)
@pytest.mark.parametrize("name", [USER, GROUPS])
def test_a_header_that_comes_twice_is_refused(broker: Broker, served: Served, name: str) -> None:
    broker.run(GrantRole(person="ana", role="admin"))
    sent = [(USER, "ana"), (GROUPS, "staff"), (name, "admins")]
    assert served.client(None).get("/queues", headers=sent).status_code == 401
