"""How servers of this machine serve, noted while they run, and what is risky about it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from lazaretto.cli.secret_files import SHORT_KEY, exposure, state_folder
from lazaretto.model.loopback import is_loopback


class ServedDoors(msgspec.Struct, frozen=True):
    """The doors that a server has opened. A host is None for a door that is not open.

    `stores`: their ids. `proxied`: browsers see it by HTTPS. `keys`: whether clients of AMQP need one.
    `files`: those with secrets.
    """

    stores: list[str]
    files: list[str]
    http_host: str | None = None
    http_tls: bool = False
    proxied: bool = False
    login: bool = True
    amqp_host: str | None = None
    amqp_tls: bool = False
    keys: bool = True
    short_key: bool = False


class Risks(NamedTuple):
    """What is risky, the worse things first."""

    problems: list[str]
    notices: list[str]


def risks_of(doors: ServedDoors) -> Risks:
    """Return what is risky about a server, with what to do about it."""
    risks = Risks([text for file in doors.files if (text := exposure(Path(file))) is not None], [])
    http, amqp = doors.http_host, doors.amqp_host
    if http is not None and not is_loopback(http) and not doors.http_tls:
        if doors.proxied:
            risks.notices.append(f"HTTP is served at {http} without TLS: let nobody but the proxy reach it")
        else:
            risks.problems.append(
                f"HTTP is served at {http} without TLS, so others can read its tokens and messages: "
                "give --certificate, put a proxy with TLS before it, or serve it on this machine only"
            )
    if http is not None and not doors.login:
        risks.notices.append("HTTP asks for no login: every program on this machine may do everything")
    if amqp is not None and not is_loopback(amqp) and not doors.amqp_tls:
        risks.problems.append(f"AMQP is served at {amqp} without TLS; give --certificate and --key-file")
    if amqp is not None and not doors.keys:
        who = "every program on this machine" if is_loopback(amqp) else "whoever reaches it"
        texts = risks.notices if is_loopback(amqp) else risks.problems
        texts.append(f"AMQP asks for no key: {who} may do everything; give --key-file")
    risks.notices.extend(short_keys(doors))
    return risks


def short_keys(doors: ServedDoors) -> list[str]:
    """Return what is said of keys that can be guessed."""
    text = f"the key of AMQP has fewer than {SHORT_KEY} characters, so it can be guessed; make a longer one"
    return [text] if doors.short_key else []


def _folder() -> Path:
    return state_folder() / "servers"


@contextlib.contextmanager
def noted(doors: ServedDoors) -> Iterator[None]:
    """Note how this process serves, so that `lazaretto doctor` can look at it, until it ends."""
    with contextlib.ExitStack() as stack:
        # Whoever has no home is not looked after.
        with contextlib.suppress(ImportError, OSError, RuntimeError):
            import fcntl

            _folder().mkdir(mode=0o700, parents=True, exist_ok=True)
            _forget_killed()
            path = _folder() / f"{os.getpid()}.json"
            note = stack.enter_context(
                os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")
            )
            stack.callback(path.unlink, missing_ok=True)
            # The lock goes with the process, however that ends.
            fcntl.flock(note, fcntl.LOCK_EX)
            note.write(msgspec.json.encode(doors))
            note.flush()
        yield


def _forget_killed() -> None:
    """Remove what servers that were killed have left: tokens that nobody takes any more, and notes."""
    for path in (*state_folder().glob("serve-*.token"), *_folder().glob("*.json")):
        with contextlib.suppress(OSError, ValueError):
            number = int(path.stem.removeprefix("serve-"))
            try:
                os.kill(number, 0)
            except ProcessLookupError:
                path.unlink(missing_ok=True)


def doors_of(store: str) -> list[ServedDoors]:
    """Return how a store is served by this user of this machine now."""
    doors_here = []
    # A system without such locks has no notes.
    with contextlib.suppress(ImportError, OSError, RuntimeError):
        for path in sorted(_folder().glob("*.json")):
            with contextlib.suppress(OSError, msgspec.MsgspecError), path.open("rb") as note:
                if _is_held(note.fileno()):
                    doors = msgspec.json.decode(note.read(), type=ServedDoors)
                    doors_here += [doors] if store in doors.stores else []
    return doors_here


def _is_held(handle: int) -> bool:
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
