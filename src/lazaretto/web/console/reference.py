"""The API's reference: its routes, and what each code of an error means."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from http import HTTPStatus

from lazaretto.errors import LazarettoError
from lazaretto.web.console.visit import Page, Visit
from lazaretto.web.problems import STATUSES
from lazaretto.web.refusals import HttpError
from lazaretto.web.routes import ROUTES


async def routes(visit: Visit) -> Page:
    """Show the routes of the API."""
    return Page("api.html", "", "HTTP API", {"routes": ROUTES})


async def problem(visit: Visit) -> Page:
    """Show what an error's code means: where `type` of a problem leads."""
    code = visit.request.path_params["code"]
    kinds = [kind for kind in _errors(LazarettoError) if kind.code == code and kind is not HttpError]
    status = STATUSES.get(code, 500)
    if not kinds and code not in STATUSES:
        raise HttpError("route_not_found", "expected the code of an error")
    rows = [(kind.__name__, inspect.getdoc(kind) or "", kind.retriable) for kind in kinds]
    values = {"code": code, "status": HTTPStatus(status), "told": rows}
    return Page("problem.html", "", code, values)


def _errors(kind: type[LazarettoError]) -> Iterator[type[LazarettoError]]:
    yield kind
    for narrower in kind.__subclasses__():
        yield from _errors(narrower)
