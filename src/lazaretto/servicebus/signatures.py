"""Shared access signatures: who may send to and listen on which entities. Pure."""

from __future__ import annotations

import base64
import binascii
import dataclasses
import enum
import hashlib
import hmac
import math
import urllib.parse
from collections.abc import Iterable, Mapping
from typing import Final

from lazaretto.errors import InvalidOption, InvalidPath, LazarettoError
from lazaretto.model.checks import shown
from lazaretto.model.grants import Reach, grant_covers

#: The name of the policy that clients of Service Bus use unless told otherwise.
ROOT_POLICY: Final = "RootManageSharedAccessKey"


class Right(enum.Enum):
    """A right of a policy. MANAGE includes the others."""

    SEND = "Send"
    LISTEN = "Listen"
    MANAGE = "Manage"


class Unauthorized(LazarettoError):
    """A token is not valid, or does not give the right that is needed."""

    code = "unauthorized"
    condition = "amqp:unauthorized-access"


@dataclasses.dataclass(frozen=True, slots=True)
class AccessPolicy:
    """A key by a name, and what it allows from a path on; "": on all entities.

    `reach`: whether that is all below the path, or one entity with what belongs to it. `secondary`: another
    key that does the same, so that clients can change from one to the other.
    """

    name: str
    key: str = dataclasses.field(repr=False)
    rights: frozenset[Right] = frozenset(Right)
    scope: str = ""
    secondary: str | None = dataclasses.field(default=None, repr=False)
    reach: Reach = Reach.BELOW

    def __post_init__(self) -> None:
        if not self.name or not self.key:
            raise InvalidOption("expected an access policy with a name and a key, got an empty one")

    @property
    def keys(self) -> tuple[str, ...]:
        """The one or two keys."""
        return (self.key,) if self.secondary is None else (self.key, self.secondary)

    def covers(self, path: str) -> bool:
        """Return whether it is for what a path names."""
        return grant_covers(self.reach, self.scope, path)


@dataclasses.dataclass(frozen=True, slots=True)
class Grant:
    """A token's rights below a path, as far as its policy goes, until a time in seconds since 1970.

    `policy`, `key`: what it was signed with; None: it was not signed.
    """

    audience: str
    rights: frozenset[Right]
    until: float
    policy: AccessPolicy | None = dataclasses.field(default=None, repr=False)
    key: str = dataclasses.field(default="", repr=False)

    def allows(self, path: str, right: Right, now: float) -> bool:
        """Whether it gives a right on a path at a time."""
        return now < self.until and bool(self.rights & {right, Right.MANAGE}) and self.covers(path)

    def covers(self, path: str) -> bool:
        """Return whether it gives anything on a path."""
        return grant_covers(Reach.BELOW, self.audience, path) and (
            self.policy is None or self.policy.covers(path)
        )


def connection_string(host: str, port: int, name: str = ROOT_POLICY, *, key: str, plain: bool) -> str:
    """Return how clients connect with a key. `plain`: without TLS, which a word for emulators means."""
    word = "UseDevelopmentEmulator=true;" if plain else ""
    return f"Endpoint=sb://{host}:{port};SharedAccessKeyName={name};SharedAccessKey={key};{word}"


def entity_of(address: object) -> str:
    """Return the path of an entity from an address, which may be a URL. Raises InvalidPath."""
    if not address:
        return ""
    if not isinstance(address, str):
        raise InvalidPath(f"expected an address to be text, got {type(address).__name__}")
    if "://" in address:
        try:
            address = urllib.parse.urlsplit(address).path
        except ValueError:
            raise InvalidPath(f"expected the URL or path of an entity, got {shown(address)}") from None
    elif ":" in address.partition("/")[0]:
        # A host with its port, as Azure's client for JavaScript signs for where an entity forwards to.
        address = address.partition("/")[2]
    return urllib.parse.unquote(address).strip("/")


def policy_of(token: str) -> str:
    """Return the name of the policy that a shared access signature names; "": none."""
    fields = dict(part.partition("=")[::2] for part in token.partition(" ")[2].split("&"))
    return urllib.parse.unquote(fields.get("skn", ""))


def name_of_login(response: bytes) -> str:
    """Return the name in a login, as SASL PLAIN has it; "": none."""
    return [*response.split(b"\x00"), b""][1].decode("utf-8", "replace")


def check_login(response: bytes, policies: Mapping[str, AccessPolicy]) -> Grant:
    """Return what a policy's name and key give, as SASL PLAIN has them. Raises Unauthorized.

    The key is compared in constant time, also for a name that no policy has.
    """
    key = [*response.split(b"\x00"), b"", b"", b""][2]
    policy = policies.get(name_of_login(response))
    keys = policy.keys if policy is not None else ("no policy has this name",)
    right = [one for one in keys if hmac.compare_digest(one.encode(), key)]
    if policy is None or not right:
        raise Unauthorized("expected the name and the key of a policy, got others")
    return Grant(policy.scope.lower(), policy.rights, math.inf, policy, right[0])


def check_token(
    token: str, audience: str, policies: Iterable[AccessPolicy] | Mapping[str, AccessPolicy], now: float
) -> Grant:
    """Return what a shared access signature gives on an audience. Raises Unauthorized.

    The signature is HMAC-SHA256 of the resource and the expiry, as in Service Bus. It is compared in
    constant time, also for a name that no policy has.
    """
    kind, _, rest = token.partition(" ")
    if kind != "SharedAccessSignature":
        raise Unauthorized("expected a shared access signature, got another kind of token")
    fields = dict(part.partition("=")[::2] for part in rest.split("&"))
    if not {"sr", "se", "skn", "sig"} <= fields.keys():
        raise Unauthorized("expected sr, se, skn and sig in a shared access signature, got fewer")
    listed = policies.values() if isinstance(policies, Mapping) else policies
    name = urllib.parse.unquote(fields["skn"])
    policy = next((one for one in listed if one.name == name), None)
    try:
        signature = base64.b64decode(urllib.parse.unquote(fields["sig"]).encode(), validate=True)
        until = float(fields["se"])
    except (binascii.Error, ValueError):
        signature, until = b"", 0.0
    keys = policy.keys if policy is not None else ("no policy has this name",)
    signed = f"{fields['sr']}\n{fields['se']}".encode()
    right = [key for key in keys if hmac.compare_digest(_signature(key, signed), signature)]
    if policy is None or not right:
        raise Unauthorized("expected a signature with the key of a policy, got another")
    if until <= now:
        raise Unauthorized("expected a token that has not expired, got an old one")
    # A token for an entity's node is one for the entity: some clients sign for each by itself.
    path, resource = (
        entity_of(one).lower().removesuffix("/$management")
        for one in (audience, urllib.parse.unquote(fields["sr"]))
    )
    for scope, holds in (
        (policy.scope, policy.covers(path)),
        (resource, grant_covers(Reach.BELOW, resource, path)),
    ):
        if not holds:
            raise Unauthorized(f"expected a token for {path!r}, got one for {scope!r}")
    return Grant(path, policy.rights, until, policy, right[0])


def _signature(key: str, signed: bytes) -> bytes:
    return hmac.new(key.encode(), signed, hashlib.sha256).digest()
