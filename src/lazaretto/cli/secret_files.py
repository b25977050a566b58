"""Files with secrets: read, made for their owner alone, and looked at for who else may read or write them."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path
from typing import Final

from lazaretto.cli.exits import usage
from lazaretto.cli.localhost import state_folder

#: Characters of a token that nobody guesses: 128 bits, as base64 or hex have them.
SHORTEST_TOKEN: Final = 22
#: Characters under which a key is called short.
SHORT_KEY: Final = 16


def secret_of(file: Path, what: str) -> str:
    """Return the secret that a file has. Raises a usage error."""
    try:
        secret = file.read_text("utf-8").strip()
    except (OSError, ValueError) as error:
        raise usage(f"expected a file with a {what} at {str(file)!r}, got {type(error).__name__}") from None
    if not secret:
        raise usage(f"expected a {what} in {str(file)!r}, got an empty file")
    return secret


def token_of(file: Path) -> str:
    """Return the owner's token that a file has. Raises a usage error."""
    token = secret_of(file, "token")
    if len(token) < SHORTEST_TOKEN:
        raise usage(
            f"expected a token of at least {SHORTEST_TOKEN} characters in {str(file)!r}, got {len(token)}; "
            f"make one: (umask 077; head -c 32 /dev/urandom | base64 > {file})"
        )
    return token


def keep_token(token: str) -> Path:
    """Write a token into a new file that only its owner can read. Raises a usage error."""
    name = f"serve-{os.getpid()}.token"
    try:
        folder = state_folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / name
        path.unlink(missing_ok=True)
    except (OSError, RuntimeError):
        # Whoever has no home has a temporary folder.
        path = Path(tempfile.mkdtemp(prefix="lazaretto-")) / name
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f"{token}\n")
    except OSError as error:
        raise usage(
            f"a token cannot be kept at {str(path)!r} ({error.strerror}); give --token-file"
        ) from None
    return path


def exposure(file: Path) -> str | None:
    """Return what is wrong with a secret's file: that others may read or write it; None: nothing."""
    try:
        mode = stat.S_IMODE(file.stat().st_mode)
    except OSError:
        return None
    rights = (0o044, "read"), (0o022, "write")
    may = " and ".join(what for bits, what in rights if mode & bits)
    if not may:
        return None
    return f"others may {may} {str(file)!r} (mode {mode:04o}); let nobody else: chmod 600 {file}"
