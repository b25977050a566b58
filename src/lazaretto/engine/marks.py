"""Marks in time, such as a release, that what came later is compared with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from lazaretto.engine.command import CommandOf
from lazaretto.engine.log import AuditEntry, audit
from lazaretto.model.causes import LONGEST_MARK, MARK, TimeMark
from lazaretto.model.checks import text
from lazaretto.model.grants import Permission
from lazaretto.store.sql.transaction import Transaction

#: The most marks that causes are compared with, the newest.
MOST_MARKS: Final = 200


def marks_of(entries: Iterable[AuditEntry]) -> list[TimeMark]:
    """Return the marks that entries of the audit log tell of."""
    return [TimeMark(one.time, str(one.detail.get("text", "")), one.actor) for one in entries]


class Mark(CommandOf[None], frozen=True, kw_only=True):
    """Mark this moment, such as a release, so that causes tell after which one they came."""

    permission = Permission.OPERATE
    action = MARK
    text: str

    def run(self, tx: Transaction, actor: str) -> None:
        audit(tx, actor, self.action, "", text=text("text", self.text, LONGEST_MARK))
