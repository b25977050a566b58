"""Stores by their addresses: opening, migrating and copying them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from lazaretto.errors import InvalidOption, StoreError
from lazaretto.model.checks import is_unicode, shown
from lazaretto.model.clock import Clock, SystemClock
from lazaretto.model.installing import install

if TYPE_CHECKING:
    from lazaretto.store.sql.copy_store import Copied
    from lazaretto.store.sql.store import Store

_SQLITE = "sqlite:///"
_POSTGRES = ("postgresql://", "postgres://")
#: Text that looks like a server's URL and may contain a password.
_NEARLY_SERVED = re.compile(r"\s*postgres\w*:", re.IGNORECASE)
#: A parameter that may hold a secret, or whose name is written with escapes.
_SECRET = re.compile(r"((?:password|secret|_key|%[^=&?]*)=)[^&]*")


def is_served(url: object) -> bool:
    """Return whether an address names a PostgreSQL server."""
    return isinstance(url, str) and url.startswith(_POSTGRES)


def open_store(
    url: str | os.PathLike[str],
    *,
    clock: Clock | None = None,
    create: bool = True,
    adopt: bool = False,
    copying: bool = False,
    timeout: float = 10.0,
    durable_attempts: bool = False,
) -> Store:
    """Open the store at an address; see `connect`. `copying`: it may be an unfinished copy."""
    if not is_served(url):
        from lazaretto.store.sqlite.store import SqliteStore

        return SqliteStore(
            file_of(url),
            clock=clock or SystemClock(),
            create=create,
            adopt=adopt,
            copying=copying,
            busy=timeout,
            durable_attempts=durable_attempts,
        )
    address, schema = served_at(str(url))
    from lazaretto.store.postgres.store import PostgresStore

    return PostgresStore(
        address,
        schema=schema,
        clock=clock,
        create=create,
        copying=copying,
        busy=timeout,
        durable_attempts=durable_attempts,
    )


def migrate_store(url: str | os.PathLike[str], *, after: bool = False) -> list[int]:
    """Run a store's pending migrations and return their numbers.

    A file is migrated completely when it is opened. On a server, migrations that older versions cannot work
    with run only with `after`. Raises StoreNotFound, StoreTooNew, StoreOutdated.
    """
    if not is_served(url):
        store = open_store(url, create=False)
        store.close()
        return []
    address, schema = served_at(str(url))
    from lazaretto.store.postgres.schema import migrate_at

    return migrate_at(address, schema, after=after)


def copy_store(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    progress: Callable[[str, int, int], None] = lambda table, done, total: None,
) -> list[Copied]:
    """Copy an entire store into a new one, or resume an interrupted copy.

    Neither store may be in use: writers are blocked. Locks are dropped and history is kept. The copy is
    compared with the source. Raises StoreError, InvalidOption.
    """
    from lazaretto.store.sql.copy_store import RemoveKept, copy

    if identity_of(source) == identity_of(target):
        raise InvalidOption("expected a target other than the source, got the same store")
    theirs = open_store(source, create=False)
    try:
        ours = open_store(target, copying=True)
        try:
            while theirs.run(RemoveKept()):
                pass
            return copy(theirs, ours, progress)
        finally:
            ours.close()
    finally:
        theirs.close()


def identity_of(url: str | os.PathLike[str]) -> object:
    """Return what two addresses of the same store have in common. Raises InvalidOption."""
    return served_at(str(url)) if is_served(url) else file_of(url).resolve()


def without_password(url: str) -> str:
    """Return a store's URL without its password, for display."""
    url = re.sub(r"(?<=://)([^:@/?]*):.*@", r"\1:…@", url)
    return _SECRET.sub(r"\1…", url)


def _need_psycopg() -> None:
    try:
        import psycopg  # noqa: F401
    except ImportError as error:
        raise StoreError(f"a store on PostgreSQL needs psycopg: {install('postgres')} ({error})") from None


def served_at(url: str) -> tuple[str, str]:
    """Return the server's address in libpq's format, and the schema. Raises InvalidOption."""
    _need_psycopg()
    from lazaretto.store.postgres.address import parse_address

    return parse_address(url)


def absolute(url: str) -> str:
    """Return a store's address with an absolute path."""
    return url if is_served(url) else str(file_of(url))


def file_of(url: str | os.PathLike[str]) -> Path:
    """Return the absolute path of the file that an address names. Raises InvalidOption."""
    text = os.fspath(url) if isinstance(url, str | os.PathLike) else None
    if not isinstance(text, str) or not text:
        raise InvalidOption(f"expected a store such as 'sqlite:///orders.db', got {shown(url)}")
    if _NEARLY_SERVED.match(text):
        raise InvalidOption(
            "expected a store such as 'postgresql://user@host/database', got one without '://'"
        )
    if text.startswith(_SQLITE):
        text = text[len(_SQLITE) :]
    elif "://" in text or text.startswith("sqlite:"):
        scheme = text.partition(":")[0]
        if scheme == "sqlite":
            name = text.removeprefix("sqlite:").lstrip("/") or "orders.db"
            raise InvalidOption(
                f"expected three slashes before a file's path: 'sqlite:///{name}', got {shown(text)}"
            )
        raise InvalidOption(f"expected a store such as 'sqlite:///orders.db', got the scheme {shown(scheme)}")
    if not text or ":memory:" in text or "?" in text or "\0" in text or not is_unicode(text):
        raise InvalidOption(f"expected a file's path after 'sqlite:///', got {shown(text)}")
    path = Path(text).absolute()
    if _is_folder(path):
        raise InvalidOption(
            f"expected a store's file, but {text} is a folder: name the file in it, such as "
            f"{path / 'orders.db'}"
        )
    if any(len(os.fsencode(part)) > 255 for part in path.parts):
        raise InvalidOption(f"expected a file's name of at most 255 bytes, got {shown(text)}")
    return path


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError as error:
        # A name may be longer than the file system allows.
        raise InvalidOption(
            f"expected a path that can be opened, got {shown(str(path))}: {error.strerror}"
        ) from None
