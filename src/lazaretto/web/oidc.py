"""Logging in with OpenID Connect: the authorization code flow with PKCE, and what an ID token must say."""

from __future__ import annotations

import dataclasses
import hmac
import secrets
import time
import urllib.parse
from collections.abc import Mapping
from typing import Any, Final, TypeGuard

import msgspec
from authlib.common.errors import AuthlibBaseError
from authlib.integrations.httpx_client import AsyncOAuth2Client
from httpx2 import HTTPError, InvalidURL
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from lazaretto.errors import InvalidOption, LazarettoError
from lazaretto.model.checks import shown
from lazaretto.model.loopback import is_loopback
from lazaretto.web.origin import vouched_names
from lazaretto.web.refusals import NotAuthenticated

#: How ID tokens may be signed: by a key pair, so that whoever can check one cannot make one.
_ALGORITHMS: Final = (
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "EdDSA",
)
#: Seconds: what the provider may take to answer, how far its clock may be off, and how long what it says
#: of itself is kept. New keys are looked for at most so often.
_PATIENCE: Final = 10.0
_LEEWAY: Final = 60
_KEPT: Final = 3600.0
_KEYS_AGAIN: Final = 30.0


class ProviderUnavailable(LazarettoError):
    """The identity provider cannot be reached, or answers what it should not."""

    code = "identity_provider_unavailable"
    retriable = True


class Pending(msgspec.Struct, frozen=True):
    """A login that has begun, kept by the browser that began it."""

    state: str
    nonce: str
    verifier: str

    def check(self, state: str) -> None:
        """Raise NotAuthenticated unless an answer is that to this login."""
        if not hmac.compare_digest(state.encode("utf-8", "replace"), self.state.encode()):
            raise NotAuthenticated("expected the answer to a login of this browser, got another")


class _Metadata(msgspec.Struct, frozen=True):
    """A provider's description of itself."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str


@dataclasses.dataclass(frozen=True, slots=True)
class OidcOptions:
    """An identity provider, and what it knows this server as. Raises InvalidOption.

    `issuer`: its address, exactly as its tokens give it. `secret`: None for a public client. `name_claim`:
    the claim that is a person's name here. `groups_claim`: the one with the names of groups.
    """

    issuer: str
    client_id: str
    secret: str | None = dataclasses.field(default=None, repr=False)
    name_claim: str = "email"
    groups_claim: str = "groups"
    scope: str = "openid email profile"

    def __post_init__(self) -> None:
        _check_address(self.issuer, "an issuer")
        if not self.client_id:
            raise InvalidOption("expected the ID that the identity provider knows this server by, got none")


def _check_address(address: str, what: str) -> str:
    parts = urllib.parse.urlsplit(address)
    secure = parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))
    if not secure or not parts.hostname or parts.fragment:
        raise InvalidOption(f"expected {what} such as https://id.example.com, got {shown(address)}")
    return address


def names_of(claims: Mapping[str, Any], options: OidcOptions, nonce: str, now: float) -> list[str]:
    """Return the person's name and groups from the claims of an ID token whose signature is right.

    Pure. Raises NotAuthenticated for what is not for this server, not for this login, or not now.
    """
    audience = claims.get("aud")
    audiences = audience if isinstance(audience, list) else [audience]
    expires: object = claims.get("exp")
    issued: object = claims.get("iat")
    nonce_claim, name = claims.get("nonce"), claims.get(options.name_claim)
    party = claims.get("azp", options.client_id if len(audiences) == 1 else None)
    if claims.get("iss") != options.issuer:
        raise NotAuthenticated("expected an ID token of the issuer, got one of another")
    if options.client_id not in audiences or party != options.client_id:
        raise NotAuthenticated("expected an ID token for this server, got one for another")
    if not _is_time(expires) or not _is_time(issued) or expires + _LEEWAY <= now or issued - _LEEWAY > now:
        raise NotAuthenticated("expected an ID token that holds now, got one that does not")
    if not isinstance(nonce_claim, str) or not hmac.compare_digest(nonce_claim.encode(), nonce.encode()):
        raise NotAuthenticated("expected the ID token of this login, got one of another")
    if options.name_claim == "email" and claims.get("email_verified") is not True:
        raise NotAuthenticated("expected an address that the identity provider has verified, got another")
    if not isinstance(name, str):
        raise NotAuthenticated(f"expected the claim {options.name_claim!r} to be a name, got none")
    groups = claims.get(options.groups_claim, [])
    if isinstance(groups, str):
        groups = [groups]
    listed = groups if isinstance(groups, list) else []
    return vouched_names(name.strip(), [group for group in listed if isinstance(group, str)])


def _is_time(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


class Provider:
    """An identity provider, as a server talks to it."""

    def __init__(self, options: OidcOptions) -> None:
        self.options = options
        self._metadata: _Metadata | None = None
        self._metadata_until = 0.0
        self._keys: KeySet | None = None
        self._keys_after = 0.0

    @property
    def label(self) -> str:
        """The name that people know it by."""
        return urllib.parse.urlsplit(self.options.issuer).netloc

    async def begin(self, redirect: str) -> tuple[str, Pending]:
        """Return where a browser is to go, and what it must bring back. Raises ProviderUnavailable."""
        pending = Pending(*(secrets.token_urlsafe(48) for _ in range(3)))
        async with self._client(redirect) as client:
            metadata = await self._describe(client)
            address, _ = client.create_authorization_url(
                metadata.authorization_endpoint, state=pending.state, nonce=pending.nonce,
                code_verifier=pending.verifier,
            )  # fmt: skip
        return address, pending

    async def finish(self, redirect: str, pending: Pending, code: str) -> list[str]:
        """Return the name and groups of whoever has logged in there, once `pending` was checked.

        Raises NotAuthenticated, ProviderUnavailable.
        """
        async with self._client(redirect) as client:
            metadata = await self._describe(client)
            try:
                answer = await client.fetch_token(
                    metadata.token_endpoint, code=code, code_verifier=pending.verifier,
                    grant_type="authorization_code",
                )  # fmt: skip
            except AuthlibBaseError:
                raise NotAuthenticated("expected a code that the identity provider takes") from None
            except (HTTPError, ValueError) as error:
                raise _unavailable(error) from None
            token = answer.get("id_token")
            if not isinstance(token, str):
                raise ProviderUnavailable("expected an ID token from the identity provider, got none")
            claims = await self._claims_of(client, metadata, token)
        return names_of(claims, self.options, pending.nonce, time.time())

    def _client(self, redirect: str) -> Any:
        options = self.options
        return AsyncOAuth2Client(
            options.client_id, options.secret, scope=options.scope, redirect_uri=redirect,
            token_endpoint_auth_method="none" if options.secret is None else "client_secret_basic",
            code_challenge_method="S256", timeout=_PATIENCE, follow_redirects=False,
        )  # fmt: skip

    async def _describe(self, client: Any) -> _Metadata:
        if self._metadata is None or time.monotonic() > self._metadata_until:
            place = f"{self.options.issuer.rstrip('/')}/.well-known/openid-configuration"
            answer = await _get(client, place, _Metadata)
            if answer.issuer != self.options.issuer:
                raise ProviderUnavailable(
                    f"expected the issuer {self.options.issuer!r} at its address, got {shown(answer.issuer)}"
                )
            try:
                for address in (answer.authorization_endpoint, answer.token_endpoint, answer.jwks_uri):
                    _check_address(address, "addresses of the identity provider")
            except InvalidOption as error:
                raise ProviderUnavailable(str(error)) from None
            self._metadata, self._metadata_until = answer, time.monotonic() + _KEPT
        return self._metadata

    async def _claims_of(self, client: Any, metadata: _Metadata, token: str) -> Mapping[str, Any]:
        """Return what a token claims, once its signature is seen to be right."""
        fresh = self._keys is None
        while True:
            if fresh:
                self._keys = await _keys_of(client, metadata)
                self._keys_after = time.monotonic() + _KEYS_AGAIN
            assert self._keys is not None
            try:
                claims: dict[str, Any] = jwt.decode(token, self._keys, algorithms=_ALGORITHMS).claims
                return claims
            except (JoseError, ValueError, TypeError):
                # It may be signed with a key that is newer than those that are known.
                if fresh or time.monotonic() < self._keys_after:
                    raise NotAuthenticated("expected an ID token with a right signature") from None
            fresh = True


async def _keys_of(client: Any, metadata: _Metadata) -> KeySet:
    answer: dict[str, Any] = await _get(client, metadata.jwks_uri, dict[str, Any])
    try:
        return KeySet.import_key_set(answer)  # type: ignore[arg-type]
    except (JoseError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ProviderUnavailable(
            f"expected keys from the identity provider: {type(error).__name__}"
        ) from None


async def _get(client: Any, address: str, kind: Any) -> Any:
    try:
        answer = await client.request("GET", address, withhold_token=True)
        answer.raise_for_status()
        return msgspec.json.decode(answer.content, type=kind)
    except (HTTPError, InvalidURL, ValueError) as error:
        raise _unavailable(error) from None


def _unavailable(error: Exception) -> ProviderUnavailable:
    return ProviderUnavailable(f"the identity provider cannot be asked: {type(error).__name__}")
