"""`lazaretto run`, `try` and `breaker`: handlers at work, tried on one message, and held back."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_program import Program, Terminal, fill, interrupt, set_aside

import lazaretto
from lazaretto import Message, PoisonPolicy

HANDLERS = """\
import os, sys
from lazaretto import Message
from lazaretto.host import handler

@handler("orders", deadline=60)
def book(message, context):
    print("booking", message.body.decode())
    if message.body == b"no":
        raise ValueError("no such thing")
    if message.body == b"crash":
        os.abort()
    if message.body == b"later":
        context.defer()
    context.send("invoices", Message(b"for " + message.body))
    context.execute("INSERT INTO booked VALUES (?)", (message.body.decode(),))

def plain(message):
    "A function that is no handler of any queue."

def three(a, b, c):
    "Nothing a handler could be."

pair = [book]
number = 7
"""

NAPS = """\
import multiprocessing, pathlib, subprocess, time
from lazaretto.host import handler
from lazaretto.host.slots import Slot

stop = Slot.stop

def tell(slot, grace):
    stop(slot, grace)
    pathlib.Path("stopping").touch()

Slot.stop = tell

@handler("naps", deadline=None)
def nap(message):
    begin()
    while message.body == b"wait" and not pathlib.Path("go").exists():
        time.sleep(0.005)

@handler("naps", deadline=None, isolation="inline")
def inline(message):
    nap.function(message)

@handler("naps", deadline=None)
def starts(message, context):
    if message.attempt == 1:
        begin()
    own = subprocess.Popen(["sleep", "3600"])
    forked = multiprocessing.get_context("fork").Process(target=time.sleep, args=(3600,))
    forked.start()
    own.terminate()
    forked.terminate()
    forked.join()
    context.dead_letter(f"{own.wait()} {forked.exitcode}")

def begin():
    with open("begun", "a") as file:
        file.write("begun\\n")
"""


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """A program with the queue `orders`, in a folder with the module `shop`."""
    (tmp_path / "shop.py").write_text(HANDLERS)
    (tmp_path / "broken.py").write_text("import nothing_of_this_name\n")
    (tmp_path / "empty.py").write_text("")
    monkeypatch.chdir(tmp_path)
    program = Program(tmp_path / "store.db")
    with program.broker() as broker:
        fill(broker, "orders", [], policy=PoisonPolicy(receive_retry_count=1))
        broker.create_queue("invoices")
        with broker.transaction() as tx:
            tx.execute("CREATE TABLE booked (body TEXT)")
    return program


def send(program: Program, *bodies: bytes) -> None:
    with program.broker() as broker:
        broker.sender("orders").send([Message(body) for body in bodies])


def booked(broker: lazaretto.Broker) -> list[str]:
    with broker.transaction() as tx:
        return [body for (body,) in tx.execute("SELECT body FROM booked").fetchall()]


class TestRun:
    def test_it_works_queues_off_and_says_how_it_went(self, cli: Program) -> None:
        send(cli, b"lamp", b"no", b"crash", b"desk")
        ended = cli("run", "shop", "--stop-when-idle")
        assert ended.code == 0
        last = ended.out.splitlines()[-1]
        assert last.startswith("orders: rate/s ")
        assert last.endswith("active 0, completed 2, retries 2, dead 2, breaker closed")
        assert "booking lamp" in ended.err
        with cli.broker() as broker:
            assert sorted(booked(broker)) == ["desk", "lamp"]
            assert [m.body for m in broker.peek("invoices", 9)] == [b"for lamp", b"for desk"]
            assert {d.reason for d in broker.dead_letters("orders")} == {
                "MaxDeliveryCountExceeded",
                "WorkerCrashed",
            }

    @pytest.mark.parametrize("reference", ["shop:book", "shop:pair", "shop"])
    def test_handlers_by_any_name(self, cli: Program, reference: str) -> None:
        send(cli, b"lamp")
        report = cli("run", reference, "--stop-when-idle", "--json")
        assert report.code == 0
        assert (report.json["queue"], report.json["completed"], report.json["dead"]) == ("orders", 1, 0)

    def test_metrics_are_answered_while_it_runs(self, cli: Program) -> None:
        done = cli("run", "shop", "--stop-when-idle", "--metrics", "0")
        assert (done.code, "metrics at http://127.0.0.1:" in done.err) == (0, True)
        for wrong in ("x", "127.0.0.1:x", "70000", "\u0663"):
            assert "expected an address" in cli.fails(2, "usage", "run", "shop", "--metrics", wrong)
        with socket.create_server(("127.0.0.1", 0)) as taken:
            busy = f"127.0.0.1:{taken.getsockname()[1]}"
            assert "nothing can listen" in cli.fails(2, "usage", "run", "shop", "--metrics", busy)

    @pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
    def test_told_to_end_it_ends_well(self, cli: Program, end: signal.Signals) -> None:
        send(cli, b"lamp")
        process = cli.start("run", "shop", "--grace", "5s")
        assert process.stdout is not None
        assert process.stdout.readline() == b"running; Control-C ends it\n"
        with cli.broker() as broker, broker.receiver("invoices") as receiver:
            (message,) = receiver.receive(max_wait=120)
            assert message.body == b"for lamp"
        process.send_signal(end)
        out, _ = process.communicate(timeout=120)
        assert process.returncode == 0
        assert b"completed 1" in out

    def test_on_a_terminal_it_draws_a_table(self, cli: Program) -> None:
        send(cli, b"lamp", b"no")
        code, shown = cli.on_terminal("run", "shop", "--stop-when-idle")
        assert code == 0
        for word in ("queue", "rate/s", "retries", "breaker", "orders", "closed"):
            assert word in shown

    def test_a_reader_that_goes_away_is_no_reason_to_fail_messages(self, cli: Program) -> None:
        send(cli, *[b"lamp"] * 300)
        process = cli.start(
            "run", "shop", "--stop-when-idle", stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        assert process.stdout is not None
        process.stdout.close()
        process.wait(120)
        with cli.broker() as broker:
            assert broker.queue("orders").counts.dead_letter == 0

    @pytest.mark.parametrize(
        ("reference", "text"),
        [
            ("nowhere", "'nowhere' cannot be imported"),
            ("broken", "'broken' cannot be imported: ModuleNotFoundError"),
            ("empty", "has no handlers: decorate functions with @handler(queue)"),
            ("shop:bok", "'shop' has no 'bok'; did you mean 'book'?"),
            ("shop:number", "to be a Handler, a list of them, or functions by queue, got 7"),
            ("shop:plain", "to be a Handler"),
        ],
    )
    def test_what_cannot_be_run_is_refused(self, cli: Program, reference: str, text: str) -> None:
        assert text in cli.fails(2, "handler_error", "run", reference)

    def test_a_queue_that_is_not_there(self, cli: Program) -> None:
        with cli.broker() as broker:
            broker.delete_queue("orders")
        assert "'orders'" in cli.fails(3, "entity_not_found", "run", "shop")

    def test_two_programs_share_the_work(self, cli: Program) -> None:
        send(cli, *[b"%d" % n for n in range(500)])
        both = [
            cli.start(
                "run",
                "shop",
                "--stop-when-idle",
                stdin=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
            for _ in range(2)
        ]
        assert [process.wait(120) for process in both] == [0, 0]
        with cli.broker() as broker:
            assert sorted(map(int, booked(broker))) == list(range(500))

    def test_killed_it_leaves_no_process_and_loses_nothing(self, cli: Program) -> None:
        send(cli, *[b"%d" % n for n in range(2_000)])
        process = cli.start(
            "run", "shop", stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        with cli.broker() as broker, broker.receiver("invoices") as receiver:
            assert receiver.receive(max_wait=120)
        below = children(process.pid)
        process.kill()
        process.wait()
        end = time.monotonic() + 120
        while any(Path(f"/proc/{pid}").exists() for pid in below) and time.monotonic() < end:
            time.sleep(0.01)
        assert below
        assert not [pid for pid in below if Path(f"/proc/{pid}").exists()]
        assert cli("run", "shop", "--stop-when-idle").code == 0
        with cli.broker() as broker:
            assert sorted(map(int, booked(broker))) == list(range(2_000))
            assert broker.queue("orders").counts.dead_letter == 0


class TestInTheForeground:
    """What ends a program in a terminal reaches all its processes: the sandbox's too."""

    @pytest.fixture(autouse=True)
    def _naps(self, cli: Program, tmp_path: Path) -> None:
        (tmp_path / "naps.py").write_text(NAPS)
        with cli.broker() as broker:
            fill(broker, "naps", [b"wait", b""], policy=PoisonPolicy(receive_retry_count=0))

    def _at_work(self, terminal: Terminal, before: int = 0) -> None:
        end = time.monotonic() + 120
        while not (Path("begun").exists() and len(Path("begun").read_text().splitlines()) > before):
            assert time.monotonic() < end
            assert terminal.read(), terminal.shown.decode()

    def _stopping(self, terminal: Terminal) -> None:
        """Wait until the host has told its slots to stop."""
        end = time.monotonic() + 120
        while not Path("stopping").exists():
            assert time.monotonic() < end
            assert terminal.read(), terminal.shown.decode()

    def _nothing_is_charged(self, cli: Program, terminal: Terminal, left: int) -> None:
        assert b"Traceback" not in terminal.shown
        assert b"error" not in terminal.shown
        with cli.broker() as broker:
            rest = broker.peek("naps", 9)
            assert [(m.state.value, m.delivery_count) for m in rest] == [("active", 0)] * left
            assert broker.queue("naps").counts.dead_letter == 0

    @pytest.mark.parametrize("which", ["nap", "inline"])
    @pytest.mark.parametrize("end", ["control-c", "SIGTERM", "SIGHUP"])
    def test_the_grace_holds_for_the_whole_group(self, cli: Program, end: str, which: str) -> None:
        with cli.terminal("run", f"naps:{which}") as terminal:
            self._at_work(terminal)
            if end == "control-c":
                terminal.type(b"\x03")
            else:
                terminal.signal(getattr(signal, end))
            self._stopping(terminal)
            Path("go").touch()
            assert terminal.wait() == 0
        self._nothing_is_charged(cli, terminal, 1)

    def test_four_stops_charge_nothing(self, cli: Program) -> None:
        for stop in range(4):
            with cli.terminal("run", "naps:nap", "--grace", "0.1s") as terminal:
                self._at_work(terminal, stop)
                terminal.type(b"\x03")
                assert terminal.wait() == 0
            self._nothing_is_charged(cli, terminal, 2)

    @pytest.mark.parametrize("which", ["nap", "inline"])
    def test_a_second_control_c_ends_at_once(self, cli: Program, which: str) -> None:
        with cli.terminal("run", f"naps:{which}", "--grace", "1h") as terminal:
            self._at_work(terminal)
            terminal.type(b"\x03")
            self._stopping(terminal)
            # What comes sooner counts as the same press.
            time.sleep(0.3)
            terminal.type(b"\x03")
            assert terminal.wait(120) == 0
        self._nothing_is_charged(cli, terminal, 2)

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_stopped_while_the_sandbox_starts(self, cli: Program, tmp_path: Path, number: int) -> None:
        """Its setup takes for ever here; the host does not wait for it."""
        (tmp_path / "slow.py").write_text(
            "import os, pathlib, time\nfrom lazaretto.host import handler\n"
            "if 'LAZARETTO_SANDBOX' in os.environ:\n"
            "    pathlib.Path('begun').write_text('begun\\n')\n    time.sleep(3600)\n"
            "@handler('naps')\ndef nap(message): ...\n"
        )
        with cli.terminal("run", "slow") as terminal:
            self._at_work(terminal)
            terminal.signal(number)
            assert terminal.wait(120) == 0
        self._nothing_is_charged(cli, terminal, 2)

    def test_the_signals_end_what_a_handler_starts(self, cli: Program) -> None:
        with cli.terminal("run", "naps:starts", "--stop-when-idle") as terminal:
            terminal.wait()
        with cli.broker() as broker:
            assert {d.reason for d in broker.dead_letters("naps")} == {"-15 -15"}


def children(pid: int) -> list[int]:
    """Return the processes below one, at any depth."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            found += [child, *children(child)]
    return found


class TestTry:
    def test_a_dead_letter_that_would_fail_again(self, cli: Program) -> None:
        with cli.broker() as broker:
            broker.delete_queue("orders")
            set_aside(broker, "orders", [b"no"])
        tried = cli("try", "orders", "1", "shop:book")
        assert tried.code == 1
        assert "outcome      failed" in tried.out
        assert "It would be tried again, 2 times in all, and then: move." in tried.out
        assert "error        ValueError: no such thing" in tried.out
        assert 'raise ValueError("no such thing")' in tried.out
        assert tried.out.endswith("  it printed:\n    booking no\n")
        # What the handler says cannot pass for a line of the command's own.
        own = [line for line in tried.out.splitlines() if not line.startswith("    ")]
        assert [line.split()[0] for line in own] == ["message", "outcome", "consequence", "error", "it"]

    def test_one_that_would_be_completed_is_left_as_it_is(self, cli: Program) -> None:
        send(cli, b"lamp")
        tried = cli.ok("try", "orders", "1", "shop:book")
        assert "It would be completed." in tried.out
        assert "would send to invoices: for lamp" in tried.out
        assert "would execute: INSERT INTO booked VALUES (?) with ['lamp']" in tried.out
        with cli.broker() as broker:
            assert booked(broker) == []
            assert broker.peek("invoices") == []
            (message,) = broker.peek("orders")
            assert (message.attempt, message.state.value) == (0, "active")

    def test_one_that_would_be_deferred_has_no_failure(self, cli: Program) -> None:
        send(cli, b"later")
        assert cli.ok("try", "orders", "1", "shop:book", "--json").json["outcome"] == "deferred"

    def test_one_that_kills_does_not_kill_the_command(self, cli: Program) -> None:
        send(cli, b"crash")
        tried = cli("try", "orders", "1", "shop:book", "--json")
        assert tried.code == 1
        said = tried.json
        assert (said["outcome"], said["error_type"]) == ("lost", "WorkerCrashed")
        assert "SIGABRT" in said["error_message"]
        assert "shop.py" in said["stack"]

    def test_any_function_will_do(self, cli: Program) -> None:
        send(cli, b"lamp")
        assert cli.ok("try", "orders", "1", "shop:plain", "--json").json["outcome"] == "completed"

    def test_what_cannot_be_tried(self, cli: Program) -> None:
        send(cli, b"lamp")
        cli.fails(3, "message_not_found", "try", "orders", "2", "shop:book")
        cli.fails(3, "entity_not_found", "try", "chairs", "1", "shop:book")
        cli.fails(2, "handler_error", "try", "orders", "1", "shop:three")
        cli.fails(2, "handler_error", "try", "orders", "1", "shop")
        cli.fails(2, "invalid_option", "try", "orders", "1", "shop:book", "--deadline", "0")


class TestBreaker:
    def test_it_is_shown_opened_closed_and_left_to_itself(self, cli: Program) -> None:
        assert cli.ok("breaker", "show", "orders").out == "breaker of orders\n  status  closed\n"
        assert cli.ok("breaker", "pause", "orders", "--json").json["status"] == "held_open"
        assert cli.ok("breaker", "resume", "orders", "--always", "--json").json["status"] == "held_closed"
        assert cli.ok("breaker", "resume", "orders", "--json").json["status"] == "closed"
        verbs = [e["detail"]["verb"] for e in cli.ok("events", "--kind", "breaker_set", "--json").json]
        assert verbs == ["open", "close", "auto"]
        assert [entry["action"] for entry in cli.ok("audit", "--json").json][:3] == ["breaker"] * 3

    def test_held_open_nothing_runs(self, cli: Program) -> None:
        send(cli, b"lamp")
        cli.ok("breaker", "open", "orders")
        process = cli.start("run", "shop", stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        assert process.stdout is not None
        process.stdout.readline()
        cli.ok("breaker", "auto", "orders")
        with cli.broker() as broker, broker.receiver("invoices") as receiver:
            assert receiver.receive(max_wait=120)
        interrupt(process)
        process.communicate(timeout=120)

    def test_an_outage_is_named(self, cli: Program, tmp_path: Path) -> None:
        (tmp_path / "down.py").write_text(
            "from lazaretto.host import handler\n"
            "@handler('orders')\ndef f(message):\n    raise ConnectionError('the database is down')\n"
        )
        send(cli, *[b"%d" % n for n in range(50)])
        process = cli.start(
            "run", "down", stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        end = time.monotonic() + 120
        while cli.ok("breaker", "show", "orders", "--json").json["status"] != "open":
            assert time.monotonic() < end
        shown = cli.ok("breaker", "show", "orders").out
        interrupt(process)
        process.wait(120)
        assert "ConnectionError: the database is down" in shown
        assert "next probe" in shown
        with cli.broker() as broker:
            assert broker.queue("orders").counts.dead_letter == 0

    def test_a_queue_that_is_not_there(self, cli: Program) -> None:
        for verb in ("show", "open", "close", "auto"):
            cli.fails(3, "entity_not_found", "breaker", verb, "chairs")


def test_handlers_are_found_in_the_current_folder_of_the_installed_command(cli: Program) -> None:
    send(cli, b"lamp")
    command = Path(sys.executable).with_name("lazaretto")
    if not command.exists():
        pytest.skip("lazaretto is not installed here, only on the path")
    done = subprocess.run(
        [command, "run", "shop", "--stop-when-idle", "--json"], env=cli.environment, capture_output=True
    )
    assert done.returncode == 0, done.stderr


ERROR_HANDLER = """\
from lazaretto.host import handler

def decide(poison):
    if poison.message.body == b"again" and poison.message.attempt < 3:
        return "retry"
    return "drop" if poison.message.body == b"drop" else None

@handler("orders", isolation="inline", on_poison=decide)
def book(message):
    raise ValueError("no such thing")
"""


def test_what_an_error_handler_returns_counts(cli: Program, tmp_path: Path) -> None:
    with cli.broker() as broker:
        fill(broker, "decided", [b"drop", b"keep", b"again"], policy=PoisonPolicy(receive_retry_count=0))
    (tmp_path / "decisions.py").write_text(ERROR_HANDLER.replace('"orders"', '"decided"'))
    assert cli("run", "decisions", "--stop-when-idle").code == 0
    queue = cli.ok("queue", "show", "decided", "--json").json
    assert (queue["dropped"], queue["counts"]["dead_letter"], queue["counts"]["total"]) == (1, 2, 2)
    letters = cli.ok("dead-letter", "list", "decided", "--json").json
    assert [(x["message"]["body"], x["counters"]["failures"]) for x in letters] == [("keep", 1), ("again", 3)]


class TestWhatIsHeldBack:
    def test_a_halted_queue_ends_it_and_is_named(self, cli: Program) -> None:
        with cli.broker() as broker:
            broker.update_queue(
                "orders", policy=PoisonPolicy(receive_retry_count=0, on_poison=lazaretto.Disposition.FAULT)
            )
        send(cli, b"no", b"lamp")
        done = cli("run", "shop", "--stop-when-idle")
        assert done.code == 4
        assert "error[poison_message]: queue 'orders' is halted by message 1" in done.err

    def test_a_queue_that_is_switched_off(self, cli: Program) -> None:
        send(cli, b"lamp")
        with cli.broker() as broker:
            broker.set_status("orders", "disabled")
        assert "disabled" in cli.fails(4, "queue_disabled", "run", "shop", "--stop-when-idle")

    def test_a_breaker_that_is_held_open(self, cli: Program) -> None:
        send(cli, b"lamp")
        cli.ok("breaker", "open", "orders")
        assert "held open" in cli.fails(4, "queue_disabled", "run", "shop", "--stop-when-idle")

    def test_a_session_that_is_held_back(self, cli: Program, tmp_path: Path) -> None:
        (tmp_path / "stepping.py").write_text(
            "from lazaretto.host import handler\n"
            "@handler('steps')\ndef f(message):\n    assert message.session_id != 'a', 'poison'\n"
        )
        with cli.broker() as broker:
            options = lazaretto.QueueOptions(
                requires_session=True,
                on_poison_session=lazaretto.PoisonSession.BLOCK,
                policy=PoisonPolicy(receive_retry_count=0),
            )
            broker.create_queue("steps", options)
            broker.sender("steps").send([Message(b"", session_id=name) for name in "aabb"])
        assert "session 'a'" in cli.fails(4, "session_held", "run", "stepping", "--stop-when-idle")
        with cli.broker() as broker:
            assert broker.queue("steps").counts.active == 2

    def test_errors_that_nobody_reads_stop_nothing(self, cli: Program) -> None:
        """What handlers print goes to a pipe whose reader has ended."""
        send(cli, *[b"%d" % n for n in range(300)])
        process = cli.start(
            "run", "shop", "--stop-when-idle", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        assert process.stderr is not None
        process.stderr.close()
        process.wait(120)
        with cli.broker() as broker:
            assert sorted(map(int, booked(broker))) == list(range(300))


LOGGING = """
import logging
from lazaretto.host import handler

log = logging.getLogger("shop.booking")

@handler("{queue}", isolation="{isolation}")
{kind}def book(message):
    log.debug("seen")
    log.info("booked")
    log.warning("late\\nerror[forged]: no")
"""


@pytest.mark.parametrize("kind", ["", "async "])
@pytest.mark.parametrize("isolation", ["process", "inline"])
def test_what_handlers_log_is_shown_with_queue_and_number(cli: Program, isolation: str, kind: str) -> None:
    text = LOGGING.format(queue="orders", isolation=isolation, kind=kind)
    Path("logging_shop.py").write_text(text)
    send(cli, b"lamp")
    words = ("run", "logging_shop", "--stop-when-idle", "--log-level", "info")
    lines = cli(*words).err.splitlines()
    own = [line.split(" ", 1)[1] for line in lines if "shop.booking" in line]
    assert own == [
        "INFO orders message 1: shop.booking: booked",
        "WARNING orders message 1: shop.booking: late",
    ]
    assert "    error[forged]: no" in lines
    send(cli, b"desk")
    told = [json.loads(line) for line in cli(*words[:3], "--log-format", "json").err.splitlines()]
    assert [(one["level"], one["queue"], one["sequence_number"]) for one in told] == [
        ("WARNING", "orders", 2)
    ]
