"""Changes by operators, as values. Written by tests/gates/test_commands_file.py."""

from typing import Final

from lazaretto.commands.desk import CommandDesk
from lazaretto.commands.message_commands import ApplyDefinitions, SendMessage
from lazaretto.commands.opposites import opposite_of
from lazaretto.commands.repair_commands import (
    ApplyRepair,
    CanaryRepair,
    CancelRepair,
    PauseRepair,
    PlanRepair,
    ResumeRepair,
    UndoRepair,
)
from lazaretto.engine.access import (
    CreateToken,
    EndSessions,
    GrantRole,
    RemovePerson,
    RevokeToken,
    WithdrawRole,
)
from lazaretto.engine.claims.settle_claims import RevokeClaim
from lazaretto.engine.command import Command
from lazaretto.engine.dialogs.definitions import DropDefinition
from lazaretto.engine.dialogs.verbs import CleanUpConversation, EndConversation, ResumeConversation
from lazaretto.engine.entities.queues import CreateQueue, CreateQueues, DeleteQueue, UpdateQueue
from lazaretto.engine.entities.rules import AddRule, RemoveRule
from lazaretto.engine.entities.status import ResumeQueue, SetStatus
from lazaretto.engine.entities.topics import (
    CreateSubscription,
    CreateTopic,
    DeleteSubscription,
    DeleteTopic,
    UpdateSubscription,
    UpdateTopic,
)
from lazaretto.engine.four_eyes import SetFourEyes
from lazaretto.engine.logins import CreateLink
from lazaretto.engine.messages.delete import DeleteMessages
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
from lazaretto.engine.outcome.rerouting import MoveDeadLetters, Republish
from lazaretto.engine.outcome.send_back import Resubmit
from lazaretto.engine.outcome.set_aside import DeletePurged, Purge, PurgeCause, Restore, RestorePurged
from lazaretto.engine.redaction import RemoveRedaction, SetRedaction
from lazaretto.engine.repairs.operators import ExcludeLetters, PaceRepair

#: All commands by their names, such as "create_queue".
COMMANDS: Final = dict(sorted(Command.by_name.items()))

__all__ = [
    "COMMANDS",
    "AcknowledgeCause",
    "AddRule",
    "ApplyDefinitions",
    "ApplyRepair",
    "CanaryRepair",
    "CancelRepair",
    "CleanUpConversation",
    "Command",
    "CommandDesk",
    "CreateLink",
    "CreateQueue",
    "CreateQueues",
    "CreateSubscription",
    "CreateToken",
    "CreateTopic",
    "DeleteMessages",
    "DeletePurged",
    "DeleteQueue",
    "DeleteSubscription",
    "DeleteTopic",
    "DropDefinition",
    "EndConversation",
    "EndSessions",
    "ExcludeLetters",
    "FreeSession",
    "GrantRole",
    "Mark",
    "MergeCauses",
    "MoveDeadLetters",
    "NoteCause",
    "PaceRepair",
    "PauseRepair",
    "PlanRepair",
    "Purge",
    "PurgeCause",
    "RecountCauses",
    "RemovePerson",
    "RemoveRedaction",
    "RemoveRule",
    "Republish",
    "Restore",
    "RestorePurged",
    "Resubmit",
    "ResumeConversation",
    "ResumeQueue",
    "ResumeRepair",
    "ResumeSession",
    "RevokeClaim",
    "RevokeToken",
    "SendMessage",
    "SetBreaker",
    "SetFourEyes",
    "SetRedaction",
    "SetStatus",
    "SplitCause",
    "UndoRepair",
    "UnmergeCauses",
    "UpdateQueue",
    "UpdateSubscription",
    "UpdateTopic",
    "WithdrawRole",
    "opposite_of",
]
