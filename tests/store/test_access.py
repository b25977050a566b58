"""Who may do what: roles, tokens, links and sessions, in both stores."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from lazaretto import (
    Broker,
    DeadLetterFilter,
    Grant,
    InvalidOption,
    ManualClock,
    NotAllowed,
    PersonNotFound,
    Role,
    SecondPersonNeeded,
    TokenNotFound,
)
from lazaretto import commands as c
from lazaretto.broker.broker import store_of
from lazaretto.commands import opposite_of
from lazaretto.engine.access import LINK, SESSION, TOKEN, Visitor, find_visitor
from lazaretto.engine.logins import CloseSession, NoteSeen, OpenSession
from lazaretto.engine.timers import CleanUp
from lazaretto.model.actors import Actor, behind

from .actions import create, send


def visitor(broker: Broker, secret: str, kind: str = TOKEN) -> Visitor | None:
    return store_of(broker).read(lambda tx: find_visitor(tx, secret, kind))


def token(broker: Broker, person: str = "ana", **given: object) -> str:
    made: str = broker.run(c.CreateToken(person=person, **given))["secret"]  # type: ignore[arg-type]
    return made


def log_in(broker: Broker, secret: str, former: str | None = None) -> str | None:
    made = store_of(broker).run(OpenSession(secret, former, "10.0.0.9"))
    return None if made is None else made.secret


@pytest.fixture
def ana(broker: Broker) -> Broker:
    broker.run(c.GrantRole(person="ana", role="operator", queue="shop/*"))
    return broker


class TestRoles:
    """Granted and withdrawn, each with its entry in the audit log."""

    def test_granted_and_withdrawn(self, ana: Broker) -> None:
        ana.run(c.GrantRole(person="ana", role="viewer"))
        (person,) = ana.people()
        assert person.grants == (Grant(Role.OPERATOR, "shop/*"), Grant(Role.VIEWER))
        ana.run(c.WithdrawRole(person="ana", role="operator", queue="shop/*"))
        assert ana.people()[0].grants == (Grant(Role.VIEWER),)
        withdrawn, granted, _ = ana.audit()
        assert withdrawn.detail == {"person": "ana", "role": "operator", "pattern": "shop/*"}
        assert granted.action == "access: grant"
        opposite = opposite_of(withdrawn)
        assert opposite is not None
        ana.run(opposite)
        assert Grant(Role.OPERATOR, "shop/*") in ana.people()[0].grants

    def test_what_changes_nothing_is_refused(self, ana: Broker) -> None:
        for command in (
            c.GrantRole(person="ana", role="operator", queue="shop/*"),
            c.WithdrawRole(person="ana", role="operator"),
        ):
            with pytest.raises(NotAllowed):
                ana.run(command)
        for unknown in (c.WithdrawRole(person="bob", role="viewer"), c.RemovePerson(person="bob")):
            with pytest.raises(PersonNotFound):
                ana.run(unknown)
        assert len(ana.audit()) == 1

    @pytest.mark.parametrize("person", ["", " ana", "a\nb", "a\u202eb", "x" * 201, "\ud800"], ids=ascii)
    def test_names(self, broker: Broker, person: str) -> None:
        with pytest.raises(InvalidOption):
            broker.run(c.GrantRole(person=person, role="viewer"))
        assert broker.people() == []

    def test_a_role_that_is_none(self, broker: Broker) -> None:
        with pytest.raises(InvalidOption, match="viewer"):
            broker.run(c.GrantRole(person="ana", role="god"))

    def test_the_audit_log_tells_where_the_actor_was(self, broker: Broker) -> None:
        actor = Actor.at("root", "10.0.0.1")
        broker.run(c.GrantRole(person="ana", role="viewer"), actor=actor, idempotency_key="k")
        broker.run(c.GrantRole(person="ana", role="viewer"), actor="root", idempotency_key="k")
        broker.create_queue("q")
        broker.set_status("q", "disabled", actor=actor)
        assert [(e.actor, e.detail.get("origin")) for e in broker.audit(actor="root")] == [
            ("root", "10.0.0.1")
        ] * 2


class TestTokens:
    """Shown once, told by a prefix, hashed, expired, revoked."""

    def test_made_once(self, ana: Broker) -> None:
        made = ana.run(c.CreateToken(person="ana", label="laptop"))
        assert made["secret"].startswith(f"lzt_{made['id']}_")
        found = visitor(ana, made["secret"])
        assert found is not None
        assert (found.name, found.grants) == ("ana", (Grant(Role.OPERATOR, "shop/*"),))
        (listed,) = ana.tokens()
        assert (listed.id, listed.person, listed.label) == (made["id"], "ana", "laptop")
        assert listed.expires == listed.created + timedelta(days=90)
        told = repr((ana.tokens(), ana.audit(), ana.people()))
        assert made["secret"].removeprefix(f"lzt_{made['id']}_") not in told

    def test_the_secret_is_in_no_table(self, ana: Broker) -> None:
        secret = token(ana)
        kept = store_of(ana).read(lambda tx: tx.access.secrets(TOKEN, None))
        assert secret[-20:].encode() not in repr(kept).encode()
        assert len(kept[0].digest) == 32

    def test_no_key_keeps_its_answer(self, ana: Broker) -> None:
        for command in (c.CreateToken(person="ana"), c.CreateLink(person="ana")):
            with pytest.raises(NotAllowed, match="shown once"):
                ana.run(command, idempotency_key="k")
        assert ana.tokens() == []

    def test_another_secret(self, ana: Broker) -> None:
        secret = token(ana)
        id_ = secret.split("_")[1]
        wrong = ["", "lzt", f"lzt_{id_}", f"lzt_{id_}_", secret[:-1], secret + "x", f"lzt_{id_}_{'x' * 43}",
                 secret.replace("lzt", "lzs"), "lzt__", "lzt_\0_x", "lzt_%_x", "\ud800"]  # fmt: skip
        assert [visitor(ana, one) for one in wrong] == [None] * len(wrong)
        assert visitor(ana, secret.replace("lzt", "lzs"), SESSION) is None
        assert visitor(ana, secret, SESSION) is None

    def test_expiry(self, ana: Broker, clock: ManualClock) -> None:
        secret = token(ana, expires=datetime.fromtimestamp(clock.now() / 1e6, UTC) + timedelta(days=1))
        assert visitor(ana, secret) is not None
        clock.advance(86_399)
        assert visitor(ana, secret) is not None
        clock.advance(2)
        assert visitor(ana, secret) is None
        store_of(ana).run(CleanUp())
        assert ana.tokens() == []

    def test_revoked(self, ana: Broker) -> None:
        kept, gone = token(ana), token(ana)
        session = log_in(ana, gone)
        assert session is not None
        assert ana.run(c.RevokeToken(id=gone.split("_")[1])) == "ana"
        assert visitor(ana, gone) is None
        assert visitor(ana, session, SESSION) is None
        assert visitor(ana, kept) is not None
        with pytest.raises(TokenNotFound):
            ana.run(c.RevokeToken(id=gone.split("_")[1]))

    def test_a_removed_person(self, ana: Broker) -> None:
        secrets = [token(ana), token(ana)]
        ana.run(c.GrantRole(person="bob", role="viewer"))
        other = token(ana, "bob")
        assert ana.run(c.RemovePerson(person="ana")) == 2
        assert [visitor(ana, secret) for secret in secrets] == [None, None]
        assert visitor(ana, other) is not None
        assert [person.name for person in ana.people()] == ["bob"]

    def test_roles_are_those_of_now(self, ana: Broker) -> None:
        secret = token(ana)
        ana.run(c.WithdrawRole(person="ana", role="operator", queue="shop/*"))
        found = visitor(ana, secret)
        assert found is not None
        assert found.grants == ()

    def test_last_used_to_the_hour(self, ana: Broker, clock: ManualClock) -> None:
        secret = token(ana)
        first = visitor(ana, secret)
        assert first is not None
        assert first.stale
        store_of(ana).run(NoteSeen(first.id))
        again = visitor(ana, secret)
        assert again is not None
        assert not again.stale
        clock.advance(3601)
        later = visitor(ana, secret)
        assert later is not None
        assert later.stale

    def test_for_nobody(self, broker: Broker) -> None:
        for command in (c.CreateToken(person="ana"), c.CreateLink(person="ana")):
            with pytest.raises(PersonNotFound):
                broker.run(command)


class TestSessions:
    """Opened by a link or a token, rotated, ended."""

    def test_a_link_works_once(self, ana: Broker) -> None:
        code = ana.run(c.CreateLink(person="ana"))["secret"]
        assert visitor(ana, code) is None
        assert visitor(ana, code, SESSION) is None
        session = log_in(ana, code)
        assert session is not None
        assert log_in(ana, code) is None
        found = visitor(ana, session, SESSION)
        assert found is not None
        assert found.grants == (Grant(Role.OPERATOR, "shop/*"),)
        assert visitor(ana, session) is None
        (listed,) = ana.browser_sessions()
        assert (listed.person, listed.label) == ("ana", "10.0.0.9")

    def test_a_link_lasts_a_minute(self, ana: Broker, clock: ManualClock) -> None:
        code = ana.run(c.CreateLink(person="ana"))["secret"]
        clock.advance(61)
        assert log_in(ana, code) is None

    def test_the_owners_link(self, broker: Broker) -> None:
        """It needs nobody in the store, and makes nobody there an admin."""
        session = log_in(broker, broker.run(c.CreateLink(), actor="root")["secret"])
        assert session is not None
        found = visitor(broker, session, SESSION)
        assert found is not None
        assert (found.name, found.grants) == ("root", (Grant(Role.ADMIN),))
        assert broker.people() == []
        assert visitor(broker, session, LINK) is None

    def test_a_login_ends_the_former_session(self, ana: Broker) -> None:
        secret = token(ana)
        first = log_in(ana, secret)
        second = log_in(ana, secret, first)
        assert first is not None
        assert second is not None
        assert visitor(ana, first, SESSION) is None
        assert visitor(ana, second, SESSION) is not None
        assert log_in(ana, second) is None

    def test_unused_and_in_all(self, ana: Broker, clock: ManualClock) -> None:
        idle, used = log_in(ana, token(ana)), log_in(ana, token(ana))
        assert idle is not None
        assert used is not None
        for _ in range(3):
            clock.advance(7.9 * 3600)
            found = visitor(ana, used, SESSION)
            assert found is not None
            assert found.stale
            store_of(ana).run(NoteSeen(found.id))
        assert visitor(ana, idle, SESSION) is None
        clock.advance(0.4 * 3600)
        assert visitor(ana, used, SESSION) is None

    def test_ended(self, ana: Broker) -> None:
        secret = token(ana)
        one, two, three = (log_in(ana, secret) for _ in range(3))
        assert one is not None
        assert two is not None
        assert three is not None
        assert store_of(ana).run(CloseSession(one))
        assert not store_of(ana).run(CloseSession(one))
        assert visitor(ana, two, SESSION) is not None
        ana.run(c.RevokeToken(id=two.split("_")[1]))
        assert visitor(ana, two, SESSION) is None
        assert visitor(ana, secret) is not None
        assert ana.run(c.EndSessions(person="ana")) == 1
        assert visitor(ana, three, SESSION) is None

    def test_a_session_ends_with_its_token(self, ana: Broker, clock: ManualClock) -> None:
        secret = token(ana, expires=datetime.fromtimestamp(clock.now() / 1e6, UTC) + timedelta(hours=1))
        session = log_in(ana, secret)
        assert session is not None
        clock.advance(3601)
        assert visitor(ana, session, SESSION) is None


class TestFourEyes:
    """Whoever planned a large repair does not let it go on."""

    @pytest.fixture
    def stocked(self, broker: Broker) -> Broker:
        create(broker)
        send(broker, *(b"%d" % n for n in range(6)))
        receiver = broker.receiver("q")
        for message in receiver.receive(6):
            receiver.dead_letter(message, reason="A")
        return broker

    def test_a_second_person_applies(self, stocked: Broker) -> None:
        stocked.run(c.SetFourEyes(letters=5))
        assert stocked.four_eyes() == 5
        large = stocked.plan_repair(
            "q", DeadLetterFilter(), everything=True, name="large", canary=2, actor="ana"
        )
        large.canary(actor="ana")
        large.cancel(actor="ana")
        again = stocked.plan_repair(
            "q", DeadLetterFilter(), everything=True, name="again", canary=6, actor="ana"
        )
        for refused in (again.apply, again.canary):
            with pytest.raises(SecondPersonNeeded, match="ana"):
                refused(actor="ana")
        with pytest.raises(SecondPersonNeeded):
            stocked.run(c.ApplyRepair(name="again"), actor=Actor.at("ana", "10.0.0.1"), idempotency_key="k")
        assert again.status().phase.value == "planned"
        again.apply(actor="bob")
        again.pause(actor="bob")
        again.resume(actor="ana")
        assert again.status().phase.value == "applying"

    def test_one_person_with_several_names(self, stocked: Broker) -> None:
        """Whoever made a token over a network can use it, and so can whoever made that person's token."""
        stocked.run(c.SetFourEyes(letters=5))
        for name in ("ana", "ben", "ci", "bot", "cleo"):
            stocked.run(c.GrantRole(person=name, role="admin"))

        def actor(person: str, maker: str | None) -> Actor:
            """Return somebody with a token that somebody made: in the console, or at the command line."""
            made = stocked.run(c.CreateToken(person=person), actor=maker)
            found = visitor(stocked, made["secret"])
            assert found is not None
            return Actor.at(found.name, "10.0.0.1", found.makers)

        ana = Actor.at("ana", "10.0.0.1")
        ci, bot = actor("ci", ana), actor("bot", ana)
        far, own, ben, cleo = actor("ben", ci), actor("ana", ana), actor("ben", "root"), actor("cleo", "root")
        assert [sorted(behind(one)) for one in (ci, far, own, ben)] == [
            ["ana", "ci"], ["ana", "ben", "ci"], ["ana"], ["ben"]
        ]  # fmt: skip
        alike = [(ana, ci), (ci, ana), (ci, bot), (ana, far), (far, ci), (own, bot), ("ana", ci)]
        for number, (planner, second) in enumerate(alike):
            name = f"plan-{number}"
            plan = stocked.plan_repair("q", DeadLetterFilter(), everything=True, name=name, actor=planner)
            with pytest.raises(SecondPersonNeeded, match="who planned it"):
                plan.apply(actor=second)
            plan.cancel(actor=planner)
        for planner, second in [(ana, ben), (ben, ana), (ben, cleo), (ci, ben), ("root", ana)]:
            name = f"{planner}-and-{second}"
            plan = stocked.plan_repair("q", DeadLetterFilter(), everything=True, name=name, actor=planner)
            plan.apply(actor=second)
            plan.cancel(actor=second)

    def test_sessions_know_who_made_their_token_or_link(self, stocked: Broker) -> None:
        stocked.run(c.GrantRole(person="ci", role="admin"))
        ana = Actor.at("ana", "10.0.0.1")
        for command in (c.CreateToken(person="ci"), c.CreateLink(person="ci")):
            secret = stocked.run(command, actor=ana)["secret"]
            session = stocked._store.run(OpenSession(secret, None, "10.0.0.2"))
            assert session is not None
            found = visitor(stocked, session.secret, SESSION)
            assert found is not None
            assert found.makers == ("ana",)

    def test_up_to_the_size_one_person_does(self, stocked: Broker) -> None:
        stocked.run(c.SetFourEyes(letters=6))
        stocked.plan_repair("q", DeadLetterFilter(), everything=True, name="small", actor="ana").apply(
            actor="ana"
        )

    def test_set_and_taken_back(self, broker: Broker) -> None:
        assert broker.four_eyes() is None
        broker.run(c.SetFourEyes(letters=6))
        broker.run(c.SetFourEyes(letters=None))
        assert broker.four_eyes() is None
        opposite = opposite_of(broker.audit()[0])
        assert opposite == c.SetFourEyes(letters=6)
        for wrong in (-1, 1 << 50):
            with pytest.raises(InvalidOption):
                broker.run(c.SetFourEyes(letters=wrong))
