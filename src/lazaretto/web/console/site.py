"""The console's pages and actions as routes: who may see them, what browsers may do with them, and errors."""

from __future__ import annotations

import functools
import logging
import urllib.parse
from collections.abc import Awaitable, Callable
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route as Place

from lazaretto.aio import AsyncBroker
from lazaretto.aio.visits import Visits
from lazaretto.commands import COMMANDS
from lazaretto.errors import LazarettoError
from lazaretto.model.checks import without_unseen
from lazaretto.web.access import NOBODY
from lazaretto.web.access_door import AccessDoor
from lazaretto.web.answers import STATUSES, not_modified
from lazaretto.web.bounded import content_of
from lazaretto.web.console import failures, forms, letters, overview, queues, search
from lazaretto.web.console.forms import act
from lazaretto.web.console.render import ASSETS, PAGE_HEADERS, asset, base_of, render
from lazaretto.web.console.visit import Page, Visit
from lazaretto.web.origin import is_own_page
from lazaretto.web.refusals import HttpError, NotAuthenticated, StaleForm, told_code
from lazaretto.web.routes import Call, bounded, deadline_of
from lazaretto.web.viewed import seen_by

_log = logging.getLogger("lazaretto.web")

Screen = Callable[[Visit], Awaitable[Page]]

#: Bytes of a form.
_MOST: Final = 512 * 1024
_FOREVER: Final = "public, max-age=31536000, immutable"
#: Every page by its path.
SCREENS: Final[dict[str, Screen]] = {
    "/": overview.show_overview,
    "/failures": failures.list_causes,
    "/failures/{number:int}": failures.show_cause,
    "/dead-letters/{number:int}": letters.show,
    "/dead-letters/{number:int}/edit": letters.edit,
    "/repairs": failures.list_repairs,
    "/repairs/{name}": failures.show_repair,
    "/queues": queues.list_queues,
    "/queue": queues.show_queue,
    "/do/{command}": forms.show,
    "/messages/{number:int}": letters.show_message,
    "/rules": queues.show_rules,
    "/sessions": queues.show_sessions,
    "/set-aside": failures.show_set_aside,
    "/pipeline": overview.show_pipeline,
    "/claims": overview.list_claims,
    "/dialogs": queues.list_conversations,
    "/dialogs/{dialog}": queues.show_dialog,
    "/access": overview.show_access,
    "/activity": overview.show_activity,
    "/topics": overview.list_topics,
    "/workers": overview.list_workers,
    "/search": search.show_search,
    "/keys": overview.list_keys,
    "/docs": overview.show_routes,
    "/problems/{code}": overview.show_problem,
}

#: Those that may look through much: then few are shown at the same time.
_SEARCHING: Final = frozenset({
    failures.list_causes, failures.show_cause, letters.show, failures.show_repair, search.show_search,
})  # fmt: skip


def console_places(broker: AsyncBroker, door: AccessDoor, call_of: Callable[[Request], Call]) -> list[Place]:
    """Return the routes of the console. `call_of`: the call that a request makes."""
    visits = Visits(broker)

    def page(screen: Screen) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            return await _answered(call_of(request), screen, door, visits)

        return answer

    return [
        *(Place(path, page(screen), methods=["GET"]) for path, screen in SCREENS.items()),
        Place("/do/{command}", page(act), methods=["POST"]),
        Place("/try", page(letters.try_letter), methods=["POST"]),
        Place("/edit", page(letters.edit_body), methods=["POST"]),
        Place("/static/{name}", _static, methods=["GET"]),
    ]


async def _answered(call: Call, screen: Screen, door: AccessDoor, visits: Visits) -> Response:
    request = call.request
    base = base_of(request)
    visit: Visit | None = None
    form: dict[str, list[str]] = {}
    try:
        if request.method == "POST":
            form = _form_of(await content_of(request, _MOST))
        sent = form.get("csrf")
        csrf = sent[0] if sent else None
        who = call.identity = await door.admit(request, csrf=csrf)
        call.admit = functools.partial(door.admit, request, csrf=csrf, again=True)
        visit = Visit(seen_by(call.broker, who), visits, who, request, form, base)
        if request.method == "GET":
            # Before the page is read: it may be newer than its tag, never older.
            visit.tag = await door.tag(request, who)
        response = not_modified(visit.tag, request)
        if response is None:
            shows = functools.partial(_shown, visit, screen)
            response = await bounded(call, shows, searches=screen in _SEARCHING or _searches(request))
    except (NotAuthenticated, StaleForm) as error:
        own = form and is_own_page(request.headers)
        response = _again(error, request, form) if own else RedirectResponse(f"{base}/login", 303)
    except LazarettoError as error:
        response = _refused(error, visit, request)
    response.headers.update(PAGE_HEADERS)
    return response


def _searches(request: Request) -> bool:
    """Return whether a form runs a command that looks through much."""
    kind = COMMANDS.get(request.path_params.get("command", ""))
    return kind is not None and kind.searches


def _form_of(content: bytes) -> dict[str, list[str]]:
    try:
        return urllib.parse.parse_qs(
            content.decode("utf-8"), keep_blank_values=True, strict_parsing=bool(content), max_num_fields=1000
        )
    except ValueError:
        raise HttpError("bad_request", "expected the fields of a form") from None


async def _shown(visit: Visit, screen: Screen) -> Response:
    with deadline_of(visit.request):
        page = await screen(visit)
        results = None if page.moved is not None else await visit.done()
    if page.moved is not None:
        return RedirectResponse(page.moved, 303)
    content = render(
        page.template,
        visit.request,
        visit=visit,
        here=page.here,
        title=page.title,
        done=results,
        **page.values,
    )
    return Response(content, headers={} if visit.tag is None else {"ETag": visit.tag}, media_type="text/html")


def page_of(error: LazarettoError, request: Request) -> Response:
    """Return the page that tells of an error outside the console's own pages."""
    response = _refused(error, None, request)
    response.headers.update(PAGE_HEADERS)
    return response


def _refused(error: LazarettoError, visit: Visit | None, request: Request) -> Response:
    code = told_code(error)
    error = without_unseen(error, (NOBODY if visit is None else visit.who).sees)
    content = render(
        "refused.html", request, visit=visit, here="", title="That did not work", done=None,
        code=code, detail=str(error), retriable=error.retriable,
    )  # fmt: skip
    return Response(content, STATUSES.get(code, 500), media_type="text/html")


def _again(error: NotAuthenticated | StaleForm, request: Request, form: dict[str, list[str]]) -> Response:
    """Return a page that keeps what was typed, to be sent again: the session has ended meanwhile."""
    csrf = error.csrf if isinstance(error, StaleForm) else ""
    fields = [(name, value) for name, values in form.items() for value in values if name != "csrf"]
    content = render(
        "again.html", request, visit=None, here="", title="Send again", done=None, fields=fields, csrf=csrf,
        command=request.url.path.rpartition("/")[2], action=request.url.path,
    )  # fmt: skip
    return Response(content, 403 if csrf else 401, media_type="text/html")


async def _static(request: Request) -> Response:
    for name, kind in ASSETS.items():
        shown, content = asset(name)
        if request.path_params["name"] == shown:
            headers = {**PAGE_HEADERS, "Cache-Control": _FOREVER, "Content-Type": kind}
            return Response(content, headers=headers)
    return Response(status_code=404, headers=PAGE_HEADERS)
