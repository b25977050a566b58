"""A process that sends or consumes and journals what it was told, until it is killed, or kills itself."""

from __future__ import annotations

import os
import random
import re
import signal
from typing import Any

import lazaretto
from lazaretto import NEXT_SESSION, Message, MessageLockLost, ReceivedMessage, SessionLockLost

QUEUE = "work"
PAIR = ("left", "right")
SESSIONS = "sessions"
TOPIC, SUBSCRIPTIONS = "events", ("all", "also", "even")
#: Where a subscription forwards to, through a queue; and where another one cannot, because it is closed.
ONWARD, CLOSED = ("passing", "arrived"), "closed"
#: A queue that begins to forward when it has messages, and where to.
BACKLOG = ("backlog", "caught-up")


_SCHEMA = re.compile(r'"\w+"\.')


class Journal:
    """An append-only file of what this process knows; every line is whole, whatever happens."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, kind: str, *values: object) -> None:
        os.write(self._file, (" ".join([kind, *map(str, values)]) + "\n").encode())

    def message(self, kind: str, message: ReceivedMessage) -> None:
        self.write(kind, message.message_id, message.sequence_number, message.attempt)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Fuse:
    """Kills the process at the n-th hit of a named point, before or after the statement there."""

    def __init__(self, point: str, count: int) -> None:
        self._point = point
        self._left = count

    def run(self, statement: Any, sql: str, *values: Any) -> Any:
        plain = _SCHEMA.sub("", sql)
        hit = (sql.endswith("COMMIT") and self._point in ("before_commit", "after_commit")) or (
            "DELETE FROM lazaretto_messages" in plain and self._point == "in_settle"
        )
        # One subscription has its copies, the next one does not.
        hit = hit or (plain.startswith("INSERT INTO lazaretto_messages") and self._point == "in_publish")
        if hit:
            self._left -= 1
        if hit and self._left <= 0 and self._point == "before_commit":
            die()
        answer = statement(sql, *values)
        # Less, where two threads have hit at the same time.
        if hit and self._left <= 0:
            # What was sent ahead is with the server only when it has answered.
            getattr(answer, "rowcount", None)
            die()
        return answer


class DeadlyConnection:
    """Passes statements on, past the fuse."""

    def __init__(self, connection: Any, fuse: Fuse) -> None:
        self._connection = connection
        self._fuse = fuse

    def execute(self, sql: str, *values: Any) -> Any:
        return self._fuse.run(self._connection.execute, sql, *values)

    def script(self, sql: str) -> Any:
        return self._fuse.run(self._connection.script, sql)

    def send(self, sql: str, *values: Any) -> Any:
        return self._fuse.run(self._connection.send, sql, *values)

    def send_encoded(self, sql: str, *values: Any) -> Any:
        return self._fuse.run(self._connection.send_encoded, sql, *values)

    def commit_ahead(self) -> Any:
        def commit(_sql: str) -> Any:
            sent = self._connection.commit_ahead()
            if sent is None:
                # It commits where all is settled.
                self._connection.settle()
            return sent

        return self._fuse.run(commit, "COMMIT")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def arm(broker: lazaretto.Broker, fuse: Fuse) -> None:
    """Make every connection deadly that the broker writes by: its own, and those of transactions with SQL."""
    store: Any = broker._store

    def lay(owner: Any, tx: Any) -> Any:
        if not isinstance(owner._connection, DeadlyConnection):
            # One that comes back from a pool is deadly already.
            owner._connection = DeadlyConnection(owner._connection, fuse)
        tx.context._execute = owner._connection.execute
        return tx

    def exclusive(**named: Any) -> Any:
        found = begin(**named)
        commits = getattr(found, "_commits", None)
        if commits is None:
            lay(found, found._tx)
        else:
            # On a server, what commits is apart from what runs the SQL.
            if not isinstance(commits._connection, DeadlyConnection):
                commits._connection = DeadlyConnection(commits._connection, fuse)
            found._connection = commits._connection
            make = commits._locked
            commits._locked = lambda: lay(commits, make())
        return found

    begin, store.exclusive = store.exclusive, exclusive
    lay(store, store._tx)


def insertion(broker: lazaretto.Broker) -> str:
    """Return the statement that writes a row of one's own."""
    return f"INSERT INTO results (name) VALUES ({'?' if 'sqlite' in broker.facts() else '%s'})"


def send(broker: lazaretto.Broker, journal: Journal, start: int) -> None:
    """Send for ever, alone and in lists; journal the intention and the answer."""
    sender = broker.sender(QUEUE)
    number = start
    while True:
        size = 1 if number % 3 else 4
        names = [f"m{number + i}" for i in range(size)]
        number += size
        messages = [Message(name.encode() * (1 + number % 700), message_id=name) for name in names]
        for name in names:
            journal.write("sending", name)
        sender.send(messages)
        for name in names:
            journal.write("sent", name)


def send_pairs(broker: lazaretto.Broker, journal: Journal, start: int) -> None:
    """Send each message to two queues, and every other one with a row of one's own, in one commit."""
    number = start
    while True:
        number += 1
        name = f"p{number}"
        with broker.transaction() as tx:
            for path in PAIR:
                tx.send(path, Message(b"pair", message_id=name))
            if number % 2:
                tx.execute(insertion(broker), (name,))
            journal.write("sending", name)
        journal.write("sent", name)


def publish(broker: lazaretto.Broker, journal: Journal, start: int) -> None:
    """Publish to a topic, alone and in lists; small bodies and large ones."""
    sender = broker.sender(TOPIC)
    number = start
    while True:
        size = 1 if number % 3 else 4
        names = [f"t{number + i}" for i in range(size)]
        number += size
        for name in names:
            journal.write("sending", name)
        sender.send([
            Message(b"x" * (10 if int(n[1:]) % 2 else 3_000), message_id=n, properties={"n": int(n[1:])})
            for n in names
        ])  # fmt: skip
        for name in names:
            journal.write("sent", name)


def consume(broker: lazaretto.Broker, journal: Journal, die_at: int) -> None:
    """Receive and settle for ever; die between hand-over and settling at the given message."""
    draw = random.Random(os.getpid())
    receiver = broker.receiver(QUEUE)
    handled = 0
    while True:
        for message in receiver.receive(draw.choice((1, 5)), max_wait=0.2):
            journal.message("handed", message)
            handled += 1
            if handled == die_at:
                die()
            chance = draw.random()
            try:
                if chance < 0.1:
                    journal.message("abandoning", message)
                    receiver.abandon(message, error=ValueError("now and then"))
                    journal.message("abandoned", message)
                    continue
                if chance < 0.15:
                    journal.message("burying", message)
                    receiver.dead_letter(message, reason="Buried")
                    journal.message("buried", message)
                    continue
                if chance < 0.2:
                    receiver.renew_lock(message)
                journal.message("completing", message)
                receiver.complete(message)
                journal.message("completed", message)
            except MessageLockLost:
                # The machine was slow; whoever holds it now settles it.
                journal.message("lost", message)


def consume_with_sql(broker: lazaretto.Broker, journal: Journal, die_at: int) -> None:
    """Receive and write a row of one's own in the same commit; a second row for a message is an error."""
    handled = 0
    while True:
        messages: list[ReceivedMessage] = []
        try:
            with broker.transaction() as tx:
                messages = tx.receive(QUEUE, 3, max_wait=0.2)
                for message in messages:
                    journal.message("handed", message)
                    handled += 1
                    if handled == die_at:
                        die()
                for message in messages:
                    tx.execute(insertion(broker), (message.message_id,))
                    journal.message("completing", message)
        except MessageLockLost:
            # One lost is all undone: what was still held has failed.
            for message in messages:
                journal.message("lost", message)
            continue
        for message in messages:
            journal.message("completed", message)
            journal.message("written", message)


def consume_sessions(broker: lazaretto.Broker, journal: Journal, die_at: int) -> None:
    """Go from session to session, completing a few messages of each, one by one."""
    handled = 0
    while True:
        try:
            with broker.receiver(SESSIONS, session=NEXT_SESSION) as receiver:
                for message in receiver.receive(3, max_wait=0.2):
                    journal.message("handed", message)
                    handled += 1
                    if handled == die_at:
                        die()
                    journal.message("completing", message)
                    receiver.complete(message)
                    journal.message("completed", message)
        except SessionLockLost:
            continue


def talk(broker: lazaretto.Broker, journal: Journal, die_at: int) -> None:
    """Begin dialogs and send on them, in two commits each, and read the ends."""
    while True:
        with broker.dialogs.transaction() as work:
            handle = work.begin_dialog("Front", "Shop")
            for number in range(1, 4):
                work.send(handle, body=b"%d" % number)
            journal.write("sending", handle)
        with broker.dialogs.transaction() as work:
            work.send(handle, body=b"4")
            work.send(handle, body=b"last")
        journal.write("sent", handle)
        with broker.dialogs.transaction("front") as work:
            work.receive(max_messages=20)
        journal.write("completed", handle)


def listen(broker: lazaretto.Broker, journal: Journal, die_at: int) -> None:
    """Write down what the dialogs say, in the commit that receives it; end them after the last."""
    handled = 0
    sql = "INSERT INTO heard (conversation, number) VALUES (?, ?)"
    if "sqlite" not in broker.facts():
        sql = sql.replace("?", "%s")
    while True:
        try:
            with broker.dialogs.transaction("shop") as work:
                messages = work.receive(max_messages=3, max_wait=0.2)
                handled += 1
                if handled == die_at:
                    die()
                for message in messages:
                    work.execute(sql, (message.conversation, message.number))
                    if message.body == b"last":
                        work.end(message.conversation)
            journal.write("heard", len(messages))
        except (MessageLockLost, SessionLockLost):
            journal.write("lost")


def pass_on(broker: lazaretto.Broker, journal: Journal, die_at: int) -> None:
    """Let what waits in a forwarding queue go on, for ever."""
    receiver = broker.receiver(PAIR[0])
    while True:
        receiver.receive(max_wait=0.01)
        journal.write("swept")


ROLES = {
    "listen": listen,
    "pass_on": pass_on,
    "talk": talk,
    "send": send,
    "send_pairs": send_pairs,
    "publish": publish,
    "consume": consume,
    "consume_with_sql": consume_with_sql,
    "consume_sessions": consume_sessions,
}


def main(role: str, store: str, journal_path: str, point: str, count: int, start: int) -> None:
    """Do a role's work until killed."""
    journal = Journal(journal_path)
    broker = lazaretto.connect(store)
    if point in ("before_commit", "after_commit", "in_settle", "in_publish"):
        arm(broker, Fuse(point, count))
    die_at = count if point == "in_handler" else 0
    journal.write("ready", os.getpid())
    ROLES[role](broker, journal, start if role in ("send", "send_pairs", "publish") else die_at)
