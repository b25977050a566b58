"""The store that each namespace begins as: the entities of a Config.json, and messages that lie in them."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from lazaretto.broker.broker import Broker, connect
from lazaretto.errors import InvalidOption, LazarettoError
from lazaretto.model.messages import Message
from lazaretto.model.records.messages import message_of
from lazaretto.servicebus.emulated import EmulatedNamespace, read_namespace
from lazaretto.servicebus.provision import provision

#: The template's file, and that of each namespace in a folder of its own.
FILE: Final = "emulator.db"

_line: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_path: Final = msgspec.json.Decoder(str)


class CannedMessage(NamedTuple):
    """A message that is there from the beginning, and the entity that it is sent to."""

    path: str
    message: Message


def read_messages(lines: Iterable[bytes]) -> list[CannedMessage]:
    """Return messages, each a line of JSON: `entity`, and its fields as `lazaretto send` takes them.

    Raises InvalidOption, which names the line.
    """
    canned = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            fields: dict[str, Any] = _line.decode(line)
            if "entity" not in fields:
                raise InvalidOption("expected the field entity, the path of a queue or topic")
            path = _path.decode(fields.pop("entity"))
            canned.append(CannedMessage(path, message_of(msgspec.json.encode(fields), Message(b""))))
        except (ValueError, RecursionError, LazarettoError) as error:
            raise InvalidOption(f"line {number}: {error}") from None
    return canned


class Template:
    """A store in a folder of which namespaces are copies."""

    def __init__(
        self, folder: Path, namespace: EmulatedNamespace | None, messages: Sequence[CannedMessage] = ()
    ) -> None:
        self._folder = folder
        self._wanted = namespace
        self._messages = messages
        self._made = False

    @classmethod
    def of_file(cls, folder: Path, config: Path | None) -> Template:
        """Return the template of a Config.json; None: one without entities. Raises InvalidOption."""
        return cls(folder, None if config is None else read_namespace(config.read_bytes()))

    def furnish(self, broker: Broker) -> None:
        """Make the entities in a store, and send the messages. Raises InvalidOption."""
        if self._wanted is not None:
            provision(broker, self._wanted)
        for one in self._messages:
            try:
                broker.sender(one.path).send(one.message)
            except LazarettoError as error:
                raise InvalidOption(f"a message for {one.path!r} cannot be sent: {error}") from None

    def prepare(self) -> Path:
        """Make the store, once. Raises InvalidOption."""
        path = self._folder / FILE
        if not self._made:
            with connect(path) as broker:
                self.furnish(broker)
            self._made = True
        return path

    def copy(self, number: int) -> Path:
        """Return the file of a new store that is as the template, in a folder of its own."""
        folder = self._folder / str(number)
        folder.mkdir(mode=0o700)
        return Path(shutil.copyfile(self.prepare(), folder / FILE))

    @staticmethod
    def remove(copy: Path) -> None:
        """Remove a store that was copied."""
        shutil.rmtree(copy.parent, ignore_errors=True)
