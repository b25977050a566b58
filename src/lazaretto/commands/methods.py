"""Changes by operators, as methods. Written by tests/gates/test_commands_file.py."""

# ruff: noqa: A002
from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from msgspec import UNSET, UnsetType

from lazaretto.commands.desk import Maker
from lazaretto.commands.repair_commands import (
    CanaryRepair,
    CancelRepair,
    PauseRepair,
    ResumeRepair,
    UndoRepair,
)
from lazaretto.engine.access import (
    CreateToken,
    EndSessions,
    GrantRole,
    NewSecret,
    Person,
    RemovePerson,
    RevokeToken,
    WithdrawRole,
)
from lazaretto.engine.claims.settle_claims import RevokeClaim
from lazaretto.engine.command import formerly, tuple_of, tuples_of
from lazaretto.engine.dialogs.verbs import CleanUpConversation, EndConversation
from lazaretto.engine.entities.queues import DeleteQueue
from lazaretto.engine.entities.rules import RemoveRule
from lazaretto.engine.entities.status import ResumeQueue
from lazaretto.engine.entities.topics import DeleteSubscription, DeleteTopic, SubscriptionDescription
from lazaretto.engine.four_eyes import SetFourEyes
from lazaretto.engine.logins import CreateLink
from lazaretto.engine.messages.sessions import FreeSession
from lazaretto.engine.outcome.breakers import SetBreaker
from lazaretto.engine.outcome.cause_parts import (
    AcknowledgeCause,
    MergeCauses,
    NoteCause,
    SplitCause,
    UnmergeCauses,
)
from lazaretto.engine.outcome.causes import Mark, RecountCauses
from lazaretto.engine.outcome.held_sessions import ResumeSession
from lazaretto.engine.outcome.set_aside import DeletePurged, PartReport, PurgeCause, RestorePurged
from lazaretto.engine.redaction import RemoveRedaction, SetRedaction
from lazaretto.engine.repairs.operators import ExcludeLetters
from lazaretto.model.descriptions import BreakerDescription, QueueDescription
from lazaretto.model.redaction import RedactionRule


class BrokerMethods(Maker):
    """Methods of a broker that follow from what the changes declare."""

    def acknowledge_cause(
        self, path: str, number: int, until: datetime | None, *, actor: str | None = None
    ) -> None:
        """Note until when a cause is known; None withdraws that.

        It needs no attention until then.
        """
        self._make(AcknowledgeCause(path=path, number=number, until=until), actor)

    def create_link(self, person: str | None = None, *, actor: str | None = None) -> NewSecret:
        """Make the secret of a link that opens one session within a minute.

        `person`: whose session; None: that of whoever asks, who may do everything in it.
        """
        return self._make(CreateLink(person=person), actor)

    def create_token(
        self,
        person: str,
        label: str = "",
        expires: datetime | UnsetType | None = UNSET,
        *,
        actor: str | None = None,
    ) -> NewSecret:
        """Make a token that stands for a person. The answer has its secret, which is shown only now.

        It ends after 90 days unless another time is given; None: never.
        """
        return self._make(CreateToken(person=person, label=label, expires=expires), actor)

    def delete_purged(self, path: str, count: int, *, actor: str | None = None) -> int:
        """Delete all purged dead letters of a queue for good. `count`: how many these are."""
        return self._make(DeletePurged(path=path, count=count), actor)

    def delete_queue(self, path: str, *, actor: str | None = None) -> None:
        """Delete a queue with all its messages and dead letters.

        Raises EntityNotFound.
        """
        self._make(DeleteQueue(path=path), actor)

    @formerly(name="subscription")
    def delete_subscription(self, topic: str, subscription: str, *, actor: str | None = None) -> None:
        """Delete a subscription with all its messages and dead letters.

        Raises EntityNotFound.
        """
        self._make(DeleteSubscription(topic=topic, subscription=subscription), actor)

    def delete_topic(self, path: str, *, actor: str | None = None) -> None:
        """Delete a topic with its subscriptions and all their messages.

        Raises EntityNotFound.
        """
        self._make(DeleteTopic(path=path), actor)

    def end_sessions(self, person: str, *, actor: str | None = None) -> int:
        """End all sessions of a person in browsers.

        The answer is how many these were.
        """
        return self._make(EndSessions(person=person), actor)

    @formerly(session="session_id")
    def free_session(self, path: str, session_id: str, *, actor: str | None = None) -> None:
        """Take a session's lock from its receiver.

        What it has not settled can be received again.
        """
        self._make(FreeSession(path=path, session_id=session_id), actor)

    def grant_role(self, person: str, role: str, queue: str = "*", *, actor: str | None = None) -> Person:
        """Grant a role to a person or group, on the entities that a pattern matches."""
        return self._make(GrantRole(person=person, role=role, queue=queue), actor)

    def mark(self, text: str, *, actor: str | None = None) -> None:
        """Mark this moment, such as a release, so that causes tell after which one they came."""
        self._make(Mark(text=text), actor)

    def merge_causes(self, path: str, numbers: Iterable[int], *, actor: str | None = None) -> int:
        """Make several causes one; it stays one.

        The answer is its number, the lowest of theirs.
        """
        return self._make(MergeCauses(path=path, numbers=tuple_of("numbers", numbers)), actor)

    def note_cause(self, path: str, number: int, note: str | None, *, actor: str | None = None) -> None:
        """Keep a note with a cause; None removes it."""
        self._make(NoteCause(path=path, number=number, note=note), actor)

    def purge_cause(self, path: str, number: int, *, actor: str | None = None) -> PartReport:
        """Set the dead letters of a cause aside for 7 days, up to 10,000 at once.

        `number`: that of the cause. The answer has how many these were, and how many remain for another time.
        """
        return self._make(PurgeCause(path=path, number=number), actor)

    def recount_causes(self, path: str, *, actor: str | None = None) -> None:
        """Count the letters of all causes of a queue anew.

        `lazaretto store check` says when: a count may be wrong after workers of an older version ran beside
        newer ones.
        """
        self._make(RecountCauses(path=path), actor)

    def remove_person(self, person: str, *, actor: str | None = None) -> int:
        """Remove a person with all roles, tokens and sessions.

        The answer is how many secrets these were.
        """
        return self._make(RemovePerson(person=person), actor)

    def remove_redaction(self, field: str, queue: str = "*", *, actor: str | None = None) -> RedactionRule:
        """Hide a field of messages no longer; `queue` is the pattern under which it was hidden."""
        return self._make(RemoveRedaction(field=field, queue=queue), actor)

    @formerly(name="subscription")
    def remove_rule(
        self, topic: str, subscription: str, rule: str, *, actor: str | None = None
    ) -> SubscriptionDescription:
        """Remove a rule from a subscription.

        Without rules it gets no messages. Raises EntityNotFound.
        """
        return self._make(RemoveRule(topic=topic, subscription=subscription, rule=rule), actor)

    def restore_purged(
        self, path: str, at: datetime | None = None, *, actor: str | None = None
    ) -> PartReport:
        """Bring back what was set aside at a time, or all that was set aside for None, up to 10,000 at once.

        `at`: when it was set aside.
        """
        return self._make(RestorePurged(path=path, at=at), actor)

    def resume_queue(
        self, path: str, verdict: str | None = None, *, actor: str | None = None
    ) -> QueueDescription:
        """Resume a halted or disabled queue.

        `verdict`: on the message that halted it: "retry" (with new attempts), "move", "drop" or "reject".
        """
        return self._make(ResumeQueue(path=path, verdict=verdict), actor)

    @formerly(session="session_id")
    def resume_session(self, path: str, session_id: str, verdict: str, *, actor: str | None = None) -> None:
        """Resume a held session with a verdict on its poison message.

        `verdict`: for a blocked session "retry", "move", "drop" or "reject"; for a parked one "retry" (the
        dead letter returns to its place) or "skip" (the session continues without it). Raises EntityError if
        the session is not held.
        """
        self._make(ResumeSession(path=path, session_id=session_id, verdict=verdict), actor)

    def revoke_claim(self, path: str, consumer: str, number: int, *, actor: str | None = None) -> int:
        """Release the messages of an open claim.

        No attempt is counted; the pipeline goes on without them. Raises EntityError if it is not open.
        """
        return self._make(RevokeClaim(path=path, consumer=consumer, number=number), actor)

    def revoke_token(self, id: str, *, actor: str | None = None) -> str:
        """Delete a token by its id, with the sessions of its person; or one session by its id."""
        return self._make(RevokeToken(id=id), actor)

    def set_breaker(self, path: str, verb: str, *, actor: str | None = None) -> BreakerDescription:
        """Keep a breaker open or closed, or let it decide by itself.

        `verb`: "open" (hosts get nothing), "close" (every failure counts), or "auto", which closes it and
        lets it decide by itself again.
        """
        return self._make(SetBreaker(path=path, verb=verb), actor)

    def set_four_eyes(self, letters: int | None, *, actor: str | None = None) -> int | None:
        """Set the most letters that one person may send or delete in an hour; None: any number.

        Over HTTP, letting one person send more holds once a second one asks for the same within a day; the
        answer is what holds.
        """
        return self._make(SetFourEyes(letters=letters), actor)

    def set_redaction(
        self, field: str, queue: str = "*", form: str = "mask", *, actor: str | None = None
    ) -> RedactionRule:
        """Hide a field of messages from people, on the entities that a pattern matches.

        `field`: such as `body.card.number`; `form`: drop, mask or hash.
        """
        return self._make(SetRedaction(field=field, queue=queue, form=form), actor)

    def split_cause(
        self, path: str, number: int, fingerprints: Iterable[str], *, actor: str | None = None
    ) -> int:
        """Make some of a cause's fingerprints a cause of their own.

        It stays apart. The answer is its number.
        """
        return self._make(
            SplitCause(path=path, number=number, fingerprints=tuple_of("fingerprints", fingerprints)), actor
        )

    def unmerge_causes(
        self, path: str, number: int, parts: Mapping[int, Iterable[str]], *, actor: str | None = None
    ) -> int:
        """Part causes that were merged into one again. `parts`: by number, the fingerprints that each had.

        Those that went elsewhere meanwhile stay there, and a cause that has none left stays merged. Raises
        InvalidOption if none has.
        """
        return self._make(UnmergeCauses(path=path, number=number, parts=tuples_of("parts", parts)), actor)

    def withdraw_role(self, person: str, role: str, queue: str = "*", *, actor: str | None = None) -> Person:
        """Withdraw a role, as it was granted."""
        return self._make(WithdrawRole(person=person, role=role, queue=queue), actor)


class RepairMethods(Maker):
    """Methods of a repair that follow from what the changes declare."""

    _name: str

    def canary(self, *, actor: str | None = None) -> None:
        """Send the first few letters of a repair, and wait for their outcome."""
        self._make(CanaryRepair(name=self._name), actor)

    def cancel(self, *, actor: str | None = None) -> None:
        """Never send what is left of a repair."""
        self._make(CancelRepair(name=self._name), actor)

    def exclude(self, sequence_numbers: Iterable[int], *, actor: str | None = None) -> None:
        """Take letters out of a repair.

        They are those that it has not sent, or that failed again. A canary that failed for these alone goes
        on.
        """
        self._make(
            ExcludeLetters(name=self._name, sequence_numbers=tuple_of("sequence_numbers", sequence_numbers)),
            actor,
        )

    def pause(self, *, actor: str | None = None) -> None:
        """Send no more letters of a repair until it is resumed."""
        self._make(PauseRepair(name=self._name), actor)

    def resume(self, *, actor: str | None = None) -> None:
        """Go on with a repair where it was paused or stopped."""
        self._make(ResumeRepair(name=self._name), actor)

    def undo(self, *, actor: str | None = None) -> None:
        """Take back what nobody was handed yet, newest first; what was handed out stays as it is."""
        self._make(UndoRepair(name=self._name), actor)


class DialogMethods(Maker):
    """Methods of `broker.dialogs` that follow from what the changes declare."""

    def clean_up(self, handle: str, *, actor: str | None = None) -> int:
        """Delete one end of a dialog and its messages, without telling the other end."""
        return self._make(CleanUpConversation(handle=handle), actor)

    def end(self, handle: str, error: tuple[int, str] | None = None, *, actor: str | None = None) -> None:
        """End a conversation at this end; the other end is told. `error`: its code and text."""
        self._make(EndConversation(handle=handle, error=error), actor)
