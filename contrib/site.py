"""The pages as a site: `python -m contrib.site FOLDER` writes what Zensical builds it from; see `make docs`.

The pages of docs/ stay as they are. The front page is made of the README, and links to what is no page go to
the address of the source in pyproject.toml.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import tomllib
from pathlib import Path

_ROOT = Path(__file__).parents[1]
#: Pages that stand outside docs/, by their names on the site.
_OUTSIDE = {"changelog": "CHANGELOG.md", "contributing": "CONTRIBUTING.md", "security-policy": "SECURITY.md"}
#: The site's tabs, and their pages in order.
_TABS = {
    "Start": "index quickstart asyncio recipes testing coming-from-celery coming-from-service-bus",
    "Guides": "messages-and-settling poison-messages service-host isolation topics forwarding partitions "
    "transactions dialogs service-bus-clients emulator spark spark-results spark-cluster "
    "spark-claims spark-triage spark-any-source traces",
    "Operate": "operations systems console triage repairs access redaction security postgresql durability",
    "Reference": "reference service-bus-sdks cli http-api commands glossary",
    "Why": "when-not-to-use-it differences benchmarks decisions",
    "Project": "architecture how-postgresql-works amqp how-we-test contributing security-policy changelog",
}
#: The ways in, as cards of the front page: a title, what it is, and where it begins.
_DOORS = (
    (
        "Python",
        "Send, receive and settle, in a file or on PostgreSQL; run handlers in a service host.",
        "quickstart",
    ),
    ("Service Bus SDK", "Azure's own clients, unchanged, at your own store.", "service-bus-clients"),
    ("HTTP and console", "Any language by HTTP; failures, causes and repairs in a browser.", "http-api"),
    ("Spark", "Each row in isolation; what fails is set aside, repaired, and comes back.", "spark"),
)
#: What the README clones; the source's address takes its place where the README is published.
CLONED = "<this repository>"
_LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)(#[^)]*)?\)")


def source_address() -> str:
    """Return where the source is: pyproject.toml is the one place that says it."""
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return str(project["urls"]["Source"])


def front_page(readme: str) -> str:
    """Return the front page: the README's first sections, the doors as cards, and when not to use it."""
    begin = readme.split("\n## From Python")[0]
    limits = readme.split("\n## When not to use it")[1].split("\n## ")[0]
    cards = "\n".join(f"-   **[{title}](docs/{page}.md)**\n\n    {text}\n" for title, text, page in _DOORS)
    doors = f'<div class="grid cards" markdown>\n\n{cards}\n</div>'
    picture = "![A cause in the console](docs/pictures/cause.png)"
    return f"{begin}\n{picture}\n\n## Four doors\n\n{doors}\n\n## When not to use it{limits}"


def retarget(page: str, folder: str, names: dict[str, str], source: str) -> str:
    """Return a page of a folder of the project with links as the site has them."""

    def target(link: re.Match[str]) -> str:
        path = (_ROOT / folder / link[1]).resolve().relative_to(_ROOT).as_posix()
        to = names.get(path, f"{source}/{path}")
        return f"]({to}{link[2] or ''})"

    return _LINK.sub(target, page.replace(CLONED, source))


def main(folder: str) -> None:
    """Write the pages and the configuration into a folder, which is made anew."""
    site = Path(folder)
    shutil.rmtree(site, ignore_errors=True)
    (site / "docs").mkdir(parents=True)
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    source = source_address()
    pages = {f"docs/{path.name}": path.name for path in (_ROOT / "docs").glob("*.md")}
    pages |= {path: f"{name}.md" for name, path in _OUTSIDE.items()}
    listed = {f"{name}.md" for names in _TABS.values() for name in names.split()}
    if missing := listed.symmetric_difference({*pages.values(), "index.md"}):
        raise SystemExit(f"contrib/site.py and docs/ differ by {', '.join(sorted(missing))}")
    names = {**pages, "README.md": "index.md"}
    for picture in [*(_ROOT / "docs").glob("*.png"), *(_ROOT / "docs" / "pictures").iterdir()]:
        place = picture.relative_to(_ROOT / "docs")
        (site / "docs" / place).parent.mkdir(exist_ok=True)
        shutil.copy(picture, site / "docs" / place)
        names[f"docs/{place.as_posix()}"] = place.as_posix()
    shutil.copy(_ROOT / "docs" / "openapi.json", site / "docs")
    names["docs/openapi.json"] = "openapi.json"
    for path, name in pages.items():
        text = (_ROOT / path).read_text("utf-8")
        (site / "docs" / name).write_text(retarget(text, str(Path(path).parent), names, source))
    front = retarget(front_page((_ROOT / "README.md").read_text("utf-8")), ".", names, source)
    (site / "docs" / "index.md").write_text(front)
    tabs = [{tab: [f"{name}.md" for name in names.split()]} for tab, names in _TABS.items()]
    # YAML takes JSON, so nothing here has to be quoted by hand.
    configuration = {
        "site_name": "Lazaretto",
        "site_description": project["description"],
        "theme": {
            "name": "material",
            "font": False,
            "features": ["navigation.tabs", "navigation.top", "content.code.copy", "search.highlight"],
            "palette": [
                {"media": "(prefers-color-scheme)", "toggle": {"icon": "lucide/sun-moon", "name": "Light"}},
                {"media": "(prefers-color-scheme: light)", "scheme": "default",
                 "toggle": {"icon": "lucide/sun", "name": "Dark"}},
                {"media": "(prefers-color-scheme: dark)", "scheme": "slate",
                 "toggle": {"icon": "lucide/moon", "name": "As the system"}},
            ],
        },
        "markdown_extensions": [
            "attr_list", "md_in_html", "tables", "pymdownx.superfences", {"toc": {"permalink": True}},
        ],
        "nav": tabs,
    }  # fmt: skip
    (site / "mkdocs.yml").write_text(json.dumps(configuration, indent=2))


if __name__ == "__main__":
    main(*sys.argv[1:])
