"""The arithmetic of windows and credit, beside a model that counts without end."""

from __future__ import annotations

import itertools

import pytest
from peers import begun_server, opened_server, said

from lazaretto.servicebus.amqp import Connection, Link
from lazaretto.servicebus.amqp.composites import Composite
from lazaretto.servicebus.amqp.events import LinkAttached
from lazaretto.servicebus.amqp.frames import frame
from lazaretto.servicebus.amqp.performatives import Attach, Begin, Flow, Source, Target, Transfer
from lazaretto.servicebus.amqp.windows import Windows

END = 1 << 32
EDGES = (0, 1, (1 << 31) - 1, 1 << 31, END - 1)
BODY = b"\x00\x53\x75\xa0\x05hello"
RECEIVES = Attach("r", 0, True, source=Source("q"), target=Target("here"))
SENDS = Attach("s", 0, False, source=Source("here"), target=Target("q"), initial_delivery_count=0)


def wire(count: int) -> int:
    """Return a number that counts without end as it is written."""
    return count % END


def left(windows: Windows, most: int) -> int:
    """Return how many frames may be sent, at most some."""
    return next((at for at in range(most) if not windows.take()), most)


@pytest.mark.parametrize("first", [*EDGES, END - 2])
def test_what_a_peer_has_room_for(first: int) -> None:
    for room, sent, behind in itertools.product((*EDGES, 2, 5), range(4), range(4)):
        if behind > sent:
            continue
        windows = Windows(100, first)
        windows.take_begin(Begin(None, 7, sent, 9))
        assert left(windows, 9) == sent
        windows.take_flow(Flow(wire(first + sent - behind), room, 0, 9))
        # The peer has room for so many behind those that it knows of, and some are on their way.
        assert left(windows, 9) == min(max(0, room - behind), 9)


@pytest.mark.parametrize("room", EDGES)
def test_what_a_peer_has_room_for_when_it_begins(room: int) -> None:
    windows = Windows(100)
    windows.take_begin(Begin(None, 1, room, 9))
    assert left(windows, 9) == min(room, 9)
    unseen = Windows(100, END - 1)
    unseen.take_begin(Begin(None, 1, 3, 9))
    assert left(unseen, 2) == 2
    # Before it knows of the begin, a peer leaves the number out: it counts from the first.
    unseen.take_flow(Flow(None, room, 0, 9))
    assert left(unseen, 9) == min(max(0, room - 2), 9)


@pytest.mark.parametrize("first", [*EDGES, END - 2])
def test_frames_that_come_are_counted(first: int) -> None:
    windows = Windows(10)
    windows.take_begin(Begin(None, first, 1, END - 1))
    for _ in range(3):
        windows.count_received()
    assert windows.flow().next_incoming_id == wire(first + 3)


def attached(server: Connection, attach: Attach) -> Link:
    (event,) = server.receive(frame(0, attach))
    assert isinstance(event, LinkAttached)
    event.link.session.accept(event.link)
    server.take()
    return event.link


def flow(**fields: int | bool) -> bytes:
    return frame(0, Flow(0, END - 1, 0, END - 1, handle=0, **fields))  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [*EDGES, END - 2])
def test_the_credit_that_a_receiver_gives(count: int) -> None:
    for credit, sent, behind in itertools.product((*EDGES, 2, 5), range(4), range(4)):
        if behind > sent:
            continue
        server = begun_server()
        link = attached(server, RECEIVES)
        link.delivery_count = wire(count + sent)
        server.receive(flow(delivery_count=wire(count + sent - behind), link_credit=credit))
        assert link.credit == max(0, credit - behind)


@pytest.mark.parametrize("count", [*EDGES, END - 2])
def test_the_credit_that_a_sender_has_used(count: int) -> None:
    for credit, used in itertools.product((*EDGES, 2, 5), (*EDGES, 2, 5)):
        if used > credit:
            continue
        server = begun_server()
        link = attached(server, SENDS)
        link.delivery_count, link.credit = count, credit
        server.receive(flow(delivery_count=wire(count + used), link_credit=0))
        assert (link.credit, link.delivery_count) == (credit - used, wire(count + used))


def test_credit_that_was_taken_back_while_it_was_used() -> None:
    server = begun_server()
    link = attached(server, SENDS)
    link.delivery_count, link.credit = END - 1, 2
    server.receive(flow(delivery_count=4))
    assert (link.credit, link.delivery_count) == (0, 4)
    # What lies before is old news.
    server.receive(flow(delivery_count=3))
    assert (link.credit, link.delivery_count) == (0, 4)


@pytest.mark.parametrize("window", [END - 1, 1 << 31, 5_000])
def test_a_receiver_that_says_one_window_for_ever_gets_its_messages(window: int) -> None:
    server = opened_server()
    server.receive(frame(0, Begin(None, 1, window, window)))
    link = attached(server, RECEIVES)
    for number in range(3):
        server.receive(frame(0, Flow(0, window, 1, window, handle=0, delivery_count=number, link_credit=1)))
        link.session.transfer(link, BODY, b"%d" % number)
        assert [type(one) for one in said(server.take())] == [Transfer]


# Drains.


def drain(credit: int, counted: int = 0) -> bytes:
    return flow(delivery_count=counted, link_credit=credit, drain=True)


def test_a_drain_is_answered_when_messages_have_used_its_credit_up() -> None:
    server = begun_server()
    link = attached(server, RECEIVES)
    server.receive(drain(2))
    for tag in (b"1", b"2"):
        link.session.transfer(link, BODY, tag)
    *transfers, answer = said(server.take())
    assert [type(one) for one in transfers] == [Transfer, Transfer]
    told(answer, counted=2)
    # Whoever looks at the credit next has nothing more to say.
    assert not link.drain


@pytest.mark.parametrize("times", [1, 2])
def test_a_drain_without_credit_is_answered_at_once(times: int) -> None:
    server = begun_server()
    link = attached(server, RECEIVES)
    server.receive(flow(delivery_count=0, link_credit=1))
    link.session.transfer(link, BODY, b"1")
    server.take()
    for _ in range(times):
        # All that it asks for is on its way, or it asks for nothing.
        for raw in (drain(1), drain(0, 1)):
            server.receive(raw)
            (answer,) = said(server.take())
            told(answer, counted=1)


def test_the_answer_to_a_drain_stays_behind_what_waits_for_the_window() -> None:
    server = opened_server()
    server.receive(frame(0, Begin(None, 0, 1, 9)))
    link = attached(server, RECEIVES)
    server.receive(frame(0, Flow(0, 1, 0, 9, handle=0, delivery_count=0, link_credit=5, drain=True)))
    for number in range(3):
        link.session.transfer(link, BODY, b"%d" % number)
    link.session.finish_drain(link)
    assert [type(one) for one in said(server.take())] == [Transfer]
    server.receive(frame(0, Flow(1, 1, 0, 9)))
    assert [type(one) for one in said(server.take())] == [Transfer]
    server.receive(frame(0, Flow(2, 1, 0, 9)))
    last, answer = said(server.take())
    assert type(last) is Transfer
    told(answer, counted=5)
    server.receive(frame(0, Flow(3, 1, 0, 9)))
    assert said(server.take()) == []


def test_a_drain_that_comes_before_the_link_is_accepted_is_answered() -> None:
    server = begun_server()
    attach, *_ = server.receive(frame(0, RECEIVES) + drain(0))
    assert isinstance(attach, LinkAttached)
    attach.link.session.accept(attach.link)
    _, answer = said(server.take())
    told(answer, counted=0)


def told(answer: Composite, *, counted: int) -> None:
    """Check that a flow says that no credit is left, and how many messages there were."""
    assert isinstance(answer, Flow)
    assert (answer.handle, answer.link_credit, answer.delivery_count) == (0, 0, counted)


@pytest.mark.parametrize("attach", [SENDS, RECEIVES], ids=["sends", "receives"])
@pytest.mark.parametrize("refused", [False, True], ids=["accepted", "refused"])
def test_every_attach_says_how_large_a_message_may_be(attach: Attach, refused: bool) -> None:
    server = begun_server()
    (event,) = server.receive(frame(0, attach))
    assert isinstance(event, LinkAttached)
    session = event.link.session
    if refused:
        session.refuse(event.link, "amqp:not-found", "none")
    else:
        session.accept(event.link)
    answer = said(server.take())[0]
    assert isinstance(answer, Attach)
    assert answer.max_message_size
