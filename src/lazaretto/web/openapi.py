"""The description of the API for programs: OpenAPI 3.1, made from the table of routes."""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import re
import types
import typing
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
from starlette.responses import Response

from lazaretto.model.messages import SENT_COLUMNS, PeekedMessage, ReceivedMessage
from lazaretto.model.records.plain import MESSAGE_FIELDS
from lazaretto.web.routes import ROUTES, Route

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

Schema = dict[str, Any]

_PLAIN: Final[Mapping[Any, Schema]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    datetime: {"type": "string", "format": "date-time"},
    timedelta: {"type": "number", "description": "Seconds."},
    bytes: {
        "type": "object", "properties": {"base64": {"type": "string"}}, "required": ["base64"],
    },
    uuid.UUID: {"type": "string", "format": "uuid"},
    msgspec.Raw: {"description": "Any JSON."},
    Any: {},
}  # fmt: skip
_TEXTS = ("message_id", "enqueued_time")
#: What messages of a kind have beside what all have.
_BESIDE: Final[Mapping[Any, Sequence[str]]] = {
    PeekedMessage: ("state", "error", *SENT_COLUMNS),
    ReceivedMessage: ("lock_token",),
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


class Schemas:
    """Makes the schemas of types, and keeps those that have a name as `components`."""

    def __init__(self) -> None:
        self.components: dict[str, Schema] = {}

    def of(self, kind: Any) -> Schema:
        """Return the schema of a type."""
        schema = _PLAIN.get(kind) if isinstance(kind, typing.Hashable) else None
        if schema is not None:
            return schema
        if kind in _BESIDE:
            return self._named(kind.__name__, functools.partial(self._of_message, kind))
        origin, inner = typing.get_origin(kind), typing.get_args(kind)
        if origin is typing.Annotated:
            return self._constrained(inner)
        if origin is typing.Literal:
            return {"enum": list(inner)}
        if origin in (typing.Union, types.UnionType):
            return self._of_union(inner)
        if origin in (list, tuple, set, frozenset, Sequence) or kind in (list, tuple):
            return {"type": "array", "items": self.of(inner[0])} if inner else {"type": "array"}
        if origin in (dict, Mapping) or kind is dict:
            return {"type": "object"}
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            return {"enum": [member.value for member in kind]}
        if isinstance(kind, type) and hasattr(kind, "_fields"):
            return self._named(kind.__name__, lambda: self._of_fields(kind))
        if isinstance(kind, type) and (dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct)):
            return self._named(kind.__name__, lambda: self._of_fields(kind))
        raise TypeError(f"no schema for {kind!r}")

    def _named(self, name: str, make: Any) -> Schema:
        if name not in self.components:
            self.components[name] = {}
            self.components[name] = make()
        return {"$ref": f"#/components/schemas/{name}"}

    def _of_union(self, inner: tuple[Any, ...]) -> Schema:
        schemas: list[Schema] = []
        for one in inner:
            if one is msgspec.UnsetType:
                # What may be left out is no value.
                continue
            schema = self.of(one)
            if schema not in schemas:
                schemas.append(schema)
        return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}

    def _constrained(self, inner: tuple[Any, ...]) -> Schema:
        schema = dict(self.of(inner[0]))
        names = {"ge": "minimum", "le": "maximum", "min_length": "minItems", "max_length": "maxItems"}
        for extra in inner[1:]:
            for name, said in names.items():
                value = getattr(extra, name, None)
                if value is not None:
                    schema[said] = value
        return schema

    def _of_fields(self, kind: Any) -> Schema:
        hints = typing.get_type_hints(kind, include_extras=True)
        text = (kind.__doc__ or "").strip().partition("\n")[0]
        struct = issubclass(kind, msgspec.Struct)
        if struct:
            names = kind.__struct_fields__
        else:
            names = getattr(kind, "_fields", None) or [field.name for field in dataclasses.fields(kind)]
        schema: Schema = {
            "type": "object",
            "properties": {name: self.of(hints[name]) for name in names if not name.startswith("_")},
        }
        if text and not text.startswith(kind.__name__):
            schema["description"] = text
        if struct:
            needed = [f.name for f in msgspec.structs.fields(kind) if f.required]
            if needed:
                schema["required"] = needed
        return schema

    def _of_message(self, kind: type[Any]) -> Schema:
        names = (*MESSAGE_FIELDS, "locked_until", *_BESIDE[kind])
        properties = {name: self.of(_hint_of(kind, name)) for name in names}
        properties["body"] = {"type": "string", "description": "The body, if it is UTF-8."}
        properties["body_base64"] = {"type": "string", "description": "The body, if it is not."}
        return {"type": "object", "properties": properties, "required": ["sequence_number", *_TEXTS]}


def _hint_of(kind: type[Any], name: str) -> Any:
    """Return the type of a field or a property of a class."""
    member = inspect.getattr_static(kind, name)
    if isinstance(member, property):
        return typing.get_type_hints(member.fget)["return"]
    return typing.get_type_hints(kind)[name]
