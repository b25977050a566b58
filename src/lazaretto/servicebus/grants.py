"""Rights of one client: the keys that a server knows, signatures with them, and what tokens give."""

from __future__ import annotations

import base64
import binascii
import dataclasses
import enum
import hashlib
import hmac
import math
import time
import urllib.parse
from collections.abc import Awaitable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from lazaretto.aio import AsyncBroker
from lazaretto.aio.witness import SigningRules, Witness
from lazaretto.errors import InvalidOption, InvalidPath, LazarettoError
from lazaretto.model.actors import Actor, NameKind, client_name
from lazaretto.model.checks import shown
from lazaretto.model.grants import KEY, Reach, SigningRule, grant_covers
from lazaretto.serving.guard import Guard, Seat

#: The name of the policy that clients of Service Bus use unless told otherwise.
ROOT_POLICY: Final = "RootManageSharedAccessKey"

#: What the audit log calls this door, and who comes where no key is asked for.
DOOR: Final = "amqp"
ANYBODY: Final = "servicebus"


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


class Keys:
    """Checks tokens. `policies`: the server's own by name; without any, nobody needs a key."""

    def __init__(self, broker: AsyncBroker, policies: Iterable[AccessPolicy]) -> None:
        self.policies: Mapping[str, AccessPolicy] = {policy.name: policy for policy in policies}
        self.rules = SigningRules(broker)
        self.witness = Witness(broker)

    def renew(self, policies: Iterable[AccessPolicy]) -> None:
        """Take other policies of the server: what others gave is taken away soon."""
        self.policies = {policy.name: policy for policy in policies}

    @property
    def wanted(self) -> bool:
        """Whether clients need a key."""
        return bool(self.policies)

    async def check(self, token: str, audience: str) -> Grant:
        """Return what a shared access signature gives on an audience. Raises Unauthorized.

        A policy of the server comes before an entity's of the same name.
        """
        own = self.policies.get(policy_of(token))
        policies = [own] if own is not None else await self.of_entity(entity_of(audience))
        return check_token(token, audience, policies, time.time())

    async def log_in(self, response: bytes) -> Grant:
        """Return what a name and a key give, as SASL PLAIN has them. Raises Unauthorized.

        The name is that of a policy of the server, or `entity/rule` for the rule of a queue or topic.
        """
        name = name_of_login(response)
        path = name.rpartition("/")[0]
        if name in self.policies or not path:
            return check_login(response, self.policies)
        return check_login(response, {f"{path}/{one.name}": one for one in await self.of_entity(path)})

    async def of_entity(self, path: str) -> Sequence[AccessPolicy]:
        """Return the policies of the queue or topic that a path is in."""
        scope, rules = await self.rules.above(path)
        return [_policy(rule, scope) for rule in rules]


def _policy(rule: SigningRule, scope: str) -> AccessPolicy:
    rights = frozenset(Right(one) for one in rule.rights)
    return AccessPolicy(rule.name, rule.primary, rights, scope, rule.secondary, Reach.ENTITY)


def stands(grant: Grant, own: Mapping[str, AccessPolicy], current: Collection[AccessPolicy]) -> bool:
    """Whether what gave a grant is still there: a login, a policy of the server, or one of an entity."""
    policy = grant.policy
    if policy is None or own.get(policy.name) is policy:
        return True
    return any(
        (one.name, one.scope, one.rights) == (policy.name, policy.scope, policy.rights)
        and grant.key in one.keys
        for one in current
    )


class Grants:
    """The rights of one connection, or of one request over HTTP. `seat`: the place of the connection.

    Without policies of the server everybody may do everything.
    """

    def __init__(self, keys: Keys, guard: Guard, seat: Seat | None) -> None:
        self._keys = keys
        self._guard = guard
        self._seat = seat
        self._held: list[Grant] = []

    async def log_in(self, response: bytes) -> None:
        """Take a name and a key, as SASL PLAIN has them. Raises Unauthorized."""
        if self._keys.wanted:
            await self._take(self._keys.log_in(response))

    async def take_token(self, token: str, audience: str) -> Grant | None:
        """Take a token for an audience, and return what it gives; None: no key is asked for.

        Raises Unauthorized, after a while.
        """
        if not self._keys.wanted:
            self.know()
            return None
        if not token:
            # Nobody guesses a key by that. Pages of other sites can make a browser send it.
            raise Unauthorized("expected a shared access signature, got none")
        return await self._take(self._keys.check(token, audience))

    async def _take(self, checking: Awaitable[Grant]) -> Grant:
        try:
            grant = await checking
        except Unauthorized:
            await self._keys.witness.refused(self.address, DOOR)
            await self._guard.refuse_login(self.address)
            raise
        self._held.append(grant)
        self.know()
        return grant

    @property
    def address(self) -> str:
        """The client's address; empty: not known."""
        return "" if self._seat is None else self._seat.address

    def know(self) -> None:
        """Note that the client has logged in, or need not."""
        if self._seat is not None:
            self._seat.know()

    def policies(self) -> Iterator[AccessPolicy]:
        """Yield the policies of entities that tokens were signed with."""
        return (one.policy for one in self._held if one.policy is not None and one.policy.scope)

    def keep(self, current: Collection[AccessPolicy]) -> None:
        """Withdraw what was given by policies of entities that are not there any more, or have other keys."""
        self._held = [one for one in self._held if stands(one, self._keys.policies, current)]

    def require(self, path: str, right: Right) -> None:
        """Raise Unauthorized unless a grant that has not expired gives a right on a path."""
        now = time.time()
        self._held = [grant for grant in self._held if grant.until > now]
        if self._keys.wanted and not any(grant.allows(path, right, now) for grant in self._held):
            raise Unauthorized(f"expected a token with the right {right.value} on {path!r}, got none")

    def actor(self, path: str, right: Right) -> Actor:
        """Return whom the audit log names for what a grant allows: the key, never a person of its name."""
        now = time.time()
        grants = (one for one in self._held if one.allows(path, right, now))
        policy = next((one.policy for one in grants if one.policy is not None), None)
        if not self._keys.wanted or policy is None:
            return Actor.at(ANYBODY, self.address, door=DOOR, kind=NameKind.PROCESS)
        # An entity's key is named with its entity: others may have one of the same name.
        name = "/".join(part for part in (policy.scope, policy.name) if part)
        return Actor.at(f"{KEY}{name}", self.address, door=DOOR, kind=NameKind.KEY)

    def name_on(self, path: str, own: str = "") -> str:
        """Return a name for who receives from a path: what it calls itself, its key, and where it is."""
        actor = self.actor(path, Right.LISTEN)
        who = [one for one in (own, str(actor) if actor.kind is NameKind.KEY else "") if one]
        return client_name(" with ".join(who) or "somebody", actor.origin)

    def sees(self, path: str) -> bool:
        """Return whether the client may know of an entity: whether it has any right on it."""
        now = time.time()
        return not self._keys.wanted or any(grant.until > now and grant.covers(path) for grant in self._held)
