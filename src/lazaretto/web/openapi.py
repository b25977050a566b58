"""The description of the API for programs: OpenAPI 3.1, made from the table of routes."""

from __future__ import annotations

import functools
import re
import typing
from typing import Any

import msgspec
from starlette.responses import Response

from lazaretto.web.routes import ROUTES, Route
from lazaretto.web.schemas import Schema, Schemas

_IN_PATH = re.compile(r"\{(\w+)(?::path)?\}")

_PROBLEM: Schema = {
    "type": "object",
    "description": "An error, as RFC 9457 spells it. `code` is stable; `detail` says what to do.",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string"},
        "retriable": {"type": "boolean", "description": "Whether the same request may succeed later."},
    },
    "required": ["type", "title", "status", "detail", "code", "retriable"],
}


@functools.cache
def document(prefix: str) -> dict[str, Any]:
    """Return the description of all routes."""
    schemas = Schemas()
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        path = prefix + _IN_PATH.sub(r"{\1}", route.path)
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, schemas)
    schemas.components["Problem"] = _PROBLEM
    return {
        "openapi": "3.1.0",
        "info": {"title": "Lazaretto", "version": "1"},
        "paths": paths,
        "components": {
            "schemas": dict(sorted(schemas.components.items())),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def _operation(route: Route, schemas: Schemas) -> dict[str, Any]:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": schemas.of(kind)}
        for name, kind in route.path_types.items()
    ]
    if route.query is not None:
        of_query = typing.get_type_hints(route.query, include_extras=True)
        for field in msgspec.structs.fields(route.query):
            schema = schemas.of(of_query[field.name])
            parameters.append(
                {"name": field.name, "in": "query", "required": field.required, "schema": schema}
            )
    said: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "description": f"Needs the permission `{route.permission.value}`.",
        "responses": {
            str(route.success): _answer(route, schemas),
            "default": {
                "description": "An error.",
                "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
            },
        },
    }
    if route.success == 201 and Response in typing.get_args(route.answer):
        said["responses"]["200"] = {**_answer(route, schemas), "description": "It was there already."}
    if route.asks_itself:
        said["responses"]["204"] = {"description": "Done; there is nothing to tell."}
    if route.asks_itself or route.method in ("PATCH", "DELETE"):
        seen = {"name": "If-Match", "in": "header", "required": False, "schema": {"type": "string"}}
        parameters.append(seen)
    if route.asks_itself:
        key = {"name": "Idempotency-Key", "in": "header", "required": False, "schema": {"type": "string"}}
        parameters.append(key)
    if parameters:
        said["parameters"] = parameters
    if route.body is not None:
        content = {"application/json": {"schema": schemas.of(route.body)}}
        said["requestBody"] = {"required": True, "content": content}
    return said


def _answer(route: Route, schemas: Schemas) -> dict[str, Any]:
    if route.answer in (None, type(None)):
        return {"description": "Done."}
    parts = [one for one in typing.get_args(route.answer) if one is not Response]
    kind = parts[0] if Response in typing.get_args(route.answer) else route.answer
    if kind is Response:
        return {"description": "A stream.", "content": {name: {} for name in route.media_types}}
    content = {name: {"schema": schemas.of(kind)} for name in route.media_types}
    return {"description": "The answer.", "content": content}
