"""An identity provider for tests: OpenID Connect on this machine, which can be told to lie."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import hashlib
import hmac
import secrets
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import uvicorn
from joserfc import jwt
from joserfc.jwk import RSAKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

CLIENT, SECRET = "lazaretto", "the-secret-of-lazaretto"


@dataclasses.dataclass
class IdentityProvider:
    """Lets everybody in, as `claims` say. `change`: makes other claims of them. `asks`: by a page."""

    issuer: str = ""
    asks: bool = False
    claims: dict[str, Any] = dataclasses.field(default_factory=dict)
    change: Callable[[dict[str, Any]], dict[str, Any]] = dict
    #: What makes a token of claims; None: a right one.
    sign: Callable[[dict[str, Any]], str] | None = None
    #: What it says of itself beside what is right.
    says: dict[str, Any] = dataclasses.field(default_factory=dict)
    key: RSAKey = dataclasses.field(default_factory=lambda: RSAKey.generate_key(2048, {"kid": "first"}))
    codes: dict[str, dict[str, str]] = dataclasses.field(default_factory=dict)
    #: How often its keys were asked for.
    asked: int = 0

    def app(self) -> Starlette:
        async def describe(request: Request) -> Response:
            told = {
                "issuer": self.issuer,
                "authorization_endpoint": f"{self.issuer}/authorize",
                "token_endpoint": f"{self.issuer}/token",
                "jwks_uri": f"{self.issuer}/keys",
            }
            return JSONResponse({**told, **self.says})

        async def authorize(request: Request) -> Response:
            given = dict(request.query_params)
            assert given["response_type"] == "code"
            assert given["client_id"] == CLIENT
            assert given["code_challenge_method"] == "S256"
            assert "openid" in given["scope"].split()
            code = secrets.token_urlsafe()
            self.codes[code] = given
            back = urllib.parse.urlencode({"code": code, "state": given["state"]})
            place = f"{given['redirect_uri']}?{back}"
            if self.asks:
                return HTMLResponse(f'<!doctype html><title>Provider</title><a href="{place}">Let me in</a>')
            return RedirectResponse(place, 302)

        async def token(request: Request) -> Response:
            form = dict(urllib.parse.parse_qsl((await request.body()).decode()))
            begun = self.codes.pop(form["code"], None)
            wanted = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
            challenge = hashlib.sha256(form["code_verifier"].encode()).digest()
            right = begun is not None and (
                _encoded(challenge) == begun["code_challenge"]
                and form["redirect_uri"] == begun["redirect_uri"]
                and request.headers.get("authorization") == f"Basic {wanted}"
            )
            if begun is None or not right:
                return JSONResponse({"error": "invalid_grant"}, 400)
            now = int(time.time())
            claims = {
                "iss": self.issuer, "aud": CLIENT, "sub": "42", "iat": now, "exp": now + 300,
                "nonce": begun["nonce"], **self.claims,
            }  # fmt: skip
            made = (self.sign or self.signed)(self.change(claims))
            return JSONResponse({"access_token": "a", "token_type": "Bearer", "id_token": made})

        async def keys(request: Request) -> Response:
            self.asked += 1
            return JSONResponse({"keys": [self.key.as_dict(private=False)]})

        return Starlette(
            routes=[
                Route("/.well-known/openid-configuration", describe),
                Route("/authorize", authorize),
                Route("/token", token, methods=["POST"]),
                Route("/keys", keys),
            ]
        )

    def signed(self, claims: dict[str, Any]) -> str:
        return jwt.encode({"alg": "RS256", "kid": self.key.kid}, claims, self.key)

    def signed_by_public_key(self, claims: dict[str, Any]) -> str:
        """As if the public key, which everybody knows, were a shared secret."""
        head = _encoded(msgspec.json.encode({"alg": "HS256", "kid": self.key.kid}))
        text = f"{head}.{_encoded(msgspec.json.encode(claims))}"
        shared = self.key.as_pem(private=False)
        return f"{text}.{_encoded(hmac.digest(shared, text.encode(), 'sha256'))}"

    def unsigned(self, claims: dict[str, Any]) -> str:
        _, body, _ = self.signed(claims).split(".")
        none = _encoded(b'{"alg":"none"}')
        return f"{none}.{body}."


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


@contextlib.contextmanager
def identity_provider() -> Iterator[IdentityProvider]:
    """Serve one on a free port."""
    found = IdentityProvider()
    server = uvicorn.Server(uvicorn.Config(found.app(), port=0, log_config=None, lifespan="off"))
    started = threading.Event()

    async def serve() -> None:
        server.config.load()
        server.lifespan = server.config.lifespan_class(server.config)
        await server.startup()
        port = server.servers[0].sockets[0].getsockname()[1]
        found.issuer = f"http://127.0.0.1:{port}"
        started.set()
        await server.main_loop()
        await server.shutdown()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert started.wait(120)
    try:
        yield found
    finally:
        server.should_exit = True
        thread.join(120)
