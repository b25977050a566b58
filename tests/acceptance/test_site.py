"""The site has every page, and its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

from contrib import site

_LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)")


def test_every_page_has_its_place_and_every_link_its_target(tmp_path: Path) -> None:
    site.main(str(tmp_path / "site"))
    pages = tmp_path / "site" / "docs"
    links = {link for page in pages.glob("*.md") for link in _LINK.findall(page.read_text("utf-8"))}
    assert {"quickstart.md", "pictures/cause.png", "changelog.md"} <= links
    assert [link for link in sorted(links) if not (pages / link).exists()] == []


def test_the_front_page_tells_the_story_and_names_the_doors(tmp_path: Path) -> None:
    site.main(str(tmp_path / "site"))
    front = (tmp_path / "site" / "docs" / "index.md").read_text("utf-8")
    source = site.source_address()
    assert f"git clone {source} && pip install" in front
    for part in ("## Poison a queue in ten lines", "](service-bus-clients.md)", "## When not to use it"):
        assert part in front
