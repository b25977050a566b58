"""Links, and the messages that go over them."""

from __future__ import annotations

import gc
import weakref

import pytest
from peers import Peers, begun_server, opened_server, said

from lazaretto.servicebus.amqp import AmqpError, ConnectionLimits
from lazaretto.servicebus.amqp.composites import encode_composite
from lazaretto.servicebus.amqp.events import (
    CreditChanged,
    DeliveriesUpdated,
    LinkAttached,
    LinkDetached,
    MessageReceived,
    MessageRefused,
    SenderUpdated,
)
from lazaretto.servicebus.amqp.frames import frame, transfer_frame
from lazaretto.servicebus.amqp.performatives import (
    Accepted,
    Attach,
    Begin,
    Detach,
    Disposition,
    End,
    Flow,
    Modified,
    Rejected,
    Released,
    Source,
    Target,
    Transfer,
)
from lazaretto.servicebus.amqp.states import LinkState, SessionState

BODY = b"\x00\x53\x75\xa0\x05hello"


def test_a_connection_that_nobody_holds_is_gone() -> None:
    peers = Peers()
    session, _ = peers.begin()
    peers.link(session, sends=True)
    ends = [weakref.ref(peers.server), weakref.ref(peers.client)]
    peers.client.receive(b"\x00\x00\x00\x01nonsense")
    del peers, session, _
    gc.collect()
    assert [end() for end in ends] == [None, None]


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

    def test_a_link_that_is_attached_again_takes_the_place_of_the_first(self) -> None:
        peers = Peers()
        session, _ = peers.begin()
        first, theirs = peers.link(session, sends=True)
        peers.link(session, sends=False)
        second = session.attach("l", sends=True, source=Source("q"), target=Target("q"))
        peers.pump()
        # The server's user is told at once, and not again of the client's answer.
        assert peers.of(peers.server_events, LinkDetached).link is theirs
        told = peers.of(peers.client_events, LinkDetached)
        assert told.link is first
        assert told.error is not None
        assert told.error.condition == "amqp:link:stolen"
        waiting = peers.of(peers.server_events, LinkAttached).link
        # One that is not answered yet is given up, too.
        third = session.attach("l", sends=True, source=Source("q"), target=Target("q"))
        peers.pump()
        assert second.state is waiting.state is LinkState.ENDED
        new = peers.of(peers.server_events, LinkAttached).link
        new.session.accept(new)
        peers.pump()
        assert third.attached
        assert sorted(one.sends for one in session.links.values()) == [False, True]

    def test_one_that_is_attached_again_in_another_session_takes_the_place_of_the_first(self) -> None:
        peers = Peers()
        session, _ = peers.begin()
        first, theirs = peers.link(session, sends=False)
        sender, _ = peers.link(session, sends=True)
        other, _ = peers.begin()
        second, _ = peers.link(other, sends=False, credit=1)
        assert peers.of(peers.server_events, LinkDetached).link is theirs
        told = peers.of(peers.client_events, LinkDetached)
        assert told.link is first
        assert told.error is not None
        assert told.error.condition == "amqp:link:stolen"
        assert sender.attached
        assert second.attached
        assert second.credit == 1

    def test_a_name_is_free_behind_a_detach_and_an_end(self) -> None:
        peers = Peers()
        session, _ = peers.begin()
        first, _ = peers.link(session, sends=True)
        session.detach(first)
        peers.pump()
        peers.of(peers.server_events, LinkDetached)
        peers.of(peers.client_events, LinkDetached)
        peers.link(session, sends=True)
        session.end()
        # What is on its way to its end gives nothing up.
        other, _ = peers.begin()
        again, _ = peers.link(other, sends=True)
        assert again.attached
        ended = [one for one in peers.server_events + peers.client_events if isinstance(one, LinkDetached)]
        assert ended == []

    def test_a_peer_that_leaves_no_handle_for_the_answer_ends_its_session(self) -> None:
        for answer in ("accept", "refuse"):
            server = opened_server()
            server.receive(frame(0, Begin(None, 0, 100, 100, 0)))
            for handle, name in enumerate("ab"):
                attach = Attach(
                    name, handle, False, source=Source("q"), target=Target("q"), initial_delivery_count=0
                )
                (event,) = server.receive(frame(0, attach))
                assert isinstance(event, LinkAttached)
                server.take()
                session = event.link.session
                if name == "a" or answer == "accept":
                    session.accept(event.link)
                else:
                    session.refuse(event.link, "amqp:not-found", "there is none")
            (end,) = said(server.take())
            assert isinstance(end, End)
            assert end.error is not None
            assert end.error.condition == "amqp:resource-limit-exceeded"

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
        theirs.session.settle_sent([delivery], encode_composite(Accepted()))
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

    def test_one_disposition_tells_what_became_of_messages_that_follow_each_other(self) -> None:
        server = begun_server()
        (attached,) = server.receive(frame(0, Attach("l", 0, False)))
        assert isinstance(attached, LinkAttached)
        session = attached.link.session
        rejected = encode_composite(Rejected())
        for number in (1, 2, 3, 5):
            session.settle(number, number)
        session.settle(6, 6, rejected)
        session.settle(7, 9, rejected)
        session.settle(10, 10, rejected, settled=False)
        told = [(one.first, one.last) for one in said(server.take()) if isinstance(one, Disposition)]
        assert [(first, first if last is None else last) for first, last in told] == [
            (1, 3), (5, 5), (6, 9), (10, 10),
        ]  # fmt: skip
        # What was taken is on its way, and cannot be told of again.
        session.settle(11, 11, rejected, settled=False)
        session.send_flow()
        session.settle(12, 12, rejected, settled=False)
        told = [(one.first, one.last) for one in said(server.take()) if isinstance(one, Disposition)]
        assert [first for first, _ in told] == [11, 12]

    @pytest.mark.parametrize("size", [1001, 100_000])
    def test_a_message_too_large_is_rejected_and_nothing_of_it_kept(self, size: int) -> None:
        peers = Peers(server=ConnectionLimits(max_frame_size=512, partial=1_500))
        session, _ = peers.begin()
        ours, theirs = peers.link(session, sends=True, credit=5, max_message_size=1000)
        peers.of(peers.client_events, CreditChanged)
        session.transfer(ours, b"x" * 1000, b"t")
        large = session.transfer(ours, b"x" * size, b"u")
        session.transfer(ours, b"x", b"v")
        peers.pump()
        assert peers.of(peers.server_events, MessageRefused).link is theirs
        came = [event.payload for event in peers.server_events if isinstance(event, MessageReceived)]
        assert came == [b"x" * 1000, b"x"]
        updated = peers.of(peers.client_events, DeliveriesUpdated)
        assert (updated.deliveries, updated.settled) == ([large], True)
        assert isinstance(updated.state, Rejected)
        assert updated.state.error is not None
        assert updated.state.error.condition == "amqp:link:message-size-exceeded"
        assert ours.attached
        assert ours.credit == theirs.credit == 2
        assert peers.server.partial_size == 0

    def test_a_settled_message_too_large_detaches_the_link(self) -> None:
        peers = Peers(server=ConnectionLimits(max_frame_size=512))
        session, _ = peers.begin()
        ours, _ = peers.link(session, sends=True, credit=5, max_message_size=1000)
        session.transfer(ours, b"x" * 1001, b"u", settled=True)
        session.transfer(ours, b"x", b"v")
        peers.pump()
        detached = peers.of(peers.client_events, LinkDetached)
        assert detached.error is not None
        assert detached.error.condition == "amqp:link:message-size-exceeded"
        assert not any(isinstance(event, MessageReceived) for event in peers.server_events)
        assert peers.server.partial_size == 0

    def test_nothing_of_a_message_too_large_is_kept_while_it_comes(self) -> None:
        server = begun_server()
        (attached,) = server.receive(frame(0, Attach("l", 0, False)))
        assert isinstance(attached, LinkAttached)
        link = attached.link
        link.session.accept(link, max_message_size=1000)
        link.session.grant(link, 2)
        part = transfer_frame(0, 0, 0, b"t", b"x" * 600, settled=False, more=True)
        for _ in range(100):
            assert server.receive(part) == []
            assert server.partial_size == link.pending_size <= 600
        assert server.receive(frame(0, Transfer(0, aborted=True))) == [MessageRefused(link)]
        assert link.credit == 1
        (message,) = server.receive(frame(0, Transfer(0, 1, b"u")))
        assert isinstance(message, MessageReceived)

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

    def test_an_aborted_message_uses_credit_and_nothing_else(self) -> None:
        server = begun_server()
        (attached,) = server.receive(frame(0, Attach("l", 0, False)))
        assert isinstance(attached, LinkAttached)
        link = attached.link
        link.session.accept(link)
        link.session.grant(link, 2)
        begin = frame(0, Transfer(0, 0, b"t", more=True))
        assert server.receive(begin + frame(0, Transfer(0, aborted=True))) == [MessageRefused(link)]
        # Its sender has counted it, too.
        assert (link.credit, link.delivery_count) == (1, 1)
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
        session._deliveries._next = 0xFFFFFFFE
        ours, theirs = peers.link(session, sends=True, credit=10)
        sent = [session.transfer(ours, BODY, b"%d" % n) for n in range(5)]
        peers.pump()
        assert [one.id for one in sent] == [0xFFFFFFFE, 0xFFFFFFFF, 0, 1, 2]
        server.settle(0xFFFFFFFE, 1)
        peers.pump()
        assert peers.of(peers.client_events, DeliveriesUpdated).deliveries == sent[:4]
        assert theirs.credit == 5
