"""A server where everybody may look, and nobody changes anything."""

from __future__ import annotations

import httpx
import pytest

from lazaretto import Broker, Message, QueueStatus
from lazaretto import commands as c
from lazaretto.commands import COMMANDS
from lazaretto.web.access import READING, Grant, Identity, Role
from lazaretto.web.refusals import ServerReadOnly
from lazaretto.web.routes import ROUTES

from .conftest import Served

pytestmark = pytest.mark.parametrize("served", [{"read_only": True}], indirect=True)

#: Routes that change nothing although they are no GET.
_ASKS = {"/rules/test"}


def test_every_route_that_changes_something_is_refused(broker: Broker, served: Served) -> None:
    api, before = served.client("admin"), broker.audit()
    changing = [one for one in ROUTES if one.method != "GET" and one.path not in _ASKS]
    assert len(changing) > 15
    for one in changing:
        path = one.path.replace("{path:path}", "q").replace("{name:path}", "q")
        known = one.query.__struct_fields__ if one.query else ()
        params: dict[str, str] = {name: "q" for name in ("queue", "topic", "subscription") if name in known}
        answer = api.request(one.method, path, params=params, json={})
        assert (answer.status_code, answer.json()["code"]) == (403, "server_read_only"), (one, answer.text)
    assert broker.audit() == before
    assert [queue.path for queue in broker.queues() if not queue.path.startswith("$")] == ["q"]


def test_every_route_that_shows_something_answers(broker: Broker, served: Served) -> None:
    broker.sender("q").send(Message(b"hello"))
    broker.run(c.GrantRole(person="ana", role="viewer"))
    api = served.client("admin")
    for path in ("/queues", "/queues/q", "/messages?queue=q", "/overview", "/audit", "/access/people"):
        assert api.get(path).status_code == 200, path
    assert api.get("/messages?queue=q").json()[0]["body"] == "hello"


def test_no_command_is_allowed(served: Served) -> None:
    """Each needs something that is more than looking."""
    somebody = Identity("ana", (Grant(Role.ADMIN),), read_only=True)
    assert all(somebody.may(permission, None) for permission in READING)
    for kind in COMMANDS.values():
        fields = dict.fromkeys(kind.__struct_fields__, "q")
        needed = {permission for permission, _ in kind(**fields).needs()}
        assert needed - READING, kind
        with pytest.raises(ServerReadOnly):
            for permission in needed:
                somebody.require(permission, None)


def test_nobody_gains_by_it(served: Served) -> None:
    """What was not granted before is not granted by looking."""
    assert served.client("client").get("/overview").status_code == 403
    assert served.client(None).get("/overview").status_code == 401


def test_the_console_says_so(broker: Broker, served: Served) -> None:
    headers = {"Authorization": "Bearer token-of-admin", "Sec-Fetch-Site": "same-origin"}
    broker.run(c.GrantRole(person="ana", role="viewer"))
    with httpx.Client(base_url=f"http://127.0.0.1:{served.port}", headers=headers) as browser:
        assert ">read-only<" in browser.get("/").text
        answer = browser.post("/do/set_status", data={"path": "q", "status": "disabled"})
        assert answer.status_code == 403
        assert "only shows" in answer.text
        # Who may do what is shown, and nothing can be changed.
        main = browser.get("/access").text.partition("<main")[2]
        assert ">ana<" in main and main.count("<button") == main.count(" disabled ") > 0
    assert broker.queue("q").status is QueueStatus.ACTIVE
