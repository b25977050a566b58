"""`make demo`: flights fail, a host works, and the console is there until it is told to end."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import httpx
from patience import wait_until

import lazaretto
from examples.flights.rules import CAUSES, error_type

ROOT = Path(__file__).parents[2]


def types(broker: lazaretto.Broker) -> set[str | None]:
    """Return the types of errors that flights failed with."""
    return {group.error_type for group in broker.dead_letter_groups("flights")}


def test_the_demo_shows_flights_that_fail_and_ends(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.flights_queue.demo", "--port", "0", "--folder", str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as demo:
        try:
            assert demo.stdout is not None
            console = login = ""
            for line in map(str.strip, demo.stdout):
                console = line.partition(": ")[2] if line.startswith("the console:") else console
                login = line if "/login?code=" in line else login
                if console and login:
                    break
            with httpx.Client(follow_redirects=True, timeout=120) as browser:
                page = browser.get(login)
                assert (page.status_code, str(page.url)) == (200, console)
                assert "flights" in page.text
            with lazaretto.connect(tmp_path / "flights.db") as broker:
                wait_until(lambda: types(broker) == {error_type(cause) for cause in CAUSES}, pause=0.5)
            demo.send_signal(signal.SIGTERM)
            assert demo.wait(120) == 0
        finally:
            demo.kill()
    with lazaretto.connect(tmp_path / "flights.db") as broker:
        # Those that the main job finds, each once: an unknown airport is one, whichever it is.
        assert len(broker.triage("flights").causes) == len(CAUSES)
