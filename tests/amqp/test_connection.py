"""Connections, sessions and links of AMQP 1.0 between two ends, and with bytes written by hand."""

from __future__ import annotations

from typing import Any

import pytest
from peers import Peers

from lazaretto.amqp import AmqpError, Connection, ConnectionLimits
from lazaretto.amqp.composites import Composite, encode_composite
from lazaretto.amqp.conditions import SessionError
from lazaretto.amqp.events import (
    Closed,
    CreditChanged,
    DeliveriesUpdated,
    Failed,
    LinkAttached,
    LinkDetached,
    MessageReceived,
    Opened,
    SaslStarted,
    SenderUpdated,
    SessionEnded,
)
from lazaretto.amqp.frames import AMQP_HEADER, HEARTBEAT, SASL_HEADER, FrameType, frame, read_frame
from lazaretto.amqp.performatives import (
    Accepted,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Modified,
    Open,
    Released,
    SaslInit,
    Source,
    Target,
    Transfer,
)
from lazaretto.amqp.states import ConnectionState, LinkState, SessionState
from lazaretto.amqp.windows import Windows

BODY = b"\x00\x53\x75\xa0\x05hello"


def said(data: bytes) -> list[Composite]:
    """Return the performatives of frames."""
    place, found = 0, []
    while place < len(data):
        if data[place : place + 4] == b"AMQP":
            place += 8
            continue
        one = read_frame(data, place, 1 << 20)
        assert one is not None
        place = one.end
        if one.body is not None:
            found.append(one.body)
    return found


def opened_server(**options: Any) -> Connection:
    """Return a server that a peer has opened, without SASL."""
    server = Connection(server=True, container_id="server", **options)
    (event,) = server.receive(AMQP_HEADER + frame(0, Open("peer")))
    assert isinstance(event, Opened)
    server.take()
    return server


def begun_server(**options: Any) -> Connection:
    """Return a server on whose channel 0 a peer has begun a session."""
    server = opened_server(**options)
    server.receive(frame(0, Begin(None, 0, 100, 100)))
    server.take()
    return server


class TestOpening:
    @pytest.mark.parametrize("piece", [0, 1, 7])
    @pytest.mark.parametrize("sasl", [None, ("ANONYMOUS", None), ("ANONYMOUS", b"me")])
    def test_both_ends_open(self, piece: int, sasl: tuple[str, bytes | None] | None) -> None:
        peers = Peers(sasl=sasl, piece=piece)
        assert peers.server.state is peers.client.state is ConnectionState.OPENED
        assert peers.client.remote_open is not None
        assert peers.client.remote_open.container_id == "server"
        if sasl is not None:
            assert peers.of(peers.server_events, SaslStarted).init.initial_response == sasl[1]

    def test_a_wrong_password_ends_the_connection(self) -> None:
        server = Connection(server=True, container_id="server", mechanisms=("PLAIN",))
        server.receive(SASL_HEADER + frame(0, SaslInit("PLAIN", b"\0me\0secret"), FrameType.SASL))
        server.authenticate(1)
        assert server.receive(AMQP_HEADER) == []
        assert server.state is ConnectionState.CLOSED

    def test_a_mechanism_that_is_not_offered_is_refused(self) -> None:
        server = Connection(server=True, container_id="server", mechanisms=("PLAIN",))
        (failed,) = server.receive(SASL_HEADER + frame(0, SaslInit("ANONYMOUS"), FrameType.SASL))
        assert isinstance(failed, Failed)
        assert "secret" not in str(failed.error)

    @pytest.mark.parametrize(
        "data",
        [b"HTTP/1.1", b"AMQP\x00\x00\x09\x01", b"AMQP\x02\x01\x00\x00", b"GET", b"\x16\x03"],
        ids=["http", "0-9-1", "tls", "get", "hello"],
    )
    def test_another_protocol_is_told_which_this_is(self, data: bytes) -> None:
        server = Connection(server=True, container_id="server")
        (failed,) = server.receive(data)
        assert isinstance(failed, Failed)
        assert server.take() == SASL_HEADER

    def test_heartbeats_are_no_events(self) -> None:
        server = opened_server()
        assert server.receive(HEARTBEAT * 3) == []
        server.beat()
        assert server.take() == HEARTBEAT

    def test_a_frame_before_the_open_is_refused(self) -> None:
        server = Connection(server=True, container_id="server")
        (failed,) = server.receive(AMQP_HEADER + frame(0, Begin(None, 0, 1, 1)))
        assert isinstance(failed, Failed)
        _, close = said(server.take())
        assert isinstance(close, Close)
        assert close.error is not None
        assert close.error.condition == "amqp:not-allowed"

    def test_closing_is_answered(self) -> None:
        peers = Peers()
        peers.client.close("amqp:connection:forced", "enough")
        peers.pump()
        closed = peers.of(peers.server_events, Closed)
        assert closed.error is not None
        assert closed.error.description == "enough"
        assert peers.client.state is peers.server.state is ConnectionState.CLOSED
        peers.server.close()
        assert peers.server.take() == b""

    def test_nothing_is_done_behind_a_close_of_ours(self) -> None:
        server = begun_server()
        server.close()
        assert server.receive(frame(0, Attach("l", 0, False))) == []
        (closed,) = server.receive(frame(0, Close()))
        assert isinstance(closed, Closed)


#: What a peer may not send, and the condition it is told.
FORBIDDEN: dict[str, tuple[bytes, str]] = {
    "a frame too large": (b"\x7f\xff\xff\xff\x02\x00\x00\x00", "amqp:connection:framing-error"),
    "a frame too small": (b"\x00\x00\x00\x04\x02\x00\x00\x00", "amqp:connection:framing-error"),
    "an offset beyond the frame": (b"\x00\x00\x00\x08\x09\x00\x00\x00", "amqp:connection:framing-error"),
    "an offset within the head": (b"\x00\x00\x00\x08\x01\x00\x00\x00", "amqp:connection:framing-error"),
    "a frame of another type": (b"\x00\x00\x00\x08\x02\x07\x00\x00", "amqp:connection:framing-error"),
    "a second open": (frame(0, Open("again")), "amqp:connection:framing-error"),
    "SASL behind the open": (frame(0, SaslInit("PLAIN"), FrameType.SASL), "amqp:not-allowed"),
    "a channel too high": (frame(256, Begin(None, 0, 1, 1)), "amqp:connection:framing-error"),
    "a channel in use": (frame(0, Begin(None, 0, 1, 1)), "amqp:connection:framing-error"),
    "an answer to no begin": (frame(1, Begin(7, 0, 1, 1)), "amqp:connection:framing-error"),
    "an end of no session": (frame(9, End()), "amqp:connection:framing-error"),
    "a flow on no session": (frame(9, Flow(0, 1, 0, 1)), "amqp:connection:framing-error"),
    "a handle too high": (frame(0, Attach("l", 256, True)), "amqp:connection:framing-error"),
    "an outcome as performative": (frame(0, Accepted()), "amqp:not-allowed"),
    "an unknown descriptor": (b"\x00\x00\x00\x0c\x02\x00\x00\x00\x00\x53\x99\x45", "amqp:not-implemented"),
    "no performative": (b"\x00\x00\x00\x09\x02\x00\x00\x00\x40", "amqp:decode-error"),
    "a field that must be there": (b"\x00\x00\x00\x0c\x02\x00\x00\x00\x00\x53\x16\x45", "amqp:invalid-field"),
    "a field of another type": (
        b"\x00\x00\x00\x10\x02\x00\x00\x00\x00\x53\x16\xc0\x03\x01\xa1\x00",
        "amqp:decode-error",
    ),
    "too many fields": (
        b"\x00\x00\x00\x10\x02\x00\x00\x00\x00\x53\x17\xc0\x03\x02\x40\x40",
        "amqp:decode-error",
    ),
}


@pytest.mark.parametrize("kind", FORBIDDEN)
def test_a_peer_is_told_what_it_did_wrong(kind: str) -> None:
    data, condition = FORBIDDEN[kind]
    server = begun_server()
    events = server.receive(data)
    assert [type(event) for event in events] == [Failed]
    close = said(server.take())[-1]
    assert isinstance(close, Close)
    assert close.error is not None
    assert close.error.condition == condition
    assert close.error.description
    assert server.state is ConnectionState.CLOSED
    assert server.receive(frame(0, Close())) == []


class TestSessions:
    def test_both_ends_end(self) -> None:
        peers = Peers()
        client, server = peers.begin()
        client.end("amqp:session:errant-link", "why")
        peers.pump()
        ended = peers.of(peers.server_events, SessionEnded)
        assert ended.session is server
        assert ended.error is not None
        peers.of(peers.client_events, SessionEnded)
        assert client.state is server.state is SessionState.ENDED
        again, _ = peers.begin()
        assert again.channel == client.channel

    def test_the_server_may_begin(self) -> None:
        peers = Peers()
        session = peers.server.begin()
        peers.pump()
        assert session.state is SessionState.MAPPED

    def test_frames_behind_an_end_are_not_looked_at(self) -> None:
        server = begun_server()
        server.receive(frame(0, End()))
        assert server.receive(frame(0, Detach(0)) + frame(0, End()) + frame(0, Flow(0, 1, 0, 1))) == []
        assert server.state is ConnectionState.OPENED

    @pytest.mark.parametrize(
        ("body", "condition"),
        [
            (Detach(5), "amqp:session:unattached-handle"),
            (Flow(0, 1, 0, 1, handle=5), "amqp:session:unattached-handle"),
            (Transfer(5, 0, b"t"), "amqp:session:unattached-handle"),
            (Attach("m", 0, False), "amqp:session:handle-in-use"),
            (Transfer(1, 0, b"t"), "amqp:session:errant-link"),
        ],
        ids=["detach", "flow", "transfer", "handle in use", "transfer to the sender"],
    )
    def test_what_breaks_a_session_ends_it_alone(self, body: Composite, condition: str) -> None:
        server = begun_server()
        server.receive(frame(0, Attach("l", 0, False)) + frame(0, Attach("r", 1, True)))
        server.receive(frame(1, Begin(None, 0, 100, 100)))
        server.take()
        assert server.receive(frame(0, body)) == []
        (end,) = said(server.take())
        assert isinstance(end, End)
        assert end.error is not None
        assert end.error.condition == condition
        assert server.receive(frame(0, Flow(0, 1, 0, 1))) == []
        (attached,) = server.receive(frame(1, Attach("l", 0, False)))
        assert isinstance(attached, LinkAttached)

    def test_a_window_is_opened_again_before_it_is_used_up(self) -> None:
        server = begun_server(limits=ConnectionLimits(window=2))
        (attached,) = server.receive(frame(0, Attach("l", 0, False)))
        assert isinstance(attached, LinkAttached)
        attached.link.session.accept(attached.link)
        attached.link.session.grant(attached.link, 10)
        server.take()
        part = frame(0, Transfer(0, 0, b"t", more=True))
        server.receive(part * 2)
        # Half of the window is used up: more is granted, so that no peer waits for ever.
        assert [type(one) for one in said(server.take())] == [Flow]
        server.receive(part * 3)
        kinds = [type(one) for one in said(server.take())]
        assert End not in kinds


class TestLinks:
    def test_a_link_has_two_ends(self) -> None:
        peers = Peers()
        session, _ = peers.begin()
        ours, theirs = peers.link(session, sends=True, max_message_size=1000)
        assert ours.attached
        assert theirs.attached
        assert not theirs.sends
        assert ours.remote_max_message_size == 1000
        assert isinstance(theirs.target, Target)
        session.detach(ours, "amqp:link:detach-forced", "why", {"a": 1})
        peers.pump()
        detached = peers.of(peers.server_events, LinkDetached)
        assert detached.link is theirs
        assert detached.closed
        assert detached.error is not None
        assert detached.error.info == {"a": 1}
        peers.of(peers.client_events, LinkDetached)
        assert ours.state is theirs.state is LinkState.ENDED
        assert session.links == theirs.session.links == {}
        peers.link(session, sends=True)

    def test_two_links_may_have_one_name_in_two_directions(self) -> None:
        peers = Peers()
        session, _ = peers.begin()
        peers.link(session, sends=True)
        peers.link(session, sends=False)
        assert len(session.links) == 2

    def test_one_that_is_refused_is_detached_with_the_reason(self) -> None:
        peers = Peers()
        session, _ = peers.begin()
        session.attach("l", sends=True, source=Source("q"), target=Target("no such queue"))
        peers.pump()
        theirs = peers.of(peers.server_events, LinkAttached).link
        theirs.session.refuse(theirs, "amqp:not-found", "no such queue")
        peers.pump()
        attached = peers.of(peers.client_events, LinkAttached)
        assert attached.attach.target is None
        detached = peers.of(peers.client_events, LinkDetached)
        assert detached.error is not None
        assert detached.error.condition == "amqp:not-found"
        peers.of(peers.server_events, LinkDetached)
        assert session.links == {}

    def test_credit_that_comes_before_the_answer_counts(self) -> None:
        server = begun_server()
        events = server.receive(
            frame(0, Attach("r", 0, True))
            + frame(0, Flow(0, 10, 0, 10, handle=0, delivery_count=0, link_credit=7))
        )
        assert [type(event) for event in events] == [LinkAttached]
        link = events[0].link  # type: ignore[attr-defined]
        link.session.accept(link)
        assert link.credit == 7

    def test_a_drain_is_answered(self) -> None:
        peers = Peers()
        session, _ = peers.begin()
        ours, theirs = peers.link(session, sends=False, credit=5)
        peers.of(peers.server_events, CreditChanged)
        theirs.session.transfer(theirs, BODY, b"t")
        session.grant(ours, 4, drain=True)
        peers.pump()
        assert peers.of(peers.server_events, CreditChanged).link.drain
        assert theirs.credit in (3, 4)
        theirs.session.finish_drain(theirs)
        peers.pump()
        assert ours.credit == theirs.credit == 0
        assert ours.delivery_count == theirs.delivery_count

    def test_an_echo_is_answered_once(self) -> None:
        server = begun_server()
        server.receive(frame(0, Flow(0, 10, 0, 10, echo=True)))
        (flow,) = said(server.take())
        assert isinstance(flow, Flow)
        assert not flow.echo


class TestMessages:
    @pytest.mark.parametrize("piece", [0, 1])
    @pytest.mark.parametrize("size", [0, 1, 400, 511, 512, 5000, 100_000])
    def test_a_message_of_any_size_arrives(self, size: int, piece: int) -> None:
        peers = Peers(server=ConnectionLimits(max_frame_size=512), piece=piece)
        session, _ = peers.begin()
        ours, theirs = peers.link(session, sends=True, credit=2)
        peers.of(peers.client_events, CreditChanged)
        delivery = session.transfer(ours, b"x" * size, b"tag", context="mine")
        peers.pump()
        message = peers.of(peers.server_events, MessageReceived)
        assert (message.payload, message.delivery_tag) == (b"x" * size, b"tag")
        theirs.session.settle(message.delivery_id, message.delivery_id)
        peers.pump()
        updated = peers.of(peers.client_events, DeliveriesUpdated)
        assert updated.deliveries == [delivery]
        assert updated.deliveries[0].context == "mine"
        assert updated.settled
        assert session.unsettled == {}
        assert theirs.credit == ours.credit == 1

    def test_one_disposition_settles_a_range(self) -> None:
        peers = Peers()
        session, _ = peers.begin()
        ours, theirs = peers.link(session, sends=True, credit=100)
        sent = [session.transfer(ours, BODY, b"%d" % n) for n in range(50)]
        settled = session.transfer(ours, BODY, b"s", settled=True)
        peers.pump()
        came = [event for event in peers.server_events if isinstance(event, MessageReceived)]
        assert [one.settled for one in came] == [False] * 50 + [True]
        theirs.session.settle(came[10].delivery_id, came[19].delivery_id, encode_composite(Released()))
        peers.pump()
        updated = peers.of(peers.client_events, DeliveriesUpdated)
        assert updated.deliveries == sent[10:20]
        assert updated.state == Released()
        # A range may be wider than what is there, and name what is settled already.
        theirs.session.settle(0, 0x7FFFFFF0)
        peers.pump()
        assert peers.of(peers.client_events, DeliveriesUpdated).deliveries == sent[:10] + sent[20:]
        assert settled.id not in session.unsettled

    def test_a_receiver_that_does_not_settle_is_answered(self) -> None:
        peers = Peers()
        session, _ = peers.begin()
        _, theirs = peers.link(session, sends=False, credit=1)
        delivery = theirs.session.transfer(theirs, BODY, b"t")
        peers.pump()
        message = peers.of(peers.client_events, MessageReceived)
        state = Modified(delivery_failed=True, message_annotations={"why": "no"})
        session.settle(message.delivery_id, message.delivery_id, encode_composite(state), settled=False)
        peers.pump()
        assert peers.of(peers.server_events, DeliveriesUpdated).state == state
        assert theirs.session.unsettled == {delivery.id: delivery}
        theirs.session.settle_sent(delivery, encode_composite(Accepted()))
        peers.pump()
        assert peers.of(peers.client_events, SenderUpdated).first == delivery.id
        assert theirs.session.unsettled == {}

    def test_nothing_is_sent_without_credit(self) -> None:
        peers = Peers()
        session, _ = peers.begin()
        ours, _ = peers.link(session, sends=True, credit=1)
        session.transfer(ours, BODY, b"t")
        with pytest.raises(AmqpError, match="credit"):
            session.transfer(ours, BODY, b"u")

    def test_a_transfer_without_credit_detaches_the_link_alone(self) -> None:
        peers = Peers()
        session, _ = peers.begin()
        ours, _ = peers.link(session, sends=True)
        ours.credit = 1
        session.transfer(ours, BODY, b"t")
        peers.pump()
        detached = peers.of(peers.client_events, LinkDetached)
        assert detached.error is not None
        assert detached.error.condition == "amqp:link:transfer-limit-exceeded"
        assert session.state is SessionState.MAPPED

    def test_a_message_too_large_detaches_the_link(self) -> None:
        peers = Peers(server=ConnectionLimits(max_frame_size=512))
        session, _ = peers.begin()
        ours, _ = peers.link(session, sends=True, credit=5, max_message_size=1000)
        session.transfer(ours, b"x" * 1000, b"t")
        peers.pump()
        peers.of(peers.server_events, MessageReceived)
        session.transfer(ours, b"x" * 1001, b"u")
        session.transfer(ours, b"x", b"v")
        peers.pump()
        detached = peers.of(peers.client_events, LinkDetached)
        assert detached.error is not None
        assert detached.error.condition == "amqp:link:message-size-exceeded"
        assert not any(isinstance(event, MessageReceived) for event in peers.server_events)
        assert peers.server.partial_size == 0

    def test_messages_in_part_are_bounded_over_all_links(self) -> None:
        peers = Peers(server=ConnectionLimits(max_frame_size=512, partial=2_000))
        session, _ = peers.begin()
        ours, _ = peers.link(session, sends=True, credit=5)
        session.transfer(ours, b"x" * 3_000, b"t")
        peers.pump()
        detached = peers.of(peers.client_events, LinkDetached)
        assert detached.error is not None
        assert detached.error.condition == "amqp:resource-limit-exceeded"
        assert peers.server.partial_size == 0

    def test_an_aborted_message_is_none(self) -> None:
        server = begun_server()
        (attached,) = server.receive(frame(0, Attach("l", 0, False)))
        assert isinstance(attached, LinkAttached)
        link = attached.link
        link.session.accept(link)
        link.session.grant(link, 1)
        begin = frame(0, Transfer(0, 0, b"t", more=True))
        assert server.receive(begin + frame(0, Transfer(0, aborted=True))) == []
        assert link.credit == 1
        (message,) = server.receive(frame(0, Transfer(0, 1, b"u")))
        assert isinstance(message, MessageReceived)

    @pytest.mark.parametrize("body", [Transfer(0), Transfer(0, 0), Transfer(0, 0, b"t" * 33)])
    def test_a_first_part_without_its_names_detaches_the_link(self, body: Transfer) -> None:
        server = begun_server()
        (attached,) = server.receive(frame(0, Attach("l", 0, False)))
        assert isinstance(attached, LinkAttached)
        attached.link.session.accept(attached.link)
        attached.link.session.grant(attached.link, 1)
        server.take()
        assert server.receive(frame(0, body)) == []
        assert [type(one) for one in said(server.take())] == [Detach]

    def test_frames_wait_for_the_window_of_the_peer(self) -> None:
        peers = Peers(client=ConnectionLimits(window=4, max_frame_size=512))
        session, _ = peers.begin()
        _, theirs = peers.link(session, sends=False, credit=100)
        for n in range(20):
            theirs.session.transfer(theirs, b"x" * 1000, b"%d" % n)
        assert theirs.session.congested
        peers.pump()
        came = [event for event in peers.client_events if isinstance(event, MessageReceived)]
        assert [event.payload for event in came] == [b"x" * 1000] * 20
        assert not theirs.session.congested

    def test_what_a_detached_link_had_on_its_way_is_forgotten(self) -> None:
        peers = Peers()
        session, _ = peers.begin()
        ours, theirs = peers.link(session, sends=False, credit=5)
        theirs.session.transfer(theirs, BODY, b"t")
        peers.pump()
        session.detach(ours)
        peers.pump()
        assert theirs.session.unsettled == {}
        session.settle(0, 0)
        peers.pump()
        assert not any(isinstance(event, DeliveriesUpdated) for event in peers.server_events)

    def test_numbers_begin_again_behind_the_last(self) -> None:
        peers = Peers()
        session, server = peers.begin()
        session._next_delivery = 0xFFFFFFFE
        ours, theirs = peers.link(session, sends=True, credit=10)
        sent = [session.transfer(ours, BODY, b"%d" % n) for n in range(5)]
        peers.pump()
        assert [one.id for one in sent] == [0xFFFFFFFE, 0xFFFFFFFF, 0, 1, 2]
        server.settle(0xFFFFFFFE, 1)
        peers.pump()
        assert peers.of(peers.client_events, DeliveriesUpdated).deliveries == sent[:4]
        assert theirs.credit == 5


def test_a_disposition_of_nothing_is_no_event() -> None:
    server = begun_server()
    assert server.receive(frame(0, Disposition(True, 0, 0xFFFFFFFF, True, Accepted()))) == []


def test_a_window_that_is_used_up_takes_no_frame() -> None:
    windows = Windows(2)
    windows.count_received()
    windows.count_received()
    assert windows.runs_out
    with pytest.raises(SessionError) as caught:
        windows.count_received()
    assert caught.value.condition == "amqp:session:window-violation"
    windows.flow()
    windows.count_received()
