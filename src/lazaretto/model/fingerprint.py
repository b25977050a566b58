"""Which failures are the same failure: a short name for reason, type, site and shape of the text."""

from __future__ import annotations

import functools
import hashlib
from typing import NamedTuple

from lazaretto.model.failure import Failure
from lazaretto.model.shape import shape
from lazaretto.model.site import site_in

#: Goes into each fingerprint: those of another way to take them are others.
VERSION = 1
#: The shape of all texts of a family that has too many.
OTHER_TEXTS = "(other texts)"


class Fingerprint(NamedTuple):
    """Common traits of dead letters that are alike. A family shares all but the shape."""

    reason: str | None
    error_type: str | None
    site: str | None
    shape: str | None

    @property
    def number(self) -> int:
        """The fingerprint as 64 bits with a sign."""
        return _number(*self)

    @property
    def family(self) -> int:
        """The family as 64 bits with a sign."""
        return _number(*self[:3])


@functools.lru_cache(1024)
def _number(*parts: str | None) -> int:
    text = "\0".join("\1" if part is None else part for part in (str(VERSION), *parts))
    digest = hashlib.blake2b(text.encode(errors="replace"), digest_size=8).digest()
    return int.from_bytes(digest, signed=True)


def plain_fingerprint(number: int) -> str:
    """Return a fingerprint as the store keeps it where it is text: 16 hex digits."""
    return f"{number & (1 << 64) - 1:016x}"


def shown_fingerprint(number: int, key: bytes) -> str:
    """Return a fingerprint as people see it: 16 hex digits, by a key that they do not have.

    So whoever guesses the text of an error cannot find out whether it is that.
    """
    plain = number.to_bytes(8, signed=True)
    return hashlib.blake2b(plain, key=key, digest_size=8).hexdigest()


def shown_plain(plain: str, key: bytes) -> str:
    """Return a fingerprint as people see it from the store's text."""
    number = int(plain, 16)
    return shown_fingerprint(number - (number >> 63 << 64), key)


def fingerprint_of(
    reason: str | None, description: str | None, failure: Failure | None, stack: str | None = None
) -> Fingerprint:
    """Return the fingerprint of a dead letter, by its error, or by its description if there is none.

    `stack`: where the site is looked for if the failure does not know it.
    """
    if failure is None:
        return Fingerprint(reason, None, None, shape(description) if description else None)
    text = failure.message or description
    site = failure.site or site_in(failure.stack or stack)
    return Fingerprint(reason, failure.type, site, shape(text) if text else None)


def outage_of(failure: Failure) -> str:
    """Return the fingerprint of a failure to the breaker: type and site. A word in a text hides no outage."""
    site = failure.site or site_in(failure.stack)
    return plain_fingerprint(Fingerprint(None, failure.type, site, None).family)
