"""What a server's pages show besides the store."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from lazaretto import Broker, InvalidOption, Message, aio
from lazaretto.web import Access, Grant, Identity, PageOptions, Role, web_app

TRACE = "0af7651916cd43dd8448eb211c80319c"
PAGES = PageOptions("prod", "red", "https://traces.example.com/trace/{trace_id}")

pytestmark = pytest.mark.stores("sqlite")


@pytest.mark.parametrize(
    "given",
    [
        {"name": "x" * 31}, {"name": "a\nb"}, {"name": "\u202eprod"}, {"colour": "crimson"},
        {"trace_url": "javascript:alert('{trace_id}')"}, {"trace_url": "https://traces.example.com"},
    ],
)  # fmt: skip
def test_what_is_refused(given: dict[str, str]) -> None:
    with pytest.raises(InvalidOption):
        PageOptions(**given)


@pytest.mark.parametrize(
    ("traceparent", "linked"),
    [(f"00-{TRACE}-b7ad6b7169203331-01", True), ("00-/../evil-b7ad6b7169203331-01", False), (None, False)],
)
def test_a_message_and_its_trace(broker: Broker, url: str, traceparent: str | None, linked: bool) -> None:
    properties = {} if traceparent is None else {"traceparent": traceparent}
    number = broker.sender("q").send(Message(b"x", properties=properties))

    async def page() -> str:
        anybody = Identity("ana", (Grant(Role.ADMIN),))
        async with await aio.connect(url) as one:
            app = web_app(one, Access(anonymous=anybody), pages=PAGES)
            transport = httpx.ASGITransport(app=app)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                return (await client.get(f"/messages/{number}?queue=q")).text

    shown = asyncio.run(page())
    assert (f'href="https://traces.example.com/trace/{TRACE}"' in shown) is linked
    assert ("traces.example.com" in shown) is linked
    assert "· prod · Lazaretto</title>" in shown
