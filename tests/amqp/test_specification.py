"""What the specification of AMQP 1.0 says a peer does, by its sections: each test begins with one."""

from __future__ import annotations

import pytest
from peers import Peers, begun_server, opened_server, said

from lazaretto.servicebus.amqp import Connection, ConnectionLimits, Link
from lazaretto.servicebus.amqp.events import (
    Closed,
    CreditChanged,
    DeliveriesUpdated,
    Event,
    LinkAttached,
    LinkDetached,
    MessageReceived,
    MessageRefused,
    Opened,
    SaslAnswered,
    SaslStarted,
    SessionBegun,
    SessionEnded,
)
from lazaretto.servicebus.amqp.frames import AMQP_HEADER, HEARTBEAT, SASL_HEADER, FrameType, frame
from lazaretto.servicebus.amqp.performatives import (
    Accepted,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    SaslResponse,
    Source,
    Target,
    Transfer,
)
from lazaretto.servicebus.amqp.states import ConnectionState

BODY = b"\x00\x53\x75\xa0\x05hello"
RECEIVES = Attach("r", 0, True, source=Source("q"), target=Target("here"))
SENDS = Attach("s", 0, False, source=Source("here"), target=Target("q"), initial_delivery_count=0)


def kinds(events: list[Event]) -> list[type[Event]]:
    return [type(event) for event in events]


def part(transfer: Transfer, payload: bytes) -> bytes:
    """Return a frame with a part of a message."""
    raw = frame(0, transfer)
    return (len(raw) + len(payload)).to_bytes(4, "big") + raw[4:] + payload


def linked(attach: Attach, **options: int) -> tuple[Connection, Link]:
    """Return a server with a link that a peer has attached, and that link; what was said of it is taken."""
    server = begun_server(**({"limits": ConnectionLimits(**options)} if options else {}))
    (attached,) = server.receive(frame(0, attach))
    assert isinstance(attached, LinkAttached)
    attached.link.session.accept(attached.link)
    if not attach.role:
        attached.link.session.grant(attached.link, 10)
    server.take()
    return server, attached.link


class TestFraming:
    def test_2_3_1_an_extended_header_is_passed_over(self) -> None:
        server = begun_server()
        plain = frame(0, Flow(0, 1, 0, 1, echo=True))
        longer = (len(plain) + 4).to_bytes(4, "big") + b"\x03" + plain[5:8] + b"more" + plain[8:]
        assert server.receive(longer) == []
        assert [type(one) for one in said(server.take())] == [Flow]

    def test_2_3_1_a_frame_may_come_a_byte_at_a_time(self) -> None:
        server = opened_server()
        data = frame(3, Begin(None, 0, 1, 1))
        events = [event for byte in data for event in server.receive(bytes((byte,)))]
        assert kinds(events) == [SessionBegun]

    @pytest.mark.parametrize("channel", [0, 1, 255])
    def test_2_3_2_an_empty_frame_on_any_channel_is_a_heartbeat(self, channel: int) -> None:
        server = opened_server()
        assert server.receive(HEARTBEAT[:6] + channel.to_bytes(2, "big")) == []
        assert server.state is ConnectionState.OPENED


class TestConnections:
    def test_2_4_1_all_may_be_said_before_anything_is_answered(self) -> None:
        server = Connection(server=True, container_id="server")
        said_first = (Open("peer"), Begin(None, 0, 9, 9), SENDS, Detach(0, True), End(), Close())
        data = AMQP_HEADER + b"".join(frame(0, one) for one in said_first)
        found = kinds(server.receive(data))
        assert found == [Opened, SessionBegun, LinkAttached, LinkDetached, SessionEnded, Closed]
        answers = said(server.take())
        assert [type(one) for one in answers] == [Open, Begin, End, Close]

    def test_2_4_1_what_a_peer_does_not_say_has_the_defaults(self) -> None:
        server = opened_server()
        assert server.remote_open is not None
        assert (server.remote_open.max_frame_size, server.remote_open.channel_max) == (None, None)
        assert server.remote_open.idle_time_out is None

    @pytest.mark.parametrize("size", [0, 511, 512])
    def test_2_4_1_no_frame_is_smaller_than_512_bytes_at_most(self, size: int) -> None:
        server = Connection(server=True, container_id="server")
        server.receive(AMQP_HEADER + frame(0, Open("peer", max_frame_size=size)))
        assert server.remote_max_frame_size == 512

    def test_2_4_1_no_session_is_begun_beyond_what_the_peer_takes(self) -> None:
        peers = Peers(client=ConnectionLimits(channel_max=0))
        peers.server.begin()
        with pytest.raises(Exception, match="at most 1 sessions"):
            peers.server.begin()

    def test_2_4_6_behind_its_close_a_peer_says_nothing(self) -> None:
        server = begun_server()
        assert kinds(server.receive(frame(0, Close()) + frame(0, SENDS) + b"anything")) == [Closed]
        assert [type(one) for one in said(server.take())] == [Close]


class TestSessions:
    def test_2_5_1_an_answer_names_the_channel_of_the_begin(self) -> None:
        server = opened_server()
        server.receive(frame(7, Begin(None, 0, 9, 9)))
        (begin,) = said(server.take())
        assert isinstance(begin, Begin)
        assert begin.remote_channel == 7

    def test_2_5_2_a_channel_is_free_behind_an_end(self) -> None:
        server = begun_server()
        assert kinds(server.receive(frame(0, End()) + frame(0, Begin(None, 0, 9, 9)))) == [
            SessionEnded,
            SessionBegun,
        ]

    def test_2_5_2_links_end_with_their_session(self) -> None:
        server, link = linked(SENDS)
        assert kinds(server.receive(frame(0, End()))) == [SessionEnded]
        assert not link.attached
        # What is said on it now is not sent.
        link.session.settle(0, 0)
        link.session.grant(link, 5)
        assert [type(one) for one in said(server.take())] == [End]

    def test_2_5_6_no_more_frames_go_out_than_the_peer_has_room_for(self) -> None:
        server = opened_server()
        server.receive(frame(0, Begin(None, 0, 2, 9)))
        (attached,) = server.receive(frame(0, RECEIVES))
        assert isinstance(attached, LinkAttached)
        link, session = attached.link, attached.link.session
        session.accept(link)
        server.take()
        server.receive(frame(0, Flow(0, 2, 0, 9, handle=0, delivery_count=0, link_credit=5)))
        for number in range(5):
            session.transfer(link, BODY, b"%d" % number)
        assert [type(one) for one in said(server.take())].count(Transfer) == 2
        assert session.congested
        server.receive(frame(0, Flow(2, 9, 0, 9)))
        assert [type(one) for one in said(server.take())].count(Transfer) == 3

    def test_2_5_6_a_peer_that_has_not_seen_the_begin_leaves_its_number_out(self) -> None:
        server = opened_server()
        server.receive(frame(0, Begin(None, 0, 9, 9)))
        assert server.receive(frame(0, Flow(None, 9, 0, 9))) == []
        assert server.state is ConnectionState.OPENED


class TestLinks:
    @pytest.mark.parametrize("attach", [SENDS, RECEIVES], ids=["sends", "receives"])
    def test_2_6_1_the_answer_has_the_name_and_the_other_role(self, attach: Attach) -> None:
        server = begun_server()
        (attached,) = server.receive(frame(0, attach))
        assert isinstance(attached, LinkAttached)
        attached.link.session.accept(attached.link)
        answer = said(server.take())[0]
        assert isinstance(answer, Attach)
        assert (answer.name, answer.role) == (attach.name, not attach.role)
        assert (answer.source, answer.target) == (attach.source, attach.target)
        # The sender of messages says where it begins to count.
        assert (answer.initial_delivery_count is not None) == attach.role

    @pytest.mark.parametrize("again", [0, 1], ids=["in its session", "in another"])
    def test_2_6_1_a_name_is_of_one_link_in_each_direction(self, again: int) -> None:
        server, link = linked(SENDS)
        server.receive(frame(1, Begin(None, 0, 100, 100)))
        server.receive(frame(0, Attach("s", 1, True, source=Source("q"), target=Target("here"))))
        server.take()
        sends = Attach("s", 2, False, source=Source("here"), target=Target("q"), initial_delivery_count=0)
        detached, attached = server.receive(frame(again, sends))
        assert isinstance(detached, LinkDetached)
        assert detached.link is link
        assert isinstance(attached, LinkAttached)
        (told,) = said(server.take())
        assert isinstance(told, Detach)
        assert told.closed
        assert told.error is not None
        assert told.error.condition == "amqp:link:stolen"

    def test_2_6_2_a_handle_is_free_behind_a_detach(self) -> None:
        server, _ = linked(SENDS)
        assert kinds(server.receive(frame(0, Detach(0, True)) + frame(0, SENDS))) == [
            LinkDetached,
            LinkAttached,
        ]

    def test_2_6_2_handles_of_the_two_ends_need_not_be_the_same(self) -> None:
        server = begun_server()
        (attached,) = server.receive(frame(0, Attach("s", 200, False, target=Target("q"))))
        assert isinstance(attached, LinkAttached)
        attached.link.session.accept(attached.link)
        (answer,) = said(server.take())
        assert isinstance(answer, Attach)
        assert answer.handle == 0

    @pytest.mark.parametrize("closed", [True, False])
    def test_2_6_6_a_detach_is_answered_as_it_was_said(self, closed: bool) -> None:
        server, _ = linked(SENDS)
        (detached,) = server.receive(frame(0, Detach(0, closed)))
        assert isinstance(detached, LinkDetached)
        assert detached.closed is closed
        (answer,) = said(server.take())
        assert isinstance(answer, Detach)
        assert bool(answer.closed) is closed

    def test_2_6_7_credit_counts_from_the_deliveries_that_the_receiver_knows(self) -> None:
        server, link = linked(RECEIVES)
        server.receive(frame(0, Flow(0, 99, 0, 99, handle=0, delivery_count=0, link_credit=3)))
        link.session.transfer(link, BODY, b"1", settled=True)
        link.session.transfer(link, BODY, b"2", settled=True)
        # It has seen one: of its four there are three left, and then of its one none.
        server.receive(frame(0, Flow(1, 99, 0, 99, handle=0, delivery_count=1, link_credit=4)))
        assert link.credit == 3
        server.receive(frame(0, Flow(1, 99, 0, 99, handle=0, delivery_count=1, link_credit=1)))
        assert link.credit == 0

    def test_2_6_7_credit_is_taken_back_by_less(self) -> None:
        server, link = linked(RECEIVES)
        server.receive(frame(0, Flow(0, 99, 0, 99, handle=0, delivery_count=0, link_credit=9)))
        assert kinds(
            server.receive(frame(0, Flow(0, 99, 0, 99, handle=0, link_credit=0, delivery_count=0)))
        ) == [CreditChanged]
        assert link.credit == 0

    def test_2_6_9_a_drain_uses_the_credit_up(self) -> None:
        server, link = linked(RECEIVES)
        drain = Flow(0, 99, 0, 99, handle=0, delivery_count=0, link_credit=7, drain=True)
        server.receive(frame(0, drain))
        link.session.finish_drain(link)
        (flow,) = said(server.take())
        assert isinstance(flow, Flow)
        assert (flow.link_credit, flow.delivery_count, flow.drain) == (0, 7, True)

    def test_2_6_12_parts_of_a_message_name_it_once(self) -> None:
        server, _ = linked(SENDS)
        first = part(Transfer(0, 0, b"t", 0, more=True), BODY[:4])
        rest = part(Transfer(0, more=True), BODY[4:6]) + part(Transfer(0), BODY[6:])
        (message,) = server.receive(first + rest)
        assert isinstance(message, MessageReceived)
        assert (message.payload, message.delivery_tag, message.settled) == (BODY, b"t", False)

    def test_2_6_12_a_later_part_may_settle_the_message(self) -> None:
        server, _ = linked(SENDS)
        parts = part(Transfer(0, 0, b"t", 0, more=True), BODY[:4])
        (message,) = server.receive(parts + part(Transfer(0, settled=True), BODY[4:]))
        assert isinstance(message, MessageReceived)
        assert message.settled

    @pytest.mark.parametrize(
        "other",
        [Transfer(0, 1), Transfer(0, 0, b"u"), Transfer(0, message_format=1)],
        ids=["number", "tag", "format"],
    )
    def test_2_6_12_a_later_part_of_another_message_is_refused(self, other: Transfer) -> None:
        server, link = linked(SENDS)
        server.receive(part(Transfer(0, 0, b"t", 0, more=True), BODY[:4]) + part(other, BODY[4:]))
        assert not link.attached
        detach = said(server.take())[-1]
        assert isinstance(detach, Detach)
        assert detach.error is not None

    def test_2_6_12_parts_on_two_links_may_alternate(self) -> None:
        server, _ = linked(SENDS)
        (attached,) = server.receive(frame(0, Attach("two", 1, False, target=Target("q"))))
        assert isinstance(attached, LinkAttached)
        session = attached.link.session
        session.accept(attached.link)
        session.grant(attached.link, 1)
        parts = (
            part(Transfer(0, 0, b"a", 0, more=True), BODY[:3]),
            part(Transfer(1, 1, b"b", 0, more=True), BODY[:5]),
            part(Transfer(0), BODY[3:]),
            part(Transfer(1), BODY[5:]),
        )
        found = server.receive(b"".join(parts))
        assert [(one.delivery_tag, one.payload) for one in found if isinstance(one, MessageReceived)] == [
            (b"a", BODY),
            (b"b", BODY),
        ]

    def test_2_6_14_an_aborted_message_is_none(self) -> None:
        server, link = linked(SENDS)
        given_up = part(Transfer(0, 0, b"t", 0, more=True), BODY[:4]) + frame(0, Transfer(0, aborted=True))
        assert server.receive(given_up) == [MessageRefused(link)]
        (message,) = server.receive(part(Transfer(0, 1, b"u", 0), BODY))
        assert isinstance(message, MessageReceived)
        assert message.payload == BODY
        assert link.attached


class TestDispositions:
    def test_2_7_6_without_a_last_it_is_of_one_message(self) -> None:
        server, link = linked(RECEIVES)
        server.receive(frame(0, Flow(0, 99, 0, 99, handle=0, delivery_count=0, link_credit=3)))
        for tag in (b"1", b"2", b"3"):
            link.session.transfer(link, BODY, tag)
        (updated,) = server.receive(frame(0, Disposition(True, 1, None, True, Accepted())))
        assert isinstance(updated, DeliveriesUpdated)
        assert [one.tag for one in updated.deliveries] == [b"2"]

    def test_2_7_6_what_is_settled_is_not_spoken_of_again(self) -> None:
        server, link = linked(RECEIVES)
        server.receive(frame(0, Flow(0, 99, 0, 99, handle=0, delivery_count=0, link_credit=3)))
        link.session.transfer(link, BODY, b"1")
        one = frame(0, Disposition(True, 0, 0, True, Accepted()))
        assert kinds(server.receive(one)) == [DeliveriesUpdated]
        assert server.receive(one) == []

    def test_2_7_6_a_state_may_come_before_it_is_settled(self) -> None:
        server, link = linked(RECEIVES)
        server.receive(frame(0, Flow(0, 99, 0, 99, handle=0, delivery_count=0, link_credit=3)))
        link.session.transfer(link, BODY, b"1")
        (updated,) = server.receive(frame(0, Disposition(True, 0, 0, False, Accepted())))
        assert isinstance(updated, DeliveriesUpdated)
        assert not updated.settled
        assert kinds(server.receive(frame(0, Disposition(True, 0, 0, True)))) == [DeliveriesUpdated]


class TestSasl:
    def offering(self, *mechanisms: str) -> Connection:
        server = Connection(server=True, container_id="server", mechanisms=mechanisms)
        server.receive(SASL_HEADER)
        return server

    def test_5_3_3_1_the_server_says_what_it_offers(self) -> None:
        server = self.offering("MSSBCBS", "PLAIN")
        raw = server.take()
        assert raw.startswith(SASL_HEADER)
        (offer,) = said(raw)
        assert isinstance(offer, SaslMechanisms)
        assert list(offer.mechanisms) == ["MSSBCBS", "PLAIN"]

    def test_5_3_3_2_and_4_a_challenge_is_answered(self) -> None:
        server = self.offering("CRAM")
        (started,) = server.receive(frame(0, SaslInit("CRAM"), FrameType.SASL))
        assert isinstance(started, SaslStarted)
        server.challenge(b"prove it")
        (answered,) = server.receive(frame(0, SaslResponse(b"proof"), FrameType.SASL))
        assert isinstance(answered, SaslAnswered)
        assert answered.response == b"proof"

    def test_5_3_3_5_behind_the_outcome_the_protocol_begins_again(self) -> None:
        server = self.offering("ANONYMOUS")
        server.receive(frame(0, SaslInit("ANONYMOUS"), FrameType.SASL))
        server.take()
        server.authenticate()
        (outcome,) = said(server.take())
        assert isinstance(outcome, SaslOutcome)
        assert outcome.outcome == 0
        assert kinds(server.receive(AMQP_HEADER + frame(0, Open("peer")))) == [Opened]
        assert server.take().startswith(AMQP_HEADER)

    @pytest.mark.parametrize(
        "data",
        [
            frame(0, SaslResponse(b"x"), FrameType.SASL),
            frame(0, SaslOutcome(0), FrameType.SASL),
            frame(0, SaslInit("ANONYMOUS")),
            AMQP_HEADER,
            SASL_HEADER,
        ],
        ids=["response", "outcome", "frame of AMQP", "header of AMQP", "second header"],
    )
    def test_5_3_what_is_out_of_turn_ends_the_connection(self, data: bytes) -> None:
        server = self.offering("ANONYMOUS")
        server.receive(data)
        assert server.state is ConnectionState.CLOSED
