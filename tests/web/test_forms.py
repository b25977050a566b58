"""Forms of commands: their fields, options with units, and what an operator does with them."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Mapping

import httpx
import pytest

from lazaretto import Broker, EntityNotFound, Message, PoisonPolicy, QueueOptions
from lazaretto.broker.broker import store_of
from lazaretto.commands import COMMANDS
from lazaretto.engine.outcome import set_aside
from lazaretto.model.entities import TopicOptions
from lazaretto.web.console.settings import changes_of, settings_of

from .conftest import Served

ONCE = QueueOptions(policy=PoisonPolicy(receive_retry_count=0), breaker=None)


@pytest.fixture
def pages(served: Served) -> httpx.Client:
    return _pages(served, "admin")


def _pages(served: Served, name: str) -> httpx.Client:
    client = served.client(name)
    client.base_url = httpx.URL(str(client.base_url).replace("/api/v1", ""))
    client.headers["Accept"] = "text/html"
    return client


def page(pages: httpx.Client, path: str, /, **parameters: str | int) -> str:
    answer = pages.get(path, params=parameters or None)
    assert answer.status_code == 200, answer.text
    return answer.text


def press(pages: httpx.Client, shown: str, button: str, **typed: str) -> httpx.Response:
    """Send the form with a button as a browser does, with what is typed in its fields."""
    for form in re.findall(r"<form[^>]*method=\"post\".*?</form>", shown, re.DOTALL):
        if re.search(rf">{re.escape(html.escape(button))}</button>", form):
            action = re.search(r'action="([^"]+)"', form)
            assert action is not None
            inputs = re.findall(r'<input[^>]*name="([^"]*)"[^>]*value="([^"]*)"', form)
            fields = {html.unescape(name): html.unescape(value) for name, value in inputs}
            names = {name.partition(":")[0]: name for name in re.findall(r'name="([^"]+)"', form)}
            fields |= {names[name]: value for name, value in typed.items()}
            return pages.post(action[1], data=fields, follow_redirects=False)
    raise AssertionError(f"no form with the button {button!r}")


def done(answer: httpx.Response) -> None:
    assert answer.status_code == 303, answer.text


def test_every_command_has_a_form(pages: httpx.Client, broker: Broker) -> None:
    broker.create_topic("news")
    broker.create_subscription("news", "all")
    about: Mapping[str, str] = {"path": "q", "topic": "news", "subscription": "all"}
    for name, kind in COMMANDS.items():
        known = {field: about[field] for field in about if field in kind.__struct_fields__}
        known |= {"path": "news"} if name == "update_topic" else {}
        shown = page(pages, f"/do/{name}", **known)
        assert f'action="/do/{name}"' in shown, name


def test_a_queue_is_created_with_options_of_their_declaration(pages: httpx.Client, broker: Broker) -> None:
    wrong = page(pages, "/do/create_queue", path="new", max_size="much")
    assert "expected max size to be 1 KiB or more, got &#39;much&#39;" in wrong
    options = {
        "lock_duration": "5m", "max_message_size": "1 MiB", "default_time_to_live": "2d",
        "requires_session": "yes", "policy.receive_retry_count": "3", "policy.max_retry_cycles": "2",
        "policy.retry_cycle_delay.initial": "30s", "policy.retry_cycle_delay.growth": "linear",
        "dead_letter_policy": "yes", "dead_letter_policy.on_poison": "drop",
        "dead_letter_policy.on_invalid": "drop", "breaker": "no", "kept_samples": "0",
    }  # fmt: skip
    shown = page(pages, "/do/create_queue", path="new", **options)
    assert "A message is then tried 12 times" in shown
    answer = press(pages, shown, "Create a queue")
    done(answer)
    assert answer.headers["location"].startswith("/queue?queue=new&did=")
    kept = broker.queue("new").options
    assert (kept.lock_duration, kept.max_message_size, kept.default_time_to_live) == (300, 1 << 20, 172_800)
    assert kept.requires_session
    assert kept.breaker is None
    assert kept.policy.total_attempts == 12
    assert kept.dead_letter_policy is not None
    assert kept.dead_letter_policy.on_poison.value == "drop"
    assert "Create a queue</strong>" not in page(pages, answer.headers["location"])


def test_options_change_with_units_and_undo(pages: httpx.Client, broker: Broker) -> None:
    shown = page(pages, "/do/update_queue", path="q", lock_duration="120", kept_samples="", partitions="1")
    assert "<td>1m</td><td><strong>120</strong></td>" in shown
    answer = press(pages, shown, "Save 1 change")
    done(answer)
    assert broker.queue("q").options.lock_duration == 120
    done(press(pages, page(pages, answer.headers["location"]), "Undo"))
    assert broker.queue("q").options.lock_duration == 60


def test_what_clients_lose_leads_to_the_settings_that_spare_it(pages: httpx.Client, broker: Broker) -> None:
    assert "Spare clients" not in page(pages, "/queue", queue="q")
    store_of(broker).hold_for_clients()
    broker.sender("q").send([Message(b"x")] * 10)
    with broker.receiver("q") as receiver:
        receiver.abandon(receiver.receive(10))
    for shown in (page(pages, "/"), page(pages, "/queue", queue="q")):
        assert "lazaretto queue update q --breaker-clients" in shown
        (link,) = re.findall(r'href="([^"]+)">Spare clients', shown)
    done(press(pages, page(pages, html.unescape(link)), "Save 2 changes"))
    options = broker.queue("q").options
    assert options.breaker is not None
    assert (options.breaker.clients, options.blame_clients) == (True, True)
    assert "Spare clients" not in page(pages, "/queue", queue="q")


def test_a_change_of_what_somebody_changed_meanwhile_is_refused(pages: httpx.Client, broker: Broker) -> None:
    shown = page(pages, "/do/update_queue", path="q", lock_duration="120")
    broker.update_queue("q", lock_duration=30)
    assert press(pages, shown, "Save 1 change").status_code == 412
    assert broker.queue("q").options.lock_duration == 30


def test_topics_and_subscriptions_come_and_go(pages: httpx.Client, broker: Broker) -> None:
    shown = page(pages, "/do/create_topic", path="news", default_time_to_live="1h", back="/topics")
    done(press(pages, shown, "Create a topic"))
    form = page(pages, "/do/create_subscription", topic="news", subscription="all", lock_duration="2m")
    done(press(pages, form, "Create a subscription, with rules or one that takes every message"))
    assert broker.topic("news").options.default_time_to_live == 3600
    assert broker.subscription("news", "all").queue.options.lock_duration == 120
    done(press(pages, page(pages, "/do/update_topic", path="news", max_size="1 GiB"), "Save 1 change"))
    assert broker.topic("news").options.max_size == 1 << 30
    assert "/do/delete_subscription" in page(pages, "/topics")
    form = page(pages, "/do/delete_subscription", topic="news", subscription="all", back="/topics")
    assert "Nothing takes this back" in form
    done(press(pages, form, "Delete a subscription with all its messages and dead letters"))
    form = page(pages, "/do/delete_topic", path="news")
    done(press(pages, form, "Delete a topic with its subscriptions and all their messages"))
    with pytest.raises(EntityNotFound):
        broker.topic("news")


def test_options_are_those_of_their_class() -> None:
    for options in (QueueOptions(), TopicOptions()):
        settings = settings_of(options)
        assert changes_of(settings, {one.name: one.value for one in settings}) == ([], {})
        assert all(one.text.endswith(".") for one in settings)


class TestMessages:
    def test_a_message_is_sent_with_properties(self, pages: httpx.Client, broker: Broker) -> None:
        shown = page(pages, "/do/send_message", path="q")
        done(press(
            pages, shown, "Send a message to a queue or topic",
            body='  {"n": 1}\r\n', properties="shop=main\nnote=a=b\n", subject="new", time_to_live="60",
        ))  # fmt: skip
        (message,) = broker.receiver("q").receive(10)
        assert (message.body, message.subject) == (b'  {"n": 1}\n', "new")
        assert message.properties == {"shop": "main", "note": "a=b"}
        (entry,) = broker.audit(limit=1)
        assert (entry.action, entry.queue, entry.detail["sequence_number"]) == ("send_message", "q", 1)

    def test_a_file_is_sent_as_it_is(self, pages: httpx.Client, broker: Broker) -> None:
        content = base64.b64encode(b"\x00\xff").decode()
        shown = page(pages, "/do/send_message", path="q")
        button = "Send a message to a queue or topic"
        done(press(pages, shown, button, body_base64=content))
        assert broker.peek("q")[0].body == b"\x00\xff"
        assert press(pages, shown, button, body="x", body_base64=content).status_code == 422
        assert press(pages, page(pages, "/do/send_message", path="q"), button).status_code == 422

    def test_the_same_form_sends_once(self, pages: httpx.Client, broker: Broker) -> None:
        shown = page(pages, "/do/send_message", path="q")
        for _ in range(2):
            done(press(pages, shown, "Send a message to a queue or topic", body="x"))
        assert broker.queue("q").counts.active == 1

    def test_an_operator_may_not_send(self, served: Served) -> None:
        shown = page(_pages(served, "operator"), "/do/send_message", path="q")
        assert "You may not do this on q: ask for the permission send." in html.unescape(shown)
        answer = press(_pages(served, "operator"), shown, "Send a message to a queue or topic", body="x")
        assert answer.status_code == 403

    def test_waiting_messages_are_deleted(self, pages: httpx.Client, broker: Broker) -> None:
        broker.sender("q").send([Message(b"x")] * 3)
        assert "count=3" in html.unescape(page(pages, "/queue", queue="q"))
        shown = page(pages, "/do/delete_messages", path="q", count="3")
        done(
            press(
                pages,
                shown,
                "Delete the first active messages of a queue for good; the answer is how many these were",
            )
        )
        assert broker.queue("q").counts.active == 0


def dead(broker: Broker, number: int, error: Exception) -> None:
    broker.sender("orders").send([Message(b"%d" % n) for n in range(number)])
    with broker.receiver("orders") as receiver:
        for message in receiver.receive(number):
            receiver.abandon(message, error=error)


class TestSetAside:
    def test_a_whole_cause_is_set_aside_and_brought_back(self, pages: httpx.Client, broker: Broker) -> None:
        broker.create_queue("orders", ONCE)
        dead(broker, 4, ValueError("bad"))
        dead(broker, 2, KeyError("other"))
        broker.purge("orders", [6])
        number = broker.triage("orders").causes[0].number
        answer = press(pages, page(pages, f"/failures/{number}", queue="orders"), "Set aside 4")
        done(answer)
        assert [cause.letters for cause in broker.triage("orders").causes] == [1]
        aside = page(pages, "/set-aside", queue="orders")
        assert "5 letters are set aside" in aside
        # What was set aside before stays so.
        done(press(pages, page(pages, answer.headers["location"]), "Undo"))
        assert broker.purged("orders") == [6]
        done(press(pages, page(pages, "/set-aside", queue="orders"), "Restore"))
        assert broker.purged("orders") == []

    def test_a_large_cause_goes_in_parts(
        self, pages: httpx.Client, broker: Broker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(set_aside, "LETTERS_OF_CAUSE", 3)
        broker.create_queue("orders", ONCE)
        dead(broker, 5, ValueError("bad"))
        assert broker.triage("orders").causes[0].number == 1
        for letters, remaining in ((3, 2), (2, 0)):
            answer = pages.post("/api/v1/commands/purge_cause", json={"path": "orders", "number": 1})
            assert answer.json() == {"letters": letters, "remaining": remaining}
        answers = [
            pages.post("/api/v1/commands/restore_purged", json={"path": "orders"}).json() for _ in range(2)
        ]
        assert [one["letters"] for one in answers] == [3, 2]
        assert broker.queue("orders").counts.dead_letter == 5

    def test_a_letter_is_moved(self, pages: httpx.Client, broker: Broker) -> None:
        broker.create_queue("orders", ONCE)
        dead(broker, 1, ValueError("bad"))
        form = page(pages, "/do/move_dead_letters", path="orders", sequence_numbers="1")
        assert '<option value="q">' in form
        done(press(pages, form, "Move dead letters to another queue", to="q"))
        assert broker.queue("q").counts.active == 1


class TestSessions:
    def test_a_session_says_who_holds_it_and_is_released(self, pages: httpx.Client, broker: Broker) -> None:
        broker.create_queue("talks", QueueOptions(requires_session=True))
        broker.sender("talks").send([Message(b"x", session_id="ana"), Message(b"x", session_id="ben")])
        receiver = broker.receiver("talks", session="ana")
        receiver.set_session_state(b'{"step": 3}')
        (message,) = receiver.receive(1)
        shown = page(pages, "/sessions", queue="talks")
        assert "&#34;step&#34;: 3" in shown
        assert "Release ben" not in shown
        done(press(pages, shown, "Release ana"))
        assert broker.session("talks", "ana").locked_until is None
        again = broker.receiver("talks", session="ana").receive(1)[0]
        assert again.sequence_number == message.sequence_number
        # No attempt was counted for the one whose lock was taken.
        assert again.delivery_count == message.delivery_count

    def test_what_nobody_holds_cannot_be_released(self, pages: httpx.Client, broker: Broker) -> None:
        broker.create_queue("talks", QueueOptions(requires_session=True))
        answer = pages.post("/api/v1/commands/free_session", json={"path": "talks", "session_id": "x"})
        assert answer.status_code == 409
        assert "is not locked" in answer.json()["detail"]
