"""Qpid Proton, the reference client of AMQP 1.0, unchanged, at the door."""

from __future__ import annotations

import pytest

pytest.importorskip("proton", reason="Proton has a wheel for Python 3.11 only, and is compiled for others")

from door.proton_peer import Moves
from door.served import Served
from lazaretto import Broker, Message

pytestmark = pytest.mark.stores("sqlite")


class TestTransactions:
    @pytest.fixture(autouse=True)
    def ways(self, broker: Broker) -> None:
        for name in ("in", "out"):
            broker.create_queue(name)
        broker.sender("in").send(Message(b"job"))

    def test_one_that_commits(self, served: Served, broker: Broker) -> None:
        moves = Moves(served.port, "in", [("out", "a"), ("out", "b"), ("q", "c")], commits=True)
        moves.run()
        assert moves.ended == "committed"
        assert [message.body for message in broker.peek("out", 5)] == [b"a", b"b"]
        assert [message.body for message in broker.peek("q", 5)] == [b"c"]
        assert broker.queue("in").counts.total == 0

    def test_one_that_aborts(self, served: Served, broker: Broker) -> None:
        moves = Moves(served.port, "in", [("out", "a")], commits=False)
        moves.run()
        assert moves.ended == "aborted"
        assert broker.peek("out") == []
        counts = broker.queue("in").counts
        assert (counts.total, counts.locked) == (1, 1)

    def test_one_that_cannot_commit(self, served: Served, broker: Broker) -> None:
        broker.set_status("q", "send_disabled")
        moves = Moves(served.port, "in", [("out", "a"), ("q", "refused")], commits=True)
        moves.run()
        assert moves.ended == "failed"
        assert broker.peek("out") == broker.peek("q") == []
        assert broker.queue("in").counts.total == 1
