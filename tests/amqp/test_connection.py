"""Connections, sessions and links of AMQP 1.0 between two ends, and with bytes written by hand."""

from __future__ import annotations

import pytest
from peers import Peers, begun_server, opened_server, said

from lazaretto.servicebus.amqp import Connection, ConnectionLimits
from lazaretto.servicebus.amqp.composites import Composite
from lazaretto.servicebus.amqp.conditions import SessionError
from lazaretto.servicebus.amqp.events import (
    Closed,
    Failed,
    LinkAttached,
    SaslStarted,
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
    Transfer,
)
from lazaretto.servicebus.amqp.states import ConnectionState, SessionState
from lazaretto.servicebus.amqp.windows import Windows


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
