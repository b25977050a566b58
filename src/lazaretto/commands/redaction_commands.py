"""Changes of which fields of messages people may not read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lazaretto.commands.command import Administering
from lazaretto.engine import redaction
from lazaretto.model.redaction import checked_rule

if TYPE_CHECKING:
    from lazaretto.broker import Broker


class SetRedaction(Administering, frozen=True, kw_only=True):
    """Hide a field of messages from people, on the entities that a pattern matches.

    `field`: such as `body.card.number`; `form`: drop, mask or hash.
    """

    field: str
    queue: str = "*"
    form: str = "mask"

    def apply(self, broker: Broker, actor: str) -> None:
        broker._store.run(redaction.SetRedaction(checked_rule(self.queue, self.field, self.form), actor))


class RemoveRedaction(Administering, frozen=True, kw_only=True):
    """Hide a field of messages no longer; `queue` is the pattern under which it was hidden."""

    field: str
    queue: str = "*"

    def apply(self, broker: Broker, actor: str) -> None:
        rule = checked_rule(self.queue, self.field, "mask")
        broker._store.run(redaction.RemoveRedaction(rule.queue, rule.field, actor))
