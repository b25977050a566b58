"""Resources that paths of requests name. Pure."""

from __future__ import annotations

import dataclasses
import enum

from lazaretto.servicebus.atom.feeds import Refusal


class Kind(enum.Enum):
    """A kind of resource."""

    NAMESPACE = "namespace"
    QUEUES = "queues"
    TOPICS = "topics"
    ENTITY = "entity"
    SUBSCRIPTIONS = "subscriptions"
    SUBSCRIPTION = "subscription"
    RULES = "rules"
    RULE = "rule"


@dataclasses.dataclass(frozen=True, slots=True)
class Resource:
    """The resource of a path. `entity`: a queue's or a topic's path; it does not say which."""

    kind: Kind
    entity: str = ""
    subscription: str = ""
    rule: str = ""

    @property
    def path(self) -> str:
        """The entity that one needs a right on."""
        return f"{self.entity}/Subscriptions/{self.subscription}" if self.subscription else self.entity


def resource_of(path: str) -> Resource:
    """Return what a path names, decoded and without a host. Raises Refusal."""
    parts = path.strip("/").split("/")
    words = [part.lower() for part in parts]
    if words == ["$namespaceinfo"]:
        return Resource(Kind.NAMESPACE)
    if words in (["$resources", "queues"], ["$resources", "topics"]):
        return Resource(Kind(words[1]))
    if not all(parts):
        raise Refusal(400, "expected the name of an entity in the path, got none")
    if "subscriptions" not in words[1:]:
        return Resource(Kind.ENTITY, "/".join(parts))
    at = words.index("subscriptions", 1)
    topic, below = "/".join(parts[:at]), parts[at + 1 :]
    if not below:
        return Resource(Kind.SUBSCRIPTIONS, topic)
    if len(below) == 1:
        return Resource(Kind.SUBSCRIPTION, topic, below[0])
    if words[at + 2] != "rules" or len(below) > 3:
        raise Refusal(400, "expected a subscription or its rules below a topic, got another path")
    if len(below) == 2:
        return Resource(Kind.RULES, topic, below[0])
    return Resource(Kind.RULE, topic, below[0], below[2])
