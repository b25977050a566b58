"""The command that applies a file of definitions of dialogs."""

from __future__ import annotations

from lazaretto.dialogs.declaration import parse_declaration
from lazaretto.engine.command import Administering, Options
from lazaretto.engine.dialogs.definitions import Change, apply_definitions
from lazaretto.store.sql.transaction import Transaction


class ApplyDefinitions(Administering[list[Change]], frozen=True, kw_only=True):
    """Define message types, contracts, services and priorities of dialogs, as a file of them does.

    `definitions`: the file's tables. `drop_others`: drop the definitions that are not named.
    """

    action = ""
    holder = "dialogs"
    method = "apply"
    definitions: Options
    drop_others: bool = False

    def run(self, tx: Transaction, actor: str) -> list[Change]:
        definitions = parse_declaration(self.definitions)
        return apply_definitions(tx, definitions, actor, drop_others=self.drop_others)
