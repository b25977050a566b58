"""The keys that a server knows: its own, and those of its queues and topics."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence

from lazaretto.aio import AsyncBroker
from lazaretto.aio.signing import SigningRules
from lazaretto.aio.witness import Witness
from lazaretto.model.grants import Reach
from lazaretto.model.signing import SigningRule
from lazaretto.servicebus.signatures import (
    AccessPolicy,
    Grant,
    Right,
    check_login,
    check_token,
    entity_of,
    name_of_login,
    policy_of,
)


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
