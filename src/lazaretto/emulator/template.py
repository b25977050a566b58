"""The store that each namespace begins as: the entities of a Config.json, and messages that lie in them.

`provision` makes the entities, and changes those that are there already.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from lazaretto.api import SubscriptionDescription
from lazaretto.broker.broker import Broker, connect
from lazaretto.errors import (
    EntityExists,
    EntityNotFound,
    InvalidOption,
    InvalidPath,
    LazarettoError,
    NotAllowed,
)
from lazaretto.model.entities import FORWARDS, QueueOptions, TopicOptions
from lazaretto.model.filters.rules import Rule
from lazaretto.model.messages import Message
from lazaretto.model.records.messages import message_of
from lazaretto.servicebus.emulated import Emulated, EmulatedNamespace, read_namespace

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


_ACTOR: Final = "emulator"


def provision(broker: Broker, namespace: EmulatedNamespace) -> None:
    """Make every entity of a namespace, or change its options to those given; others stay as they are.

    Raises InvalidOption, which says where in the file what is refused stands.
    """
    later: list[tuple[Emulated, dict[str, Any]]] = []
    for queue in namespace.queues:
        with _told_where(queue):
            later.append((queue, _queue(broker, queue)))
    for topic in namespace.topics:
        with _told_where(topic):
            _topic(broker, topic)
    for (topic_path, name), subscription in namespace.subscriptions.items():
        with _told_where(subscription):
            later.append((subscription, _subscribe(broker, topic_path, name, subscription)))
    for entity, forwards in later:
        if forwards:
            with _told_where(entity):
                broker.update_queue(entity.path, actor=_ACTOR, **forwards)


@contextlib.contextmanager
def _told_where(entity: Emulated) -> Iterator[None]:
    try:
        yield
    except (EntityExists, EntityNotFound, InvalidOption, InvalidPath, NotAllowed) as error:
        raise InvalidOption(f"{entity.place}: {error}") from None


def _split(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return which options are set at once, and which once everything is there."""
    later = {name: value for name, value in options.items() if name in FORWARDS and value is not None}
    return {name: value for name, value in options.items() if name not in later}, later


def _queue(broker: Broker, entity: Emulated) -> dict[str, Any]:
    """Make or change a queue, and return what is to be set later."""
    try:
        description = broker.queue(entity.path)
    except EntityNotFound:
        now, later = _split(entity.options())
        broker.create_queue(entity.path, QueueOptions(**now), actor=_ACTOR)
    else:
        now, later = _split(entity.changes(description.options))
        broker.update_queue(entity.path, actor=_ACTOR, **now)
    return later


def _topic(broker: Broker, entity: Emulated) -> None:
    try:
        description = broker.topic(entity.path)
    except EntityNotFound:
        broker.create_topic(entity.path, TopicOptions(**entity.options()), actor=_ACTOR)
    else:
        broker.update_topic(entity.path, actor=_ACTOR, **entity.changes(description.options))


def _subscribe(broker: Broker, topic: str, name: str, entity: Emulated) -> dict[str, Any]:
    """Make or change a subscription with its rules, and return what is to be set later."""
    try:
        description = broker.subscription(topic, name)
    except EntityNotFound:
        now, later = _split(entity.options())
        broker.create_subscription(topic, name, QueueOptions(**now), entity.rules, actor=_ACTOR)
        return later
    now, later = _split(entity.changes(description.queue.options))
    broker.update_subscription(topic, name, actor=_ACTOR, **now)
    if entity.rules is not None:
        _set_rules(broker, description, entity.rules)
    return later


def _set_rules(broker: Broker, description: SubscriptionDescription, rules: Iterable[Rule]) -> None:
    topic, name = description.topic, description.name
    before = {rule.name.lower(): rule for rule in description.rules}
    for rule in rules:
        old = before.pop(rule.name.lower(), None)
        if old is None:
            broker.add_rule(topic, name, rule, actor=_ACTOR)
        elif old != rule:
            broker.update_rule(topic, name, rule, actor=_ACTOR)
    for surplus in before.values():
        broker.remove_rule(topic, name, surplus.name, actor=_ACTOR)
