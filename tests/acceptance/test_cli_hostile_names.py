"""Whatever names and texts are stored, no listing sends a terminal anything that it would obey."""

from __future__ import annotations

import re

import pytest
from cli_program import Program

import lazaretto
from lazaretto import Message, PoisonPolicy, QueueOptions, Rule, SqlAction, SqlFilter
from lazaretto.broker.broker import store_of
from lazaretto.commands import CreateLink, CreateToken, GrantRole, SetRedaction
from lazaretto.engine.logins import OpenSession

#: Colour, the window's title, a notifier, a carriage return, a C1 escape, text that runs backwards, markup.
EVIL = "\x1b[31m\x1b]0;x\x07\r\n\x9b\u202e\u2066[red]\u200f"
WIDTHS = (60, 80, 120, 200)
#: What is a sequence of the command's own drawing on a terminal, and needs no look.
_OWN = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\r\n")

#: What shows stored names. A command that reads anything and is not here makes the test fail.
LISTINGS = {
    "peek": ["q", "--limit", "9"],
    "show": ["q", "1"],
    "events": [],
    "audit": [],
    "doctor": [],
    "status": [],
    "queue list": [],
    "queue show": ["q"],
    "topic list": [],
    "topic show": ["t"],
    "subscription list": ["t"],
    "subscription show": ["t", "a"],
    "rule list": ["t", "a"],
    "rule test": ["t", "a", "--property", "a=1"],
    "dead-letter list": ["q"],
    "dead-letter show": ["q", "1"],
    "dead-letter groups": ["q"],
    "dead-letter export": ["q"],
    "breaker show": ["q"],
    "session list": ["s"],
    "session show": ["s", EVIL],
    "dialog list": [],
    "dialog definitions": [],
    "dialog show": ["DIALOG"],
    "dialog timeline": ["DIALOG"],
    "claim list": ["q"],
    "command list": [],
    "worker list": [],
    "access person list": [],
    "access token list": [],
    "access session list": [],
    "redaction list": [],
    "store check": [],
    "repair list": [],
    "repair show": ["one"],
    "repair letters": ["one"],
    "triage list": ["q"],
    "triage show": ["q", "1"],
}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """A store in which every name and text is hostile."""
    path = tmp_path_factory.mktemp("hostile") / "store.db"
    with lazaretto.connect(path) as broker:
        policy = PoisonPolicy(receive_retry_count=0)
        broker.create_queue("q", QueueOptions(policy=policy))
        fields = {"message_id": EVIL, "subject": EVIL, "to": EVIL, "properties": {EVIL: EVIL}}
        body = EVIL.encode()
        broker.sender("q").send([Message(body, **fields), Message(body, **fields)])  # type: ignore[arg-type]
        with broker.receiver("q") as receiver:
            receiver.dead_letter(receiver.receive(), reason=EVIL, description=EVIL, error=f"Evil: {EVIL}")
        with broker.receiver("q") as receiver:
            receiver.abandon(receiver.receive(), error=f"Evil: {EVIL}")
        broker.plan_repair("q", [1], name="one", actor=EVIL)
        broker.sender("q").send(Message(body, **fields))  # type: ignore[arg-type]
        broker.update_queue("q", lock_duration=5, actor=EVIL)
        broker.create_queue("s", QueueOptions(requires_session=True))
        broker.sender("s").send(Message(body, session_id=EVIL))
        broker.create_topic("t")
        literal = EVIL.replace("\r\n", "")
        rule = Rule(EVIL, SqlFilter(f"a = 1 OR b = '{literal}'"), SqlAction(f"SET c = '{literal}'"))
        broker.create_subscription("t", "a", rules=[rule])
        # A person's name is printable; a pattern and what a token is for need not be.
        broker.run(GrantRole(person="[red]", role="viewer", queue=EVIL), actor=EVIL)
        broker.run(CreateToken(person="[red]", label=EVIL), actor=EVIL)
        broker.run(SetRedaction(field=f'body."{EVIL}"', queue=EVIL))
        code = broker.run(CreateLink(person="[red]"))["secret"]
        store_of(broker).run(OpenSession(code, None, EVIL))
        dialogs = broker.dialogs
        dialogs.create_service(EVIL, "d", ["DEFAULT"])
        with dialogs.transaction() as work:
            handle = work.begin_dialog(EVIL, EVIL)
            work.send(handle, body=body)
    found = Program(path)
    found.environment["DIALOG"] = handle
    return found


def _unsafe(text: str) -> list[str]:
    return [c for c in text if not c.isprintable() and c not in "\n\t"]


@pytest.mark.parametrize("listing", LISTINGS)
def test_listings(program: Program, listing: str) -> None:
    given = [program.environment["DIALOG"] if a == "DIALOG" else a for a in LISTINGS[listing]]
    arguments = [*listing.split(), *given]
    result = program(*arguments)
    assert result.code in (0, 1), result
    assert _unsafe(result.out + result.err) == []
    for width in WIDTHS:
        program.environment["COLUMNS"] = str(width)
        code, shown = program.on_terminal(*arguments)
        assert code == result.code
        assert _unsafe(_OWN.sub("\n", shown)) == []
        assert "\x1b[31m" not in shown
        assert "\x1b]0" not in shown


def test_every_listing_is_tried(program: Program) -> None:
    reading = {"list", "show", "export", "groups", "timeline", "definitions", "test", "check", "letters"}
    alone = {"peek", "show", "events", "audit", "doctor", "status"}
    names = [command for command in _commands(program) if command not in alone]
    names += [f"access {part}" for part in ("person", "token", "session")]
    found = [
        f"{name} {part}" for name in names for part in _commands(program, *name.split()) if part in reading
    ]
    assert sorted([*found, *alone]) == sorted(LISTINGS)


def _commands(program: Program, *group: str) -> list[str]:
    """Return the commands that a help page names."""
    _, _, page = program.ok(*group, "--help").out.partition("Commands:\n")
    return re.findall(r"^  ([a-z-]+)  ", page.partition("\n\n")[0], re.MULTILINE)
