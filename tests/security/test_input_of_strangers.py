"""What strangers say is answered, escaped or refused: addresses, hosts, cells, keys, texts in pages."""

from __future__ import annotations

import logging
from pathlib import Path

import httpx
import pytest
from door.client import Manager, connected, opened, run
from web.conftest import Served

from lazaretto import Broker
from lazaretto import commands as c
from lazaretto.errors import InvalidPath
from lazaretto.model.records.messages import csv_cell
from lazaretto.servicebus import AccessPolicy, DoorLimits
from lazaretto.servicebus.amqp.events import LinkDetached
from lazaretto.servicebus.grants import Unauthorized, entity_of
from lazaretto.servicebus.server import check_page
from lazaretto.web.access import key_of
from lazaretto.web.origin import relative

MALFORMED = ("sb://[bad/q", "sb://[::1/q", "sb://[/q", "sb://host]/q")


def test_malformed_addresses_are_answered_and_not_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Before login: a link is detached with why, a token's audience is answered."""

    async def main() -> None:
        policies = [AccessPolicy("root", "k" * 32)]
        limits = DoorLimits(refusal_seconds=0.0)
        async with opened(tmp_path, policies=policies, limits=limits) as (_, door), connected(door) as client:
            for number, address in enumerate(MALFORMED):
                await client.link(sends=number % 2 == 0, address=address, name=f"l{number}")
                refused = await client.until(LinkDetached)
                assert refused.error is not None, address
            manager = Manager(client)
            await manager.open("$cbs")
            for audience in MALFORMED:
                signed = "SharedAccessSignature sr=x&sig=eA%3D%3D&se=1&skn=root"
                assert (await manager.put_token(audience, signed))[0] in (400, 401)

    with caplog.at_level(logging.WARNING):
        run(main)
    assert not [one for one in caplog.records if one.exc_info]


@pytest.mark.parametrize("address", [*MALFORMED, 7, b"q", ["q"]])
def test_what_is_no_address(address: object) -> None:
    with pytest.raises(InvalidPath):
        entity_of(address)


@pytest.mark.parametrize(
    "begins",
    ["=", "+", "-", "@", "\t=", "\r", "\n=", "\n", " =", "＝", "＋", "－", "＠", "\u200b=", "\ufeff=",
     "\x00=", "\x85=", "\u2212", " \n @"],
)  # fmt: skip
def test_no_cell_is_a_formula(begins: str) -> None:
    assert csv_cell(f"{begins}1+cmd()") == f"'{begins}1+cmd()"
    assert csv_cell(f"a{begins}1") == f"a{begins}1"
    assert csv_cell(-1) == -1


@pytest.mark.stores("sqlite")
@pytest.mark.parametrize("path", ["/queues/", "/login/", "/healthz/", "/readyz/"])
def test_redirects_stay_here(served: Served, path: str) -> None:
    """Whatever a request calls this host: a cache would keep where it leads."""
    for host in ("evil.example", "evil.example:80", f"127.0.0.1:{served.port}"):
        answer = httpx.get(f"http://127.0.0.1:{served.port}{path}", headers={"Host": host}, timeout=120)
        assert answer.status_code == 307
        assert answer.headers["location"] == path.rstrip("/")


def test_where_redirects_lead() -> None:
    assert relative(b"http://a.example//evil.example/x", b"a.example") == b"/evil.example/x"
    assert relative(b"https://id.example.com/authorize", b"a.example") == b"https://id.example.com/authorize"
    assert relative(b"/login", b"") == b"/login"


@pytest.mark.parametrize(
    ("host", "any_host", "names", "welcome"),
    [
        ("localhost:5672", False, (), True),
        ("127.0.0.1", False, (), True),
        ("10.0.0.5", False, (), False),
        ("emulator", False, (), False),
        ("evil.example", False, (), False),
        ("named.example", False, ("Named.Example",), True),
        ("emulator:5672", True, (), True),
        ("10.0.0.5:5672", True, (), True),
        ("[fd00::1]:5672", True, (), True),
        ("evil.example", True, (), False),
        ("localhost.evil.example", True, (), False),
        ("127.0.0.1.evil.example", True, (), False),
        ("evil.example.", True, (), False),
        ("named.example", True, ("named.example",), True),
    ],
)
def test_hosts_without_a_key(host: str, any_host: bool, names: tuple[str, ...], welcome: bool) -> None:
    """A site's name can be made to point here; a name without a dot, or an address, belongs to no site."""
    try:
        check_page({"host": host}, any_host=any_host, host_names=names)
    except Unauthorized as error:
        assert not welcome and "--host-name" in str(error)
    else:
        assert welcome


def test_a_door_that_others_reach_refuses_names_of_sites(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            opened(tmp_path, insecure=True, host_names=["queues.example"]) as (_, door),
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{door.port}") as client,
        ):
            for host, status in {"evil.example": 401, "queues.example": 200, "emulator": 200}.items():
                asked = await client.get("/$Resources/queues", headers={"Host": host})
                assert asked.status_code == status, (host, asked.text)

    run(main)


@pytest.mark.stores("sqlite")
def test_idempotency_keys_of_people_are_their_own(broker: Broker, served: Served) -> None:
    """Nobody gets another's answer, whatever colons are in names and keys."""
    assert key_of("a", "b:c") != key_of("a:b", "c")
    answers = []
    for person, key in (("a", "b:c"), ("a:b", "c")):
        broker.run(c.GrantRole(person=person, role="admin"))
        client = served.client(None)
        token = broker.run(c.CreateToken(person=person, label="t"))["secret"]
        client.headers.update({"Authorization": f"Bearer {token}", "Idempotency-Key": key})
        answers.append(client.post("/commands/create_queue", json={"path": f"of-{len(person)}"}))
    assert [one.status_code for one in answers] == [200, 200], [one.text for one in answers]
    assert {queue.path for queue in broker.queues()} >= {"of-1", "of-3"}


def test_texts_in_pages_end_no_script(tmp_path: Path) -> None:
    altair = pytest.importorskip("altair")
    from examples.flights.charts import save_page

    rows = [{"letters": 1, "cause": "</script><script>alert(1)</script><!--"}]
    chart = altair.Chart(altair.InlineData(rows)).mark_bar().encode(x="letters:Q", y="cause:N")
    save_page(chart, tmp_path / "causes.html")
    page = (tmp_path / "causes.html").read_text("utf-8")
    assert "<script>alert" not in page
    assert "\\u003c/script>" in page
