"""Secrets in the store: it keeps hashes, so whoever reads the file or its backup can log in nowhere."""

from __future__ import annotations

from pathlib import Path

import lazaretto
from lazaretto.commands import CreateLink, CreateToken, GrantRole


def test_tokens_and_links_do_not_stand_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "orders.db"
    with lazaretto.connect(file) as broker:
        broker.run(GrantRole(person="ana", role="operator"))
        token = broker.run(CreateToken(person="ana", label="laptop"))
        link = broker.run(CreateLink(person="ana"))
    kept = b"".join(one.read_bytes() for one in tmp_path.iterdir())
    # The first part of a token is public; what follows is the secret.
    for secret in (token["secret"], link["secret"]):
        assert secret.split("_", 2)[2].encode() not in kept, secret
    assert token["id"].encode() in kept
