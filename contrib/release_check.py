"""Rehearse a release: `python -m contrib.release_check UV`, or `make release-check`.

Builds the source distribution, and the wheel from it, into dist/, with addresses in the README that an index
can show. Checks both, installs the wheel into an empty environment in a folder of its own, and uses it there.
What is wrong is said in one line each.
"""

from __future__ import annotations

import email
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from contrib.site import CLONED, source_address

_ROOT = Path(__file__).parents[1]
_DIST = _ROOT / "dist"
#: What a first user does with the package, in a folder without the project.
_FIRST_USE = """
import lazaretto
from lazaretto import Message

with lazaretto.connect("sqlite:///shop.db") as broker:
    broker.create_queue("orders", exist_ok=True)
    broker.sender("orders").send(Message(b"a lamp"))
    with broker.receiver("orders") as receiver:
        receiver.dead_letter(receiver.receive(max_wait=10), reason="Rehearsal")
    assert [letter.reason for letter in broker.dead_letters("orders")] == ["Rehearsal"]
"""
#: A link or an image of a page by an address that only its neighbours understand.
_RELATIVE = re.compile(r"\]\((?!https?://|#)([^)]+)\)")
#: Folders of the project that are no part of a release.
_LEFT_OUT = ("bench", ".ci", ".github")


def _run(*command: str | Path, folder: Path = _ROOT) -> str:
    """Run a command and return what it prints. Ends the rehearsal, with its output, if it fails."""
    line = [str(part) for part in command]
    ended = subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False)  # noqa: S603
    if ended.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))} failed:\n{ended.stdout}{ended.stderr}")
    return ended.stdout


def faults_of_wheel(wheel: Path) -> Iterator[str]:
    """Yield what is wrong with a wheel's files and metadata."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        fields = email.message_from_bytes(archive.read(metadata))
    strange = {name.split("/")[0] for name in names} - {"lazaretto", "pyspark_lazaretto.py"}
    yield from (f"the wheel has {name}" for name in sorted(strange) if not name.endswith(".dist-info"))
    if "lazaretto/py.typed" not in names:
        yield "the wheel lacks lazaretto/py.typed: type checkers would not read its types"
    if not fields.get_all("Project-URL"):
        yield "the wheel names no address of its source: see [project.urls] in pyproject.toml"
    for link in _RELATIVE.finditer(str(fields.get_payload())):
        yield f"the README names {link[1]} by a relative address, which an index cannot show"


def faults_of_source(source: Path) -> Iterator[str]:
    """Yield what is wrong with a source distribution: its tests must need nothing that it leaves out."""
    needs = re.compile(rf"^\s*(?:from|import) (?:{'|'.join(map(re.escape, _LEFT_OUT))})\b", re.MULTILINE)
    with tarfile.open(source) as archive:
        for member in archive.getmembers():
            file = archive.extractfile(member) if member.name.endswith(".py") else None
            if file is not None and needs.search(file.read().decode()):
                yield f"{member.name} imports what is left out of the source distribution"


def build(uv: str) -> tuple[Path, Path]:
    """Build the wheel and the source distribution from a copy of what git has; return both."""
    source = source_address()
    if ".example/" in source:
        print(f"note: {source} is a placeholder; set it in pyproject.toml before a real release")
    for old in _DIST.glob("lazaretto-*"):
        old.unlink()
    with tempfile.TemporaryDirectory() as name:
        for path in _run("git", "ls-files", "-z").split("\0")[:-1]:
            copy = Path(name, path)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(_ROOT / path, copy)
        readme = Path(name, "README.md")
        text = readme.read_text().replace(CLONED, source)
        readme.write_text(_RELATIVE.sub(rf"]({source}/\1)", text))
        _run(uv, "build", "--quiet", "--out-dir", _DIST, name)
    (wheel,), (archive,) = _DIST.glob("*.whl"), _DIST.glob("*.tar.gz")
    print(f"built {archive.name} and {wheel.name}")
    return wheel, archive


def main(uv: str) -> None:
    """Build, check, install and use; exit with 1 if something is wrong."""
    wheel, source = build(uv)
    faults = [*faults_of_wheel(wheel), *faults_of_source(source)]
    _run(uv, "tool", "run", "--quiet", "twine", "check", "--strict", wheel, source)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _run(sys.executable, "-m", "venv", folder / "environment")
        python = folder / "environment" / "bin" / "python"
        _run(python, "-m", "pip", "install", "--quiet", wheel, folder=folder)
        (folder / "first_use.py").write_text(_FIRST_USE)
        _run(python, "first_use.py", folder=folder)
        version = _run(folder / "environment" / "bin" / "lazaretto", "--version", folder=folder).strip()
    print(f"installed into an empty environment, and used: {version}")
    for fault in faults:
        print(f"to mend: {fault}")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
