"""A model of where messages go: entities that forward to one another, in plain Python."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator

from .records import Refused

MOST_HOPS = 4
HOPS = "MaxTransferHopCountExceeded"
MISSING = "MessagingEntityNotFound"
OFF = "MessagingEntityDisabled"
UNWANTED = "NoMatchingSubscription"

TAKES = {"active": True, "disabled": False, "send_disabled": False, "receive_disabled": True}
GIVES = {"active": True, "disabled": False, "send_disabled": True, "receive_disabled": False}


@dataclasses.dataclass
class One:
    """A message: `number`: in the entity where it is; `came_from`: where it was submitted.

    `set_aside`: it was a dead letter before, and is never dropped.
    """

    body: bytes
    number: int = 0
    came_from: int | None = None
    hops: int = 0
    at: int | None = None
    reason: str | None = None
    id: str = ""
    set_aside: bool = False

    def afresh(self, number: int = 0, came_from: int | None = None, *, set_aside: bool = False) -> One:
        """Return the same message under another number, as it goes on from where it is."""
        return One(self.body, number, came_from, id=self.id, set_aside=self.set_aside or set_aside)


@dataclasses.dataclass
class Entity:
    """A queue, a subscription or a topic. `unique`: it detects duplicates; `known`: the ids sent to it."""

    path: str
    forward_to: str | None = None
    forward_dead: str | None = None
    status: str = "active"
    topic: bool = False
    unique: bool = False
    known: dict[str, int] = dataclasses.field(default_factory=dict)
    last: int = 0
    unmatched: int = 0
    here: list[One] = dataclasses.field(default_factory=list)
    dead: list[One] = dataclasses.field(default_factory=list)
    transfer: list[One] = dataclasses.field(default_factory=list)

    @property
    def forwards(self) -> bool:
        return self.forward_to is not None and GIVES[self.status]

    def next(self) -> int:
        self.last += 1
        return self.last


@dataclasses.dataclass
class _Way:
    """A message on its way: `home`: its number in the entity that it set out from."""

    one: One
    origin: int
    hops: int
    home: tuple[str, int] | None = None


class Ways:
    """All entities. `wants` says which messages a subscription gets."""

    def __init__(self, now: int, wants: dict[str, Callable[[bytes], bool]]) -> None:
        self.now = now
        self.entities: dict[str, Entity] = {}
        self.wants = wants
        self._rested: list[tuple[Entity, _Way]] = []
        self._troubled: list[tuple[Entity, _Way, str, bool]] = []

    # -- entities -------------------------------------------------------------------------------

    def _require(self, path: str) -> Entity:
        if path not in self.entities:
            raise Refused("EntityNotFound")
        return self.entities[path]

    def subscriptions(self, topic: str) -> list[Entity]:
        return [e for p, e in sorted(self.entities.items()) if p.startswith(f"{topic}/subscriptions/")]

    def _ends(self, path: str) -> Iterator[str]:
        """Yield all that a message for an entity may go on to."""
        entity = self.entities.get(path)
        if entity is None:
            return
        for each in self.subscriptions(path) if entity.topic else [entity]:
            yield each.path
            if each.forward_to is not None:
                yield each.forward_to

    def _passed(self, start: str) -> set[str]:
        """Return all that a message for an entity may pass through."""
        passed: set[str] = set()
        left = [start]
        while left:
            path = left.pop()
            if path not in passed:
                passed.add(path)
                left += self._ends(path)
        return passed

    def create(
        self,
        path: str,
        forward_to: str | None,
        forward_dead: str | None,
        *,
        topic: bool = False,
        unique: bool = False,
    ) -> None:
        if path in self.entities:
            raise Refused("EntityExists")
        if "/subscriptions/" in path:
            self._require(path.partition("/")[0])
        self._check(path, forward_to, forward_dead, unique=unique)
        self.entities[path] = Entity(path, forward_to, forward_dead, topic=topic, unique=unique)

    def _check(self, path: str, forward_to: str | None, forward_dead: str | None, *, unique: bool) -> None:
        for destination in (forward_to, forward_dead):
            if destination is not None and destination not in self.entities and destination != path:
                raise Refused("EntityNotFound")
        own = {path, path.partition("/subscriptions/")[0]}
        behind = set[str]() if forward_to is None else self._passed(forward_to)
        if not behind & own:
            return
        # A circle ends by its hops, unless its messages would be dropped as duplicates of themselves.
        for key in behind | own:
            detects = self.entities[key].unique if key in self.entities else unique
            if detects and (key in own or self._passed(key) & own):
                raise Refused("InvalidOption")

    def delete(self, path: str) -> None:
        self._require(path)
        for entity in [*self.subscriptions(path), self.entities[path]]:
            del self.entities[entity.path]

    def update(self, path: str, forward_to: str | None, forward_dead: str | None) -> None:
        entity = self._require(path)
        self._check(path, forward_to, forward_dead, unique=entity.unique)
        entity.forward_to, entity.forward_dead = forward_to, forward_dead

    def set_status(self, path: str, status: str) -> None:
        entity = self._require(path)
        if status == ("receive_disabled" if entity.topic else "send_disabled" if "/" in path else ""):
            raise Refused("InvalidOption")
        entity.status = status

    # -- messages -------------------------------------------------------------------------------

    def send(
        self,
        path: str,
        bodies: list[bytes],
        ids: list[str],
        *,
        via: str | None = None,
        at: int | None = None,
    ) -> list[int]:
        """Send to an entity, or through one; return the numbers there."""
        entity = self._require(via or path)
        if not TAKES[entity.status]:
            raise Refused("QueueDisabled")
        if "/" in entity.path:
            raise Refused("NotAllowed")
        if entity.topic and via is not None:
            raise Refused("NotAllowed")
        numbers = []
        for body, id_ in zip(bodies, ids, strict=True):
            if entity.unique and id_ in entity.known:
                numbers.append(entity.known[id_])
                continue
            number = entity.next()
            numbers.append(number)
            if at is not None and at > self.now:
                entity.here.append(One(body, number, at=at, id=id_))
            else:
                way = _Way(One(body, id=id_), number, 0, (entity.path, number))
                if via is not None:
                    self._forward(entity, path, way)
                else:
                    self._enter(entity, way)
            if entity.unique:
                # Each is looked for by itself.
                self._commit()
                entity.known[id_] = number
        self._commit()
        return numbers

    def _enter(self, entity: Entity, way: _Way) -> None:
        if entity.topic:
            wanted = [s for s in self.subscriptions(entity.path) if self.wants[s.path](way.one.body)]
            entity.unmatched += not wanted
            for each in wanted:
                self._enter(each, dataclasses.replace(way, one=copy.copy(way.one)))
        elif entity.forwards:
            assert entity.forward_to is not None
            self._forward(entity, entity.forward_to, way)
        else:
            self._rested.append((entity, way))

    def _find_obstacle(self, destination: str, one: One) -> str | None:
        found = self.entities.get(destination)
        if found is None:
            return MISSING
        if not TAKES[found.status]:
            return OFF
        wanted = not found.topic or any(self.wants[s.path](one.body) for s in self.subscriptions(destination))
        return UNWANTED if one.set_aside and not wanted else None

    def _forward(self, entity: Entity, destination: str, way: _Way) -> None:
        reason = HOPS if way.hops >= MOST_HOPS else self._find_obstacle(destination, way.one)
        if reason is not None:
            self._troubled.append((entity, way, reason, reason != HOPS))
            return
        found = self.entities[destination]
        if found.unique and not way.one.set_aside:
            if way.one.id in found.known:
                return
            found.known[way.one.id] = way.origin
        self._enter(found, dataclasses.replace(way, hops=way.hops + 1, home=None))

    def _commit(self) -> None:
        """Give numbers: first to what came to rest, then to what is set aside."""
        for entity, way in self._rested:
            self._place(entity, way, entity.here)
        for entity, way, reason, transfer in self._troubled:
            way.one.reason = reason
            self._place(entity, way, entity.transfer if transfer else entity.dead)
        self._rested.clear()
        self._troubled.clear()

    def _place(self, entity: Entity, way: _Way, part: list[One]) -> None:
        at_home = way.home is not None and way.home[0] == entity.path
        number = way.home[1] if way.home is not None and at_home else entity.next()
        came_from = None if at_home and way.origin == number else way.origin
        part.append(dataclasses.replace(way.one, number=number, came_from=came_from, hops=way.hops))
        part.sort(key=lambda one: one.number)

    # -- what becomes of messages ---------------------------------------------------------------

    def receivable(self, path: str) -> list[One]:
        entity = self._require(path)
        if entity.topic or entity.forward_to is not None:
            raise Refused("NotAllowed")
        if entity.status in ("disabled", "receive_disabled"):
            raise Refused("QueueDisabled")
        return [one for one in entity.here if one.at is None]

    def bury(self, path: str, one: One) -> None:
        """Dead-letter a message, and forward it if its entity says so."""
        entity = self.entities[path]
        entity.here.remove(one)
        one.reason = "bad"
        if entity.forward_dead is None or one.hops >= MOST_HOPS:
            self._sorted(entity.dead, one)
            return
        dead = one.afresh(set_aside=True)
        reason = self._find_obstacle(entity.forward_dead, dead)
        if reason is not None:
            one.reason = reason
            self._sorted(entity.transfer, one)
            return
        way = _Way(dead, one.came_from or one.number, one.hops)
        self._forward(entity, entity.forward_dead, way)
        self._commit()

    @staticmethod
    def _sorted(part: list[One], one: One) -> None:
        part.append(one)
        part.sort(key=lambda each: each.number)

    def resubmit(self, path: str, *, transfer: bool) -> list[int]:
        """Send all dead letters of one kind back; return their numbers."""
        entity = self._require(path)
        part = entity.transfer if transfer else entity.dead
        if not part:
            return []
        if not TAKES[entity.status]:
            raise Refused("QueueDisabled")
        found = part.copy()
        part.clear()
        # Each has its number before the first is forwarded, perhaps to where it comes from.
        for one, number in [(one, entity.next()) for one in found]:
            back = one.afresh(number, one.number, set_aside=True)
            if entity.forwards:
                self._enter(entity, _Way(back, one.number, 0, (path, number)))
                self._commit()
            else:
                entity.here.append(back)
        return [one.number for one in found]

    def pass_time(self) -> None:
        """Do what is due: what is scheduled becomes active, and what waits to be forwarded goes on."""
        while self._schedules_due() or self._backlog():
            pass

    def _schedules_due(self) -> bool:
        due = [(one.at, place, one.number, entity, one) for place, entity in enumerate(self.entities.values())
               for one in entity.here if one.at is not None and one.at <= self.now]  # fmt: skip
        for _, _, _, entity, one in sorted(due, key=lambda d: d[:3]):
            entity.here.remove(one)
            number = entity.next()
            if entity.topic or entity.forwards:
                self._enter(entity, _Way(one.afresh(), number, 0, (entity.path, number)))
                self._commit()
            else:
                entity.here.append(one.afresh(number, one.number))
        return bool(due)

    def _backlog(self) -> bool:
        for entity in self.entities.values():
            waiting = [one for one in entity.here if one.at is None] if entity.forwards else []
            for one in waiting:
                entity.here.remove(one)
                way = _Way(one.afresh(), one.came_from or one.number, one.hops, (entity.path, one.number))
                self._enter(entity, way)
                self._commit()
            if waiting:
                return True
        return False
