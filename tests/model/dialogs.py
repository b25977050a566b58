"""What two services may do to each other, and a small model of what comes of it."""

from __future__ import annotations

import dataclasses
import random
import uuid
from unittest import mock

import hypothesis.strategies as st
from hypothesis import note
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import lazaretto
from lazaretto import Broker, ManualClock
from lazaretto.dialogs import DialogMessage
from lazaretto.errors import ConversationError, ConversationNotFound
from lazaretto.model.conversations import DIALOG_TIMER, END_DIALOG, ERROR

QUEUES = {"i": "front", "t": "shop"}
SO, CO, DI, DO, ER = (
    "started_outbound",
    "conversing",
    "disconnected_inbound",
    "disconnected_outbound",
    "error",
)
#: Failures after which the verdict falls: a conversation of the shop is held, one of the front is ended.
FAILURES = 2


class Failed(Exception):
    """A reader's error."""


@dataclasses.dataclass
class End:
    """One end of a dialog as it should be. Its streams hold what waits: type and body."""

    handle: str
    state: str
    sent: int = 0
    timer: bool = False
    timers: list[tuple[str, bytes]] = dataclasses.field(default_factory=list)
    errors: list[tuple[str, bytes]] = dataclasses.field(default_factory=list)
    messages: list[tuple[str, bytes]] = dataclasses.field(default_factory=list)
    #: How often the first of a stream has failed, and which streams are held.
    failures: dict[str, int] = dataclasses.field(default_factory=dict)
    held: set[str] = dataclasses.field(default_factory=set)

    def waiting(self) -> list[tuple[str, str, bytes]]:
        """Return what can be received now, in order: stream, type, body."""
        streams = {"timers": self.timers, "errors": self.errors, "messages": self.messages}
        return [(stream, *one) for stream, ones in streams.items() if stream not in self.held for one in ones]

    def stream(self, name: str) -> list[tuple[str, bytes]]:
        found: list[tuple[str, bytes]] = getattr(self, name)
        return found


class Model:
    """All ends of all dialogs, by handle."""

    def __init__(self) -> None:
        self.ends: dict[str, End] = {}
        self.dead = 0

    def far(self, handle: str) -> str:
        return f"{handle[:-1]}{'t' if handle.endswith('i') else 'i'}"

    def send(self, handle: str, body: bytes) -> bool:
        end = self.ends.get(handle)
        if end is None or end.state not in (SO, CO):
            return False
        end.state = CO
        far = self.ends.setdefault(self.far(handle), End(self.far(handle), CO))
        far.messages.append(("DEFAULT", body))
        end.sent += 1
        return True

    def end(self, handle: str, error: bool, *, aside: bool = False) -> bool:
        end = self.ends.get(handle)
        if end is None or end.state == DO:
            return False
        if aside:
            self.dead += sum(type_ == "DEFAULT" for type_, _ in end.messages)
        far = self.ends.get(self.far(handle))
        if far is None or far.state == DO:
            self.ends.pop(handle)
            self.ends.pop(self.far(handle), None)
            return True
        self.ends[handle] = End(handle, DO, end.sent)
        if far.state == ER:
            return True
        far.state = ER if error else DI
        (far.errors if error else far.messages).append((ERROR if error else END_DIALOG, b""))
        return True

    def completed(self, handle: str, received: list[tuple[str, str, bytes]]) -> None:
        end = self.ends[handle]
        for stream, *_ in received:
            end.stream(stream).pop(0)
            end.failures.pop(stream, None)
        for _, type_, _ in received:
            self.heard(handle, type_)

    def heard(self, handle: str, type_: str) -> None:
        """A message was dealt with: the last word of the far end ends a conversation."""
        end = self.ends.get(handle)
        if end is None or end.state == DO:
            return
        if type_ == END_DIALOG:
            self.end(handle, error=False)
        elif type_ == ERROR:
            if not end.messages:
                self.end(handle, error=False)
            elif end.messages[-1][0] != END_DIALOG:
                end.messages.append((END_DIALOG, b""))

    def failed(self, handle: str) -> None:
        """The first message that could be received of an end has failed."""
        end = self.ends[handle]
        stream, type_, _ = end.waiting()[0]
        end.failures[stream] = end.failures.get(stream, 0) + 1
        if end.failures[stream] < FAILURES:
            return
        if handle.endswith("t"):
            end.held.add(stream)
            return
        end.stream(stream).pop(0)
        del end.failures[stream]
        self.dead += 1
        self.end(handle, error=True, aside=True)
        assert type_

    def resumed(self, handle: str, stream: str, verdict: str) -> None:
        """An operator has decided on what holds a stream."""
        end = self.ends[handle]
        end.held.discard(stream)
        end.failures.pop(stream, None)
        if verdict == "move":
            self.dead += 1
            type_, _ = end.stream(stream).pop(0)
            self.heard(handle, type_)


class DialogMachine(RuleBasedStateMachine):
    """Does to a broker what it does to the model, and compares."""

    url: str
    steps = 0
    restarts = True

    def __init__(self) -> None:
        super().__init__()
        # The next group is looked for by name: names that are the same each time let a run be repeated.
        draw = random.Random(5)
        self.ids = mock.patch("uuid.uuid4", lambda: uuid.UUID(int=draw.getrandbits(128)))
        self.ids.start()
        self.clock = ManualClock()
        self.broker: Broker = lazaretto.connect(self.fresh(), clock=self.clock)
        self.model = Model()
        self.number = 0
        self.received: dict[str, list[int]] = {}
        dialogs = self.broker.dialogs
        dialogs.create_service("Front", "front", poison="end", failures=FAILURES)
        dialogs.create_service("Shop", "shop", ["DEFAULT"], failures=FAILURES)

    def fresh(self) -> str:
        """Return the URL of an empty store."""
        raise NotImplementedError

    def teardown(self) -> None:
        self.broker.close()
        self.ids.stop()

    def _body(self) -> bytes:
        self.number += 1
        return b"%d" % self.number

    def _pick(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.model.ends)))

    @rule(count=st.integers(0, 3))
    def begin(self, count: int) -> None:
        type(self).steps += 1
        bodies = [self._body() for _ in range(count)]
        with self.broker.dialogs.transaction() as work:
            handle = work.begin_dialog("Front", "Shop")
            for body in bodies:
                work.send(handle, body=body)
        self.model.ends[handle] = End(handle, SO)
        for body in bodies:
            assert self.model.send(handle, body)

    @precondition(lambda self: self.model.ends)
    @rule(data=st.data(), count=st.integers(1, 3))
    def send(self, data: st.DataObject, count: int) -> None:
        type(self).steps += 1
        handle = self._pick(data)
        bodies = [self._body() for _ in range(count)]
        try:
            with self.broker.dialogs.transaction() as work:
                for body in bodies:
                    work.send(handle, body=body)
        except ConversationError:
            assert not self.model.send(handle, b"")
            return
        assert all(self.model.send(handle, body) for body in bodies)

    @rule(side=st.sampled_from("it"), most=st.integers(1, 4), answer=st.booleans())
    def receive(self, side: str, most: int, answer: bool) -> None:
        type(self).steps += 1
        with self.broker.dialogs.transaction(QUEUES[side]) as work:
            messages = work.receive(max_messages=most)
            handle = self._check(side, messages, most)
            end = self.model.ends.get(handle)
            answered = answer and end is not None and end.state == CO
            body = self._body()
            if answered:
                work.send(handle, body=body)
        if messages:
            self._note(handle, messages)
            self.model.completed(handle, self.model.ends[handle].waiting()[: len(messages)])
        if answered:
            assert self.model.send(handle, body)

    def _check(self, side: str, messages: list[DialogMessage], most: int) -> str:
        """Compare what was received with what could have been; return whose it was."""
        mine = {h: e for h, e in self.model.ends.items() if h.endswith(side)}
        if not messages:
            assert not any(end.waiting() for end in mine.values())
            return ""
        (handle,) = {m.conversation for m in messages}
        expected = [(type_, body) for _, type_, body in mine[handle].waiting()[:most]]
        found = [(m.type, b"" if m.is_error else m.body) for m in messages]
        note(f"received {found}")
        assert found == expected
        return handle

    def _note(self, handle: str, messages: list[DialogMessage]) -> None:
        numbers = self.received.setdefault(handle, [])
        for message in messages:
            if message.type == "DEFAULT":
                number = int(message.body)
                assert not numbers or number > numbers[-1], "out of order, or twice"
                numbers.append(number)

    @rule(side=st.sampled_from("it"))
    def fail(self, side: str) -> None:
        type(self).steps += 1
        messages: list[DialogMessage] = []
        try:
            with self.broker.dialogs.transaction(QUEUES[side]) as work:
                messages = work.receive()
                raise Failed
        except Failed:
            handle = self._check(side, messages, 1)
        if messages:
            self.model.failed(handle)

    @precondition(lambda self: self.model.ends)
    @rule(data=st.data(), error=st.booleans())
    def end(self, data: st.DataObject, error: bool) -> None:
        type(self).steps += 1
        handle = self._pick(data)
        try:
            self.broker.dialogs.end(handle, error=(1, "x") if error else None)
        except (ConversationError, ConversationNotFound):
            assert not self.model.end(handle, error)
        else:
            assert self.model.end(handle, error)

    @precondition(lambda self: self.model.ends)
    @rule(data=st.data())
    def set_timer(self, data: st.DataObject) -> None:
        type(self).steps += 1
        handle = self._pick(data)
        try:
            with self.broker.dialogs.transaction() as work:
                work.set_timer(handle, 10.0)
        except ConversationError:
            assert self.model.ends[handle].state == DO
            return
        assert self.model.ends[handle].state != DO
        self.model.ends[handle].timer = True

    @rule()
    def time_passes(self) -> None:
        type(self).steps += 1
        self.clock.advance(11)
        for end in self.model.ends.values():
            if end.timer:
                end.timer = False
                end.timers.append((DIALOG_TIMER, b""))

    @precondition(lambda self: any(e.held for e in self.model.ends.values()))
    @rule(data=st.data(), verdict=st.sampled_from(["retry", "move", "end"]))
    def resume(self, data: st.DataObject, verdict: str) -> None:
        type(self).steps += 1
        handle = data.draw(st.sampled_from(sorted(h for h, e in self.model.ends.items() if e.held)))
        end = self.model.ends[handle]
        streams = [name for name in ("timers", "errors", "messages") if name in end.held]
        self.broker.dialogs.resume(handle, verdict)
        if verdict == "end":
            self.model.end(handle, error=True, aside=True)
            return
        for name in streams:
            if handle in self.model.ends:
                self.model.resumed(handle, name, verdict)

    @precondition(lambda self: self.restarts)
    @rule()
    def restart(self) -> None:
        type(self).steps += 1
        self.broker.close()
        self.broker = lazaretto.connect(self.url, clock=self.clock)

    @invariant()
    def the_same_conversations(self) -> None:
        found = {c.conversation: c for c in self.broker.dialogs.conversations()}
        assert {h: c.state.value for h, c in found.items()} == {
            h: e.state for h, e in self.model.ends.items()
        }
        for handle, end in self.model.ends.items():
            waiting = len(end.timers) + len(end.errors) + len(end.messages) + end.timer
            assert sum(found[handle].messages.values()) == waiting
            assert found[handle].sent == end.sent
            assert (found[handle].held is not None) is bool(end.held)

    @invariant()
    def nothing_else_is_left(self) -> None:
        queues = [self.broker.queue(path) for path in QUEUES.values()]
        assert sum(q.counts.dead_letter for q in queues) == self.model.dead
        with self.broker.transaction() as tx:
            logs = {name for (name,) in tx.execute("SELECT dialog_id FROM lazaretto_dialog_log").fetchall()}
        assert logs == {handle[:32] for handle in self.model.ends}
        total = sum(q.counts.total - q.counts.dead_letter for q in queues)
        assert total == sum(sum(c.messages.values()) for c in self.broker.dialogs.conversations())
