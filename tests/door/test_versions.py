"""Versions of Azure's client for Python at the door, in both of their ways."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest
import trustme

from door.served import Served
from lazaretto import Broker

pytestmark = pytest.mark.stores("sqlite")

_STORY = Path(__file__).with_name("azure_story.py")
#: Where `make test` installs the older version, which is not the one of this environment.
_OLDER = Path(sys.prefix) / "azure-servicebus-7.14"


@pytest.mark.parametrize("way", ["sync", "async"])
@pytest.mark.parametrize("number", ["7.14", "7.15"])
def test_the_whole_story(
    serve: Callable[..., Served], broker: Broker, tmp_path: Path, number: str, way: str
) -> None:
    authority, certificate = trustme.CA(), tmp_path / "authority.pem"
    authority.cert_pem.write_to_path(certificate)
    made = authority.issue_cert("localhost", "127.0.0.1").private_key_and_cert_chain_pem
    made.write_to_path(tmp_path / "server.pem")
    served = serve("--certificate", str(tmp_path / "server.pem"), "--plain")
    environment = dict(os.environ)
    if not version("azure-servicebus").startswith(number):
        assert _OLDER.is_dir(), f"no {_OLDER}: make test installs it"
        # Its administration client does not look at the certificate that it is given.
        trusts = dict.fromkeys(("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"), str(certificate))
        environment |= {"PYTHONPATH": str(_OLDER), **trusts}
    words = [sys.executable, str(_STORY), served.connection_string, str(certificate), way]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told.pop("version").startswith(number)
    assert told == {
        "administer": {"queues": ["orders", "q", "sessions"], "lock": 40.0, "rules": ["size"]},
        "settle": {
            "peeked": ["a", "b", "c", "d", "e", "g"],
            "received": ["m-a", "s", "a", "b", "c", "d", "e"],
            "renewed": True,
            "again": ["b", 1],
            "deferred": "c",
            "dead": ["d", "why", "because"],
        },
        "hold_sessions": {
            "state": "half",
            "renewed": True,
            "next": ["a", "0", "2"],
            "refused": "SessionCannotBeLockedError",
            "named": ["1", "3"],
        },
        "publish": {"body": "50", "big": True},
        "left": [1, 1],
    }
    assert broker.topics() == []
