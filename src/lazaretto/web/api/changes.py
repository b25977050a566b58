"""Changes as commands: each runs at most once under an `Idempotency-Key`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from lazaretto.commands import COMMANDS, Command
from lazaretto.web.allowed import key_of, require_for
from lazaretto.web.routes import Call, route

Handler = Callable[[Call, Command], Awaitable[Any]]


def _runs(name: str, kind: type[Command]) -> Handler:
    async def run(call: Call, body: Command) -> Any:
        require_for(body, call.require)
        key = call.request.headers.get("idempotency-key")
        mine = None if key is None else key_of(call.identity.name, key)
        return await call.broker.run(body, actor=call.actor, idempotency_key=mine, version=call.seen_version)

    run.__name__, run.__doc__ = f"run_{name}", kind.__doc__
    run.__annotations__ = {"call": Call, "body": kind, "return": Any}
    return run


for _name, _kind in COMMANDS.items():
    add = route("POST", f"/commands/{_name}", _kind.permission, asks_itself=True, searches=_kind.searches)
    add(_runs(_name, _kind))
