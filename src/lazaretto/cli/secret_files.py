"""Secrets in files: tokens, keys, a certificate for this machine's own name; and who else may read them."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import ssl
import stat
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

from lazaretto.cli.exits import usage
from lazaretto.model.installing import install
from lazaretto.tools.surroundings import home_of_user

#: What the certificate is valid for.
NAMES: Final = ("localhost", "127.0.0.1", "::1")
_END: Final = "-----END CERTIFICATE-----\n"

#: Characters of a token that nobody guesses: 128 bits, as base64 or hex have them.
SHORTEST_TOKEN: Final = 22
#: Characters under which a key is called short.
SHORT_KEY: Final = 16


class LocalCertificate(NamedTuple):
    """`server`: the file with the key and the chain; `authority`: the one that clients trust."""

    server: Path
    authority: Path
    #: SHA-256 of the authority, in hexadecimal.
    fingerprint: str


def state_folder() -> Path:
    """Return the folder for what one user keeps of this machine."""
    base = os.environ.get("XDG_STATE_HOME")
    if base:
        return Path(base) / "lazaretto"
    home = home_of_user()
    if home is None:
        raise usage("this user has no home folder: set HOME, or XDG_STATE_HOME to a folder of this user")
    return home / ".local" / "state" / "lazaretto"


def local_certificate() -> LocalCertificate:
    """Return the certificate, which is made if there is none. Raises a usage error."""
    folder = state_folder()
    server, authority = folder / "localhost.pem", folder / "localhost-authority.pem"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not server.exists():
            _make(server)
        # The authority ends the chain.
        text = server.read_text()
        certificate = text[text.rindex("-----BEGIN CERTIFICATE-----") : text.rindex(_END) + len(_END)]
        fingerprint = hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate)).hexdigest()
        if not authority.exists() or authority.read_text() != certificate:
            _write(authority, certificate.encode()).replace(authority)
    except (OSError, ValueError) as error:
        raise usage(f"expected a certificate for localhost at {str(server)!r}, got: {error}") from None
    return LocalCertificate(server, authority, fingerprint)


def _make(server: Path) -> None:
    if importlib.util.find_spec("trustme") is None:
        raise usage(f"--tls needs more packages: {install('tls')}")
    import trustme

    # The authority's key is kept nowhere: whoever trusts it trusts this one certificate.
    authority = trustme.CA(organization_name="Lazaretto on this machine")
    made = authority.issue_cert(*NAMES)
    content = made.private_key_and_cert_chain_pem.bytes() + authority.cert_pem.bytes()
    written = _write(server, content)
    try:
        # Of servers that start at once, the first makes it for all.
        os.link(written, server)
    except FileExistsError:
        pass
    finally:
        written.unlink()


def _write(beside: Path, content: bytes) -> Path:
    """Write a file that only the user can read, in the same folder as another."""
    handle, name = tempfile.mkstemp(dir=beside.parent)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    return Path(name)


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
