"""Every command that the console prints is one: each is run, on a copy of the store that the pages show."""

from __future__ import annotations

import contextlib
import html
import re
import shlex
import shutil
import sqlite3
from collections import Counter
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import httpx
from cli_program import Program

from browser.test_console import ADDRESSES

#: Commands that wait for what others do with the letters, unless they are to return at once.
_WAITING = ("repair canary", "repair apply", "repair resume", "repair undo")
#: Pages that are looked at, those above first.
_MOST = 150
#: Lines of one command that are run.
_EACH = 4


def _printed(address: str) -> set[str]:
    """Return what the pages that links lead to say is the same on the command line."""
    coming = ["/do/create_topic?path=new", *(path for path in ADDRESSES if "DIALOG" not in path)]
    looked_at, lines = set[str](), set[str]()
    with httpx.Client(
        base_url=address, headers={"Accept": "text/html"}, follow_redirects=True, timeout=120
    ) as client:
        while coming and len(looked_at) < _MOST:
            path = coming.pop(0)
            looked_at.add(path)
            answer = client.get(path)
            assert answer.status_code == 200, (path, answer.text)
            lines |= {
                html.unescape(one) for one in re.findall(r"<code[^>]*>(lazaretto .*?)</code>", answer.text)
            }
            forms = re.findall(r'<form class="act.*?</form>', answer.text, re.DOTALL)
            assert [one for one in forms if "<code" not in one] == [], path
            for link in re.findall(r'<a [^>]*href="([^"#]+)', answer.text):
                target = urlsplit(urljoin(path, html.unescape(link)))
                other = target.path + (f"?{target.query}" if target.query else "")
                own = not target.netloc and not re.match("/(api|static|docs|problems|login)", target.path)
                if own and other not in looked_at and other not in coming:
                    coming.append(other)
    return lines


def _kind_of(words: list[str]) -> str:
    """Return the command that words of a line name; what is given as JSON is several."""
    return " ".join(words[: 3 if words[0] == "command" else 2])


def test_every_printed_command_is_one(address: str, store: Path, tmp_path: Path) -> None:
    lines = _printed(address)
    original = tmp_path / "original.db"
    with (
        contextlib.closing(sqlite3.connect(store)) as one,
        contextlib.closing(sqlite3.connect(original)) as two,
    ):
        one.backup(two)
    kinds = {_kind_of(shlex.split(line)[1:]) for line in lines}
    # Not one kind alone: the pages print what reads and what changes.
    assert {"worker list", "triage merge", "queue resume", "session list", "claim revoke"} <= kinds
    # The forms print theirs, too.
    forms = ("update_queue", "create_topic", "send_message", "delete_queue", "move_dead_letters")
    assert {f"command run {name}" for name in forms} <= kinds
    tried, wrong = Counter[str](), []
    for line in sorted(lines):
        words = shlex.split(line)[1:]
        kind = _kind_of(words)
        tried[kind] += 1
        if tried[kind] > _EACH:
            continue
        words += ["--detach"] if " ".join(words[:2]) in _WAITING else []
        copy = tmp_path / "copy.db"
        shutil.copy(original, copy)
        result = Program(copy)(*words)
        # A name that is spelled out, since a reader would take it for something else, is not found.
        refused = result.code and not re.match(r"error\[\w+_not_found\]", result.err)
        if refused and not re.match(r"error\[(usage)\]: .* needs --(yes|count)", result.err):
            wrong.append((line, result.code, result.err))
    assert not wrong, "\n".join(map(str, wrong))
