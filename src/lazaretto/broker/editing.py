"""Edits at work on dead letters: functions in a sandbox of their own, everything else right here."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib.util
import os
import pickle
import sys
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

import msgspec

from lazaretto.engine.messages.prepare import message_of, prepare
from lazaretto.errors import HandlerError, InvalidMessage, LazarettoError
from lazaretto.model.checks import shown
from lazaretto.model.edits.edit import Changed, Edit, EditKind, Refused
from lazaretto.model.messages import DeadLetter, Message, as_message
from lazaretto.store.records.messages import NewMessage
from lazaretto.tools.loading import load

if TYPE_CHECKING:
    from lazaretto.isolation import Sandbox, Verdict

#: Seconds that a function may take for one letter.
LONGEST_CALL = 10.0
#: What an edit makes of a letter: a message, None if it leaves it as it is, or why it refuses it.
Edited = NewMessage | str | None


def as_edit(value: object) -> Edit:
    """Return an edit, or what a text means; a function with the hash of its module's source.

    Raises InvalidOption, FilterSyntaxError, HandlerError; HandlerError too if the source has changed.
    """
    edit = value if isinstance(value, Edit) else Edit.parse(value)
    if edit.kind is not EditKind.FUNCTION:
        return edit
    source = _hash_of_source(edit.text.strip())
    if edit.source not in (None, source):
        raise HandlerError(_changed(edit.text.strip()))
    return dataclasses.replace(edit, source=source)


def refuse_changed_source(edit: Edit | None) -> None:
    """Raise HandlerError if the source of a function is here, and not what it was.

    Another process may have it where this one has not.
    """
    if edit is None or edit.source is None:
        return
    try:
        source = _hash_of_source(edit.text.strip())
    except HandlerError:
        return
    if source != edit.source:
        raise HandlerError(_changed(edit.text.strip()))


def _changed(reference: str) -> str:
    module = reference.partition(":")[0]
    return (
        f"expected the source of {module!r} as it was when the edit {reference} was made, "
        "and it has changed: restore it, or make the edit (or plan the repair) anew"
    )


def _hash_of_source(reference: str) -> str:
    """Return a hash of the source of a module, which is not imported here."""
    module = reference.partition(":")[0]
    here = os.getcwd()  # noqa: PTH109 - sys.path holds text
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        spec = importlib.util.find_spec(module)
        origin = None if spec is None else spec.origin
        if origin is None or not os.path.isfile(origin):  # noqa: PTH113
            raise HandlerError(f"{module!r} cannot be imported: there is no source of it")
        with open(origin, "rb") as file:  # noqa: PTH123
            return hashlib.blake2b(file.read(), digest_size=16).hexdigest()
    except (ImportError, ValueError, OSError) as error:
        raise HandlerError(f"{module!r} cannot be imported: {type(error).__name__}: {error}") from error


class Editor:
    """Applies an edit to dead letters. A context manager; one thread, but any can call `stop`."""

    def __init__(self, edit: Edit | str) -> None:
        self.edit = as_edit(edit)
        self._sandbox: Sandbox | None = None
        self._stopped = False

    def __call__(self, letters: Sequence[DeadLetter]) -> list[Edited]:
        """Return what becomes of each letter, in order. It changes nothing.

        Raises SandboxSetupError: there is no such function.
        """
        if self.edit.kind is EditKind.FUNCTION:
            return self._call(letters)
        return [self._apply(letter) for letter in letters]

    def show(self, letter: DeadLetter) -> Message | str | None:
        """Return what becomes of one letter as a message, for people to look at."""
        (edited,) = self([letter])
        return message_of(edited) if isinstance(edited, NewMessage) else edited

    def _apply(self, letter: DeadLetter) -> Edited:
        if letter.message is None:
            return f"already {letter.resolution or 'gone'}"
        edited = self.edit.apply(letter.message)
        if isinstance(edited, Refused):
            return f"the edit refuses it: {edited.why}"
        return prepare_edited(edited.message) if isinstance(edited, Changed) else None

    def _call(self, letters: Sequence[DeadLetter]) -> list[Edited]:
        items = [pickle.dumps(letter) for letter in letters]
        verdicts = self.prepared().run(items)
        return [_edited_by(letter, verdict) for letter, verdict in zip(letters, verdicts, strict=True)]

    def prepared(self) -> Sandbox:
        """Return the sandbox of a function, which is loaded there. Raises SandboxError."""
        if self._sandbox is None:
            from lazaretto.isolation import Sandbox, SandboxOptions

            self._sandbox = Sandbox(
                _Function(self.edit.text.strip(), self.edit.source),
                SandboxOptions(deadline=LONGEST_CALL),
                stopping=lambda: self._stopped,
            )
            if self._stopped:
                # Said by another thread while there was nothing yet to stop.
                self._sandbox.stop()
        return self._sandbox

    def check(self) -> None:
        """Find out whether it can be applied at all. Raises SandboxSetupError: there is no such function."""
        if self.edit.kind is EditKind.FUNCTION:
            self.prepared()

    def stop(self) -> None:
        """Let the call that is at work end at once; what it did not come to is refused."""
        self._stopped = True
        if self._sandbox is not None:
            self._sandbox.stop()

    def close(self) -> None:
        """End the sandbox of a function."""
        if self._sandbox is not None:
            self._sandbox.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        self.close()


def prepare_edited(message: Message) -> Edited:
    """Return an edited message as it is sent, or why it cannot be."""
    try:
        return prepare(message)
    except LazarettoError as error:
        return str(error)


def _edited_by(letter: DeadLetter, verdict: Verdict) -> Edited:
    from lazaretto.isolation import Status

    if verdict.status is not Status.DONE:
        why = f"{verdict.error_type or verdict.status.value}: {verdict.error_message or ''}".rstrip(": ")
        return f"the edit failed: {why}"
    if verdict.result is None or letter.message is None:
        return None
    new = msgspec.msgpack.decode(verdict.result, type=NewMessage)
    # A copy of the letter is no change.
    return None if new == prepare(as_message(letter.message)) else new


class _Function:
    """Made here, called in the sandbox: returns the function of bytes that calls the user's own."""

    def __init__(self, reference: str, source: str | None) -> None:
        self._reference = reference
        self._source = source
        self._folder = os.getcwd()  # noqa: PTH109

    def __call__(self) -> Callable[[bytes], bytes | None]:
        with contextlib.suppress(OSError):
            os.chdir(self._folder)
        # Read before it is run: later changes are found when this is called again.
        if self._source not in (None, _hash_of_source(self._reference)):
            raise HandlerError(_changed(self._reference))
        function = load(self._reference)
        if not callable(function):
            raise HandlerError(f"expected {self._reference} to be a function, got {shown(function)}")

        def run(item: bytes) -> bytes | None:
            edited = function(pickle.loads(item))  # noqa: S301 - made by the parent process
            if edited is None:
                return None
            if not isinstance(edited, Message):
                raise InvalidMessage(f"expected a Message or None of the edit, got {shown(edited)}")
            return msgspec.msgpack.encode(prepare(edited))

        return run
