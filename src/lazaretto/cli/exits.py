"""How the command ends: its exit codes, and which error means which."""

from __future__ import annotations

import enum

from lazaretto.errors import (
    ConversationNotFound,
    EntityNotFound,
    FilterSyntaxError,
    HandlerError,
    InvalidOption,
    InvalidPath,
    LazarettoError,
    MessageNotFound,
    MessageNotReceivable,
    PoisonMessageError,
    QueueDisabled,
    QuotaExceeded,
    RepairNotFound,
    SessionHeld,
    StoreError,
)


class Exit(enum.IntEnum):
    """The exit codes."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    NOT_RECEIVABLE = 4
    STORE = 5
    INTERRUPTED = 130
    READER_GONE = 141


#: What each exit code means, as the help tells it.
MEANINGS = {
    Exit.OK: "success",
    Exit.FAILED: "the operation failed, or a check found a problem",
    Exit.USAGE: "wrong usage: unknown option, invalid value or path, no store given",
    Exit.NOT_FOUND: "the queue, message or conversation does not exist",
    Exit.NOT_RECEIVABLE: "queue halted, off or full; session held; message not active",
    Exit.STORE: "store missing, damaged, foreign, too new, busy, full or read only",
    Exit.INTERRUPTED: "interrupted by Control-C",
    Exit.READER_GONE: "output closed early (SIGPIPE)",
}

_ERRORS: dict[Exit, tuple[type[LazarettoError], ...]] = {
    Exit.USAGE: (InvalidOption, InvalidPath, HandlerError, FilterSyntaxError),
    # Before the parents of some of these.
    Exit.NOT_RECEIVABLE: (
        MessageNotReceivable, QueueDisabled, QuotaExceeded, PoisonMessageError, SessionHeld,
    ),
    Exit.NOT_FOUND: (ConversationNotFound, EntityNotFound, MessageNotFound, RepairNotFound),
    Exit.STORE: (StoreError,),
}  # fmt: skip


class CommandError(Exception):
    """The command cannot go on: a code and a text for people, and how it ends."""

    def __init__(self, code: str, text: str, exit_code: Exit = Exit.FAILED) -> None:
        super().__init__(text)
        self.code = code
        self.exit_code = exit_code


def usage(text: str) -> CommandError:
    """Return the error of a command line that makes no sense."""
    return CommandError("usage", text, Exit.USAGE)


def exit_code_of(error: LazarettoError) -> Exit:
    """Return how the command ends after this error."""
    return next((code for code, kinds in _ERRORS.items() if isinstance(error, kinds)), Exit.FAILED)
