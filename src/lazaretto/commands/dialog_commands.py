"""Changes of dialogs and of claims."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lazaretto.commands.command import Administering, Command, OfPath, Options
from lazaretto.dialogs.declaration import parse_declaration
from lazaretto.model.permissions import Permission

if TYPE_CHECKING:
    from lazaretto.broker import Broker


class RevokeClaim(OfPath, frozen=True, kw_only=True):
    """Release an open claim of a Spark pipeline, without counting an attempt."""

    consumer: str
    number: int

    def apply(self, broker: Broker, actor: str) -> None:
        broker.revoke_claim(self.path, self.consumer, self.number, actor=actor)


class OfConversation(Command, frozen=True, kw_only=True):
    """A change of one end of a dialog. `handle`: that of the end."""

    permission = Permission.OPERATE
    handle: str


class EndConversation(OfConversation, frozen=True, kw_only=True):
    """End a conversation at this end; the other end is told. `error`: its code and text."""

    error: tuple[int, str] | None = None

    def apply(self, broker: Broker, actor: str) -> None:
        broker.dialogs.end(self.handle, error=self.error, actor=actor)


class CleanUpConversation(OfConversation, frozen=True, kw_only=True):
    """Delete one end of a dialog and its messages, without telling the other end."""

    permission = Permission.ADMINISTER

    def apply(self, broker: Broker, actor: str) -> None:
        broker.dialogs.clean_up(self.handle, actor=actor)


class ResumeConversation(OfConversation, frozen=True, kw_only=True):
    """Resume a conversation with a verdict on the poison message that holds it."""

    verdict: str

    def apply(self, broker: Broker, actor: str) -> None:
        broker.dialogs.resume(self.handle, self.verdict, actor=actor)


class ApplyDefinitions(Administering, frozen=True, kw_only=True):
    """Define message types, contracts, services and priorities of dialogs, as a file of them does.

    `definitions`: the file's tables. `drop_others`: drop the definitions that are not named.
    """

    definitions: Options
    drop_others: bool = False

    def apply(self, broker: Broker, actor: str) -> None:
        given = parse_declaration(self.definitions)
        broker.dialogs.apply(given, drop_others=self.drop_others, actor=actor)


class DropDefinition(Administering, frozen=True, kw_only=True):
    """Drop a definition that nothing uses. `kind`: "message_type", "contract", "service" or "priority"."""

    kind: str
    name: str

    def apply(self, broker: Broker, actor: str) -> None:
        broker.dialogs.drop(self.kind, self.name, actor=actor)
