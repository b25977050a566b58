"""Requests whose path names a route exactly: they need neither a search nor layers around them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

Answer = Callable[[Request], Awaitable[Response]]


class IndexedHeaders(Headers):
    """Headers that are asked for several times each: the first of a name is found at once."""

    def __init__(self, scope: Scope) -> None:
        super().__init__(scope=scope)
        self._first: dict[str, str] = {}
        for name, value in reversed(self._list):
            self._first[name.decode("latin-1")] = value.decode("latin-1")

    def get(self, key: str, default: Any = None) -> Any:
        return self._first.get(key.lower(), default)


class DirectRequest(Request):
    """A request whose headers are indexed."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        super().__init__(scope, receive, send)
        self._indexed = IndexedHeaders(scope)

    @property
    def headers(self) -> Headers:
        return self._indexed


class DirectApp(Starlette):
    """An application that answers some paths without a search for their route.

    `direct`: by method and path. `told_of`: what answers if that raises something. `common`: headers that
    every answer has, unless it says something of its own.
    """

    direct: Mapping[tuple[str, str], Answer]
    told_of: Callable[[Request, Exception], Awaitable[Response]]
    common: tuple[tuple[bytes, bytes], ...]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path, root = scope["path"], scope.get("root_path", "")
            answer = self.direct.get((scope["method"], path[len(root) :] if path.startswith(root) else ""))
            if answer is not None:
                scope["app"] = self
                await self._answer(answer, DirectRequest(scope, receive, send), send)
                return
        await super().__call__(scope, receive, send)

    async def _answer(self, answer: Answer, request: Request, send: Send) -> None:
        try:
            response = await answer(request)
        except Exception as error:
            response = await self.told_of(request, error)
        names = {name for name, _ in response.raw_headers}
        response.raw_headers += [one for one in self.common if one[0] not in names]
        await response(request.scope, request.receive, send)
