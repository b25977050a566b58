"""The commands that queues, topics and subscriptions share: create, list, show, update, delete."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple

import msgspec

from lazaretto.broker.broker import Broker
from lazaretto.cli import output
from lazaretto.cli.call import CallOptions, Change, ChangeOptions, ListingOptions, YesOption, confirm_deletion
from lazaretto.cli.command import Group, Options, argument, option
from lazaretto.cli.completion import names_of_subscriptions, names_of_topics
from lazaretto.cli.exits import usage
from lazaretto.cli.output import Columns, Facts
from lazaretto.cli.queue_options import parts_of_given
from lazaretto.commands import Command
from lazaretto.errors import EntityExists
from lazaretto.model.entities import EntityPath

TopicArgument = Annotated[str, argument("Path of the topic.", complete=names_of_topics)]
SubscriptionArgument = Annotated[
    str, argument("Name of the subscription.", "SUBSCRIPTION", complete=names_of_subscriptions)
]
ExistOption = Annotated[bool, option("Leave what exists with the same options as it is, without an error.")]
_DURATIONS = "Durations are 30, 30s, 5m, 2h or 1d."

#: What names one entity to the broker: a path, or a topic and a name.
Key = tuple[str, ...]


def key_of(**arguments: Any) -> Options:
    """Return the arguments that name an entity, as one parameter: their values."""
    declared = {name: (annotation, ...) for name, annotation in arguments.items()}
    return Options(declared, lambda context, given: tuple(given.values()))


class Texts(NamedTuple):
    """What the help says of the commands of one kind."""

    create: str
    list: str
    show: str
    delete: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Entity:
    """One kind of entity: how it is named, described and changed."""

    noun: str
    texts: Texts
    #: The arguments that name one, and those that name what all of a listing belong to.
    key: Options
    within: Options = dataclasses.field(default_factory=key_of)
    #: The options to create one and to change one.
    settings: Options
    changes: Options
    #: Whether creating one creates the store.
    creates_store: bool = True
    columns: Columns
    shortened: str | None = None
    #: Its path and its options, of its description.
    path: Callable[[Any], str]
    options: Callable[[Any], Any]
    #: The titles and facts that are shown of it.
    sections: Callable[[Any], list[tuple[str, Facts]]]
    #: What is deleted along with it.
    losses: Callable[[Any], str]
    # The broker's verbs.
    find: Callable[..., Any]
    find_all: Callable[..., Any]
    #: The changes, of what names one; creation of what was given too, an update of options as JSON.
    create: Callable[[Key, Mapping[str, Any]], Command]
    update: Callable[[Key, dict[str, Any]], Command]
    delete: Callable[[Key], Command]


def create_or_find(call: Change, broker: Broker, command: Any, exist_ok: bool) -> Any:
    """Create something; return the answer, None if it exists. Raises EntityExists, if it is another one."""
    try:
        return call.run(broker, command)
    except EntityExists:
        if not exist_ok:
            raise
        # It changes nothing, so that there is no answer to keep for a second run.
        broker.run(msgspec.structs.replace(command, exist_ok=True), actor=call.actor)
        return None


def add_entity(group: Group, entity: Entity) -> None:
    """Add the commands for one kind of entity to its group."""
    noun = entity.noun

    @group.command(
        "create", f"{entity.texts.create}\n\n{_DURATIONS}", key=entity.key, options=entity.settings
    )
    def create(call: ChangeOptions, key: Key, options: dict[str, Any], exist_ok: ExistOption = False) -> None:
        command = entity.create(key, options)
        # What is wrong with the path is said before a store is made for it.
        EntityPath.parse(key[0])
        with call.broker(create=entity.creates_store) as broker:
            answer = create_or_find(call, broker, command, exist_ok)
            if call.idempotency_key is not None and answer is not None:
                # It may have been created long ago, and be gone.
                path = str(command.entity())
                call.print(answer, f"created {noun} {path}")
                return
            created = entity.find(broker, *key)
        path = entity.path(created)
        new = answer is not None
        call.print(created, f"created {noun} {path}" if new else f"{noun} {path} exists already")

    @group.command("list", entity.texts.list, key=entity.within)
    def list_(call: ListingOptions, key: Key) -> None:
        with call.broker() as broker:
            descriptions = entity.find_all(broker, *key)
        call.print_all(descriptions, entity.columns, f"no {noun}s", shortened=entity.shortened)

    @group.command("show", entity.texts.show, key=entity.key)
    def show(call: CallOptions, key: Key) -> None:
        with call.broker() as broker:
            descriptions = entity.find(broker, *key)

        def facts() -> None:
            output.line(f"{noun} {entity.path(descriptions)}")
            for title, pairs in entity.sections(descriptions):
                if title:
                    output.line(title)
                output.fields(pairs, "  ")

        call.print(descriptions, facts)

    @group.command(
        "update",
        f"Change options of a {noun}.\n\n"
        f'Options that are not given keep their values; "none" removes one. {_DURATIONS}',
        key=entity.key,
        options=entity.changes,
    )
    def update(call: ChangeOptions, key: Key, options: dict[str, Any]) -> None:
        if not options:
            raise usage(f"nothing to change; give at least one option, see `lazaretto {noun} update --help`")
        change = entity.update(key, parts_of_given(options))
        with call.broker() as broker:
            if call.idempotency_key is not None:
                # It may have been changed long ago, and be gone.
                answer = call.run(broker, change)
                call.print(answer, f"changed {noun} {answer['path']}")
                return
            before = entity.options(entity.find(broker, *key))
            call.run(broker, change)
            after = entity.find(broker, *key)
        now = entity.options(after)
        names = [f.name for f in dataclasses.fields(now) if getattr(before, f.name) != getattr(now, f.name)]
        what = ", ".join(names) or "nothing (already set)"
        call.print(after, f"changed in {noun} {entity.path(after)}: {what}")

    @group.command(
        "delete", f"{entity.texts.delete}\n\nIt asks first, unless --yes is given.", key=entity.key
    )
    def delete(call: ChangeOptions, key: Key, yes: YesOption = False) -> None:
        with call.broker() as broker:
            command = entity.delete(key)
            path = str(command.entity())
            if call.idempotency_key is None or not yes:
                descriptions = entity.find(broker, *key)
                path = entity.path(descriptions)
                confirm_deletion(f"{noun} {path} with {entity.losses(descriptions)}", yes)
            call.run(broker, command)
        call.print({"deleted": path}, f"deleted {noun} {path}")


def messages_of(counts: Any) -> str:
    """Return how many messages and dead letters a queue has, as its deletion names them."""
    dead = counts.dead_letter + counts.transfer_dead_letter
    return f"{output.plural(counts.total - dead, 'message')} and {output.plural(dead, 'dead letter')}"
