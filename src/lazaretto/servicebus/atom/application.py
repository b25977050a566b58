"""The ASGI application of administration: checks who asks, hands requests on, and tells errors."""

from __future__ import annotations

import logging
import time
import urllib.parse
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Final

from lazaretto.model.actors import Actor
from lazaretto.servicebus.atom import administration, feeds
from lazaretto.servicebus.atom.feeds import Refusal, refusal_of, resource_of
from lazaretto.servicebus.exchange import body_of, send_answer
from lazaretto.servicebus.grants import Grant, Grants, Right, Unauthorized
from lazaretto.servicebus.server import Door
from lazaretto.serving.http import seat_of

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_log = logging.getLogger("lazaretto.door")
_LARGEST: Final = 1 << 20
#: Characters of a path that are logged.
_LONGEST_PATH: Final = 300
_MOST_PARAMETERS: Final = 100
_XML: Final = b"application/atom+xml;type=entry;charset=utf-8"
#: Elements that name another entity, and the headers with tokens for it.
_FORWARDS: Final = {
    "ForwardTo": "servicebussupplementaryauthorization",
    "ForwardDeadLetteredMessagesTo": "servicebusdlqsupplementaryauthorization",
}
_HEALTHY: Final = b'{"status":"healthy"}'


class Administration:
    """Answers clients of Service Bus that create, change, list and delete entities."""

    def __init__(self, door: Door) -> None:
        self._door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, as ASGI has it."""
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if scope["method"] in ("GET", "HEAD") and scope["path"] == "/health":
            await send_answer(send, 200, _HEALTHY, b"application/json")
            return
        grants = Grants(self._door.keys, self._door.guard, seat_of(scope))
        try:
            answer = await self._answer(scope, headers, receive, grants)
            status, body = answer.status, answer.body
        except Exception as error:
            refusal = refusal_of(error, grants.sees)
            status, body = refusal.status, feeds.error(refusal)
            if scope["method"] not in ("GET", "HEAD"):
                # A framework may try again for ever, and tell nobody.
                _log.info(
                    "%s %r is refused with %d: %s",
                    scope["method"], scope["path"][:_LONGEST_PATH], status, refusal.detail,
                )  # fmt: skip
            if status == 500:
                _log.error("a client's request failed: %s", type(error).__name__, exc_info=error)
        await send_answer(send, status, body.encode(), _XML)

    async def _answer(
        self, scope: Scope, headers: Mapping[str, str], receive: Receive, grants: Grants
    ) -> administration.Answer:
        # What is left of a body would be taken for the next request.
        body = await body_of(receive, _LARGEST)
        self._door.check_page(headers)
        resource = resource_of(scope["path"])
        # Clients sign for all of it: a list, or a rule of a subscription.
        actor, grant = await admit(
            grants, scope["path"].strip("/"), Right.MANAGE, headers.get("authorization", "")
        )
        tag = headers.get("if-match")
        if tag not in (None, "*"):
            raise Refusal(412, "expected If-Match to be *, got a version")
        base = f"{scope['scheme']}://{headers.get('host', 'localhost')}"
        query = scope["query_string"].decode("latin-1")
        path = scope.get("raw_path", scope["path"].encode()).decode("latin-1")
        request = administration.Request(
            scope["method"],
            resource,
            _parameters(query),
            body,
            f"{base}{path}{f'?{query}' if query else ''}",
            base,
            tag == "*",
            actor,
            self._door.tier,
        )
        if grant is not None:
            await _check_destinations(request, grants, headers)
        return await administration.answer(self._door.broker, self._door.keys.rules, request)


def _parameters(query: str) -> dict[str, str]:
    try:
        return dict(urllib.parse.parse_qsl(query, max_num_fields=_MOST_PARAMETERS))
    except ValueError:
        raise Refusal(400, f"expected at most {_MOST_PARAMETERS} parameters, got more") from None


async def admit(grants: Grants, path: str, right: Right, token: str) -> tuple[Actor, Grant | None]:
    """Return who asks, and what the token gives; None: everything. Raises Unauthorized."""
    grant = await grants.take_token(token, path)
    if grant is not None and not grant.allows(path, right, time.time()):
        raise Unauthorized(f"expected a key with the right {right.value}, got one without it")
    return grants.actor(path, right), grant


async def _check_destinations(
    request: administration.Request, grants: Grants, headers: Mapping[str, str]
) -> None:
    """Raise Unauthorized if an entity would forward to where its administrator may not send.

    The token for the entity may be one for the destination, too; else another header has one.
    """
    if request.method != "PUT":
        return
    for element, header in _FORWARDS.items():
        to = administration.destination_of(request.body, element)
        if to is None:
            continue
        token = headers.get(header) or headers.get("authorization", "")
        await grants.take_token(token, to)
        grants.require(to, Right.SEND)
