"""The page where a browser logs in: by a link that is used once, or by a token."""

from __future__ import annotations

import urllib.parse
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as Place

from lazaretto.errors import LazarettoError
from lazaretto.web.access_door import AccessDoor
from lazaretto.web.console.render import PAGE_HEADERS, render
from lazaretto.web.origin import check_host, check_origin
from lazaretto.web.problems import problem_of
from lazaretto.web.routes import content_of

#: Bytes of a form with a token.
_MOST: Final = 4096
_FIRST: Final = "Paste a token that you were given."
_WRONG: Final = "This link or token is not known any more. A link works once, and for a minute."


def login_places(door: AccessDoor) -> list[Place]:
    """Return the routes `/login` and `/logout`."""

    async def show(request: Request) -> Response:
        code = request.query_params.get("code")
        if code is None:
            check_host(request.headers.get("host"), door.host_names)
            return _page(request, _FIRST, 200)
        return await opened(request, code)

    async def take(request: Request) -> Response:
        check_origin(request.method, request.headers, from_browser=True)
        fields = urllib.parse.parse_qs((await content_of(request, _MOST)).decode("utf-8", "replace"))
        return await opened(request, fields.get("token", [""])[0].strip())

    async def opened(request: Request, secret: str) -> Response:
        check_host(request.headers.get("host"), door.host_names)
        return await door.open_session(request, secret) or _page(request, _WRONG, 401)

    async def login(request: Request) -> Response:
        try:
            return _secured(await (take if request.method == "POST" else show)(request))
        except LazarettoError as error:
            return _secured(problem_of(error))

    async def logout(request: Request) -> Response:
        try:
            form = urllib.parse.parse_qs((await content_of(request, _MOST)).decode("utf-8", "replace"))
            await door.admit(request, csrf=form.get("csrf", [None])[0])
            return _secured(await door.close_session(request))
        except LazarettoError as error:
            return _secured(problem_of(error))

    return [Place("/login", login, methods=["GET", "POST"]), Place("/logout", logout, methods=["POST"])]


def _page(request: Request, why: str, status: int) -> Response:
    base = request.scope.get("root_path", "").rstrip("/")
    content = render(
        "login.html", base, visit=None, here="", title="Log in", done=None, why=why, wrong=status != 200
    )
    return Response(content, status, media_type="text/html")


def _secured(response: Response) -> Response:
    # The address of a link has its code.
    response.headers.update({**PAGE_HEADERS, "Referrer-Policy": "no-referrer"})
    return response
