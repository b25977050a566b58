"""Versions of the settings of an entity, which tell whether somebody has changed them. Pure."""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Final

import msgspec

from lazaretto.model.entities import QueueOptions, QueueStatus

#: Bytes of a version: two settings of one entity never have the same by chance.
_SIZE: Final = 12


def version_of(options: QueueOptions, status: QueueStatus, created: datetime, rules: bytes = b"") -> str:
    """Return the version of an entity's settings. `rules`: of a subscription, as they are stored."""
    encoded = msgspec.json.encode((options, status, created))
    return hashlib.blake2b(encoded + rules, digest_size=_SIZE).hexdigest()
