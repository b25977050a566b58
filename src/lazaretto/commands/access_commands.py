"""Changes of who may do what: roles, tokens, sessions, and what needs two people."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, ClassVar, Final

from msgspec import UNSET, UnsetType

from lazaretto.commands.command import Administering
from lazaretto.engine import access, four_eyes
from lazaretto.model.checks import moment, text, whole
from lazaretto.model.grants import Grant, Role, checked_grant, person_name

if TYPE_CHECKING:
    from lazaretto.broker import Broker

#: The most characters of what a token is for, and of an id.
_LONGEST_LABEL: Final = 200


class OfPerson(Administering, frozen=True, kw_only=True):
    """A change of what somebody may do. A name that begins with `group:` is that of a group."""

    person: str


class GrantRole(OfPerson, frozen=True, kw_only=True):
    """Grant a role to a person or group, on the entities that a pattern matches."""

    role: str
    queue: str = "*"

    def apply(self, broker: Broker, actor: str) -> None:
        grant = checked_grant(self.role, self.queue)
        broker._store.run(access.ChangeGrants(person_name(self.person), grant, actor))


class WithdrawRole(OfPerson, frozen=True, kw_only=True):
    """Withdraw a role that was granted."""

    role: str
    queue: str = "*"

    def apply(self, broker: Broker, actor: str) -> None:
        grant = checked_grant(self.role, self.queue)
        broker._store.run(access.ChangeGrants(person_name(self.person), grant, actor, withdraw=True))


class RemovePerson(OfPerson, frozen=True, kw_only=True):
    """Remove a person with all roles, tokens and sessions; the answer is how many secrets these were."""

    def apply(self, broker: Broker, actor: str) -> None:
        broker._store.run(access.RemovePerson(person_name(self.person), actor))


class EndSessions(OfPerson, frozen=True, kw_only=True):
    """End all sessions of a person in browsers; the answer is how many these were."""

    def apply(self, broker: Broker, actor: str) -> None:
        broker._store.run(access.EndSessions(person_name(self.person), actor))


class CreateToken(OfPerson, frozen=True, kw_only=True):
    """Make a token that stands for a person. The answer has its secret, which is shown only now.

    It ends after 90 days unless another time is given; null: never.
    """

    shown_once: ClassVar[bool] = True
    label: str = ""
    expires: datetime | UnsetType | None = UNSET

    def apply(self, broker: Broker, actor: str) -> None:
        label = text("label", self.label, _LONGEST_LABEL) if self.label else ""
        expires = access.USUAL if isinstance(self.expires, UnsetType) else moment("expires", self.expires)
        broker._store.run(access.CreateToken(person_name(self.person), label, expires, actor))


class RevokeToken(Administering, frozen=True, kw_only=True):
    """Delete a token by its id, with the sessions of its person; or one session by its id."""

    id: str

    def apply(self, broker: Broker, actor: str) -> None:
        broker._store.run(access.RevokeToken(text("id", self.id, _LONGEST_LABEL), actor))


class CreateLink(Administering, frozen=True, kw_only=True):
    """Make the secret of a link that opens one session within a minute.

    `person`: whose session; null: that of whoever asks, who may do everything in it.
    """

    shown_once: ClassVar[bool] = True
    person: str | None = None

    def apply(self, broker: Broker, actor: str) -> None:
        if self.person is None:
            broker._store.run(access.CreateLink(str(actor), actor, (Grant(Role.ADMIN),)))
        else:
            broker._store.run(access.CreateLink(person_name(self.person), actor))


class SetFourEyes(Administering, frozen=True, kw_only=True):
    """Set the most letters that one person may send or delete in an hour; null: any number.

    Over HTTP, letting one person send more holds once a second one asks for the same within a day; the answer
    is what holds.
    """

    letters: int | None

    def apply(self, broker: Broker, actor: str) -> None:
        most = None if self.letters is None else whole("letters", self.letters, 0, 1 << 40)
        broker._store.run(four_eyes.SetFourEyes(most, actor))
