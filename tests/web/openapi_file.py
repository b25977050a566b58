"""The committed description of the HTTP API. Run as a program, this module writes it anew."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lazaretto.web import api
from lazaretto.web.app import PREFIX
from lazaretto.web.openapi import document

PATH = Path(__file__).parents[2] / "docs" / "openapi.json"


def described() -> Any:
    """Return what the server says of itself, as it arrives."""
    assert api.MODULES
    return json.loads(json.dumps(document(PREFIX)))


def text() -> str:
    """Return what the file holds."""
    return json.dumps(described(), indent=1) + "\n"


if __name__ == "__main__":
    PATH.write_text(text())
