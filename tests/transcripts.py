"""Transcripts of what is typed at a prompt and what comes, as pages and tests have them.

`…` stands for any text within a line, and a time for any other time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ")
_HERE: Final = re.compile(r"<<(\w+)$")


def matches(shown: str, printed: str) -> bool:
    """Return whether the output is what a transcript shows, as far as that says."""
    shown, printed = (_TIME.sub("a time", text.rstrip()) for text in (shown, printed))
    pattern = ".*".join(re.escape(part) for part in shown.split("…"))
    lines = "\n".join(line.rstrip() for line in printed.splitlines())
    return re.fullmatch(pattern, lines) is not None


def commands_of(transcript: str, prompt: str = "$ ", more: str = "") -> Iterator[tuple[str, str]]:
    """Yield each command of a transcript, and what stands below it.

    `prompt`: what a command stands behind; `more`: what its further lines do, if it may have some.
    """
    command, shown, here = "", "", ""
    for line in transcript.splitlines():
        if here:
            command += f"\n{line}"
            here = "" if line == here else here
        elif more and command and not shown and line.startswith(more.rstrip()):
            command += f"\n{line.removeprefix(more.rstrip()).removeprefix(' ')}"
        elif line.startswith(prompt):
            if command:
                yield command, shown
            command, shown = line.removeprefix(prompt), ""
            document = _HERE.search(command)
            here = document[1] if document else ""
        else:
            shown += f"{line}\n"
    if command:
        yield command, shown
