"""The pictures of the console's page are of screens that are there, at the size that the page shows."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import Browser

from browser import pictures
from browser.conftest import serving
from lazaretto.web import Access, Grant, Identity, Role

PAGE = pictures.FOLDER.parent / "console.md"


def size_of(picture: Path) -> tuple[int, int]:
    """Return the width and height of a PNG."""
    content = picture.read_bytes()
    assert content.startswith(b"\x89PNG")
    return int.from_bytes(content[16:20], "big"), int.from_bytes(content[20:24], "big")


def test_each_picture_can_be_drawn_anew(chromium: Browser, tmp_path: Path) -> None:
    names = pictures.fill(tmp_path / "shop.db")
    access = Access([], anonymous=Identity("ana", (Grant(Role.ADMIN),)))
    with serving(tmp_path / "shop.db", access) as address:
        pictures.draw(chromium, address, names, tmp_path)
    drawn = {picture.name: size_of(picture) for picture in tmp_path.glob("*.png")}
    kept = {picture.name: size_of(picture) for picture in pictures.FOLDER.glob("*.png")}
    assert drawn == kept
    assert set(re.findall(r"\(pictures/([a-z]+\.png)\)", PAGE.read_text())) == set(kept)
