"""Processes that are not as they mostly are: child signals ignored, no name, streams or Python."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

import pytest

import lazaretto
from lazaretto import Message, PoisonPolicy, QueueOptions, SandboxSetupError, StoreError
from lazaretto.cli.exits import CommandError
from lazaretto.cli.secret_files import state_folder
from lazaretto.engine.log import actor_name, user_name
from lazaretto.host import Handler, ServiceHost
from lazaretto.testing import drain

HOST = """
import os, signal, sys
import lazaretto
from lazaretto.host import Handler, ServiceHost
from lazaretto.testing import drain

def die(message):
    if message.body == b"dies":
        os._exit(7)

if "ignored" in sys.argv:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
with lazaretto.connect(sys.argv[1]) as broker:
    drain(ServiceHost(broker, Handler("q", die)))
    letters = [letter.error_message for letter in broker.dead_letters("q")]
    open(sys.argv[2], "w").write(repr((broker.queue("q").counts.active, letters)))
"""

HANDLERS = """
from lazaretto.host import handler

@handler("q")
def work(message):
    print("printed")
"""


@pytest.fixture
def store(tmp_path: Path) -> str:
    path = tmp_path / "shop.db"
    with lazaretto.connect(path) as broker:
        broker.create_queue(
            "q", QueueOptions(policy=PoisonPolicy(receive_retry_count=0, max_worker_deaths=1))
        )
        broker.sender("q").send([Message(b"works"), Message(b"dies")])
    (tmp_path / "shop.py").write_text(HANDLERS)
    return str(path)


def run(
    *words: str,
    cwd: Path,
    redirection: str = "",
    environment: Mapping[str, str] | None = None,
    before: Callable[[], object] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run Python with words behind it, in a shell that redirects."""
    shell = ["sh", "-c", f'exec "$@" {redirection}', "sh", sys.executable, *words]
    return subprocess.run(
        shell,
        cwd=cwd,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=300,
        preexec_fn=before,
    )


def ignore_children() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)


@pytest.mark.parametrize("ignored", ["by the parent", "by the program"])
def test_a_death_is_told_where_child_signals_are_ignored(store: str, tmp_path: Path, ignored: str) -> None:
    told = tmp_path / "told"
    words = ["-c", HOST, store, str(told), *(["ignored"] if ignored == "by the program" else [])]
    done = run(*words, cwd=tmp_path, before=ignore_children if ignored == "by the parent" else None)
    assert told.exists(), done.stderr
    assert told.read_text() == "(0, ['the process ended with exit status 7'])"


class TestStreams:
    @pytest.mark.parametrize("redirection", [">&-", "2>&-", "<&- >&- 2>&-", ">/dev/full", ">/dev/full 2>&1"])
    def test_run_works(self, store: str, tmp_path: Path, redirection: str) -> None:
        words = ["-m", "lazaretto", "run", "shop", "--store", store, "--stop-when-idle"]
        done = run(*words, cwd=tmp_path, redirection=redirection)
        assert done.returncode == 0, done
        with lazaretto.connect(store) as broker:
            assert broker.queue("q").counts.active == 0

    @pytest.mark.parametrize("redirection", ["<&- >&- 2>&-", "<&-", ">&- 2>&-"])
    def test_a_program_without_streams_has_sandboxes(
        self, store: str, tmp_path: Path, redirection: str
    ) -> None:
        told = tmp_path / "told"
        done = run("-c", HOST, store, str(told), cwd=tmp_path, redirection=redirection)
        assert told.exists(), done
        assert told.read_text() == "(0, ['the process ended with exit status 7'])"

    @pytest.mark.parametrize("redirection", [">&-", ">/dev/full"])
    @pytest.mark.parametrize(
        "words", [("send", "q", "x"), ("send", "q", "x", "--json"), ("queue", "create", "new")]
    )
    def test_what_is_done_but_cannot_be_told_is_said_to_be_done(
        self, store: str, tmp_path: Path, redirection: str, words: tuple[str, ...]
    ) -> None:
        done = run("-m", "lazaretto", *words, "--store", store, cwd=tmp_path, redirection=redirection)
        assert done.returncode == 1
        assert done.stderr.startswith(
            "error[io_error]: it is done, but standard output does not take the answer"
        )
        assert done.stderr.count("\n") == 1
        with lazaretto.connect(store) as broker:
            assert (broker.queue("q").counts.active, len(broker.queues())) in ((3, 2), (2, 3))


def test_a_user_id_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def getpwuid(uid: int) -> NoReturn:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr(pwd, "getpwuid", getpwuid)
    for name in ("HOME", "USER", "LOGNAME", "LNAME", "USERNAME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert user_name() == f"uid {os.getuid()}"
    assert actor_name().startswith(f"uid {os.getuid()}@")
    with pytest.raises(CommandError, match="no home folder: set HOME, or XDG_STATE_HOME"):
        state_folder()


class TestNoPython:
    @pytest.mark.parametrize(
        ("change", "told"),
        [
            (lambda patch: patch.setattr(sys, "frozen", True, raising=False), "is frozen"),
            (lambda patch: patch.setattr(sys, "executable", None), "sys.executable is None"),
            (lambda patch: patch.setattr(sys, "executable", ""), "sys.executable is ''"),
        ],
    )
    def test_a_sandbox_is_refused_and_inline_works(
        self, store: str, monkeypatch: pytest.MonkeyPatch, change: Callable[[object], None], told: str
    ) -> None:
        seen: list[bytes] = []
        change(monkeypatch)
        with lazaretto.connect(store) as broker:
            with pytest.raises(SandboxSetupError, match=f"{told}.*isolation='inline'"):
                ServiceHost(broker, Handler("q", lambda message: None)).start()
            inline = Handler("q", lambda message: seen.append(message.body), isolation="inline")
            drain(ServiceHost(broker, inline))
        assert seen == [b"works", b"dies"]


@pytest.mark.parametrize(("package", "told"), [("gevent", "patch_all"), ("eventlet", "monkey_patch")])
def test_green_threads_are_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, told: str
) -> None:
    def start_new_thread() -> None: ...

    start_new_thread.__module__ = f"{package}.thread"
    monkeypatch.setattr(threading, "_start_new_thread", start_new_thread)
    with pytest.raises(StoreError, match=rf"{package} has replaced.*{told}\(thread=False\)"):
        lazaretto.connect(tmp_path / "shop.db")


@pytest.mark.parametrize(
    ("package", "patch"),
    [
        ("gevent", "from gevent import monkey; monkey.patch_all()"),
        ("eventlet", "import eventlet; eventlet.monkey_patch()"),
    ],
)
def test_packages_of_green_threads_are_known(tmp_path: Path, package: str, patch: str) -> None:
    pytest.importorskip(package, reason=f"{package} is not installed")
    program = f"{patch}\nimport lazaretto\nlazaretto.connect('shop.db')"
    done = run("-c", program, cwd=tmp_path)
    assert "has replaced Python's threads" in done.stderr, done
