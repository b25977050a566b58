"""A change as a value, with the permission that it needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from lazaretto.model.entities import EntityPath, subscription_path
from lazaretto.model.permissions import Permission

if TYPE_CHECKING:
    from lazaretto.broker import Broker

Options = dict[str, Any]


class Command(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A change, as a value. Subclasses say what it needs, and how a broker makes it.

    It is one commit, with its entry in the audit log.
    """

    permission: ClassVar[Permission]
    #: What it is called over HTTP, such as "create_queue".
    command_name: ClassVar[str]
    #: Whether the answer has a secret, which is not kept, so that it cannot be run under a key.
    shown_once: ClassVar[bool] = False
    #: Whether it looks through many letters before it changes something.
    searches: ClassVar[bool] = False
    #: Whether nothing takes it back.
    final: ClassVar[bool] = False
    #: The class of the options that a field `options` or `changes` has parts of.
    options_class: ClassVar[type[Any] | None] = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        parts = (f"_{c.lower()}" if c.isupper() else c for c in cls.__name__)
        cls.command_name = "".join(parts).removeprefix("_")

    def apply(self, broker: Broker, actor: str) -> None:
        """Make the change by one verb of a broker, which runs one operation."""
        raise NotImplementedError

    def needs(self) -> list[tuple[Permission, str | None]]:
        """Return what is needed: permissions, each on an entity, or on all for None."""
        return [(self.permission, getattr(self, "path", None) or getattr(self, "topic", None))]

    def entity(self) -> EntityPath | None:
        """Return the queue, topic or subscription that it changes; None: it changes something else."""
        path = getattr(self, "path", None)
        if path is not None:
            return EntityPath.parse(path)
        topic, subscription = getattr(self, "topic", None), getattr(self, "subscription", None)
        return None if topic is None or subscription is None else subscription_path(topic, subscription)

    def sends_to(self) -> str | None:
        """Return where it sends messages, to which its actor needs no right but to operate; None: nowhere."""
        return None

    def told(self, answer: Any) -> Any:
        """Return the answer to whoever ran it, from that of the operation as JSON."""
        return answer


class OfPath(Command, frozen=True, kw_only=True):
    """A change of a queue or subscription, or of its dead letters."""

    permission = Permission.OPERATE
    path: str


class Administering(Command, frozen=True, kw_only=True):
    permission = Permission.ADMINISTER
