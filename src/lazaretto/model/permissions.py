"""Permissions on a store, as grants name them. Pure."""

from __future__ import annotations

import enum


class Permission(enum.StrEnum):
    """A permission that a change, or a route of the HTTP API, demands; each role has some of these."""

    #: Names, counts, causes, errors and events.
    SEE = "see"
    READ_BODIES = "read_bodies"
    #: Fields that are redacted for others.
    READ_SECRETS = "read_secrets"
    SEND = "send"
    RECEIVE = "receive"
    #: Dead letters, repairs, status, breakers, sessions.
    OPERATE = "operate"
    #: Entities and rules; deleting for good.
    ADMINISTER = "administer"
