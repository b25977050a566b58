"""What is installed is known to the byte: lock files with hashes, and a bill of materials."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from datetime import UTC, datetime
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from contrib.sbom import bom_of, components_of

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
LOCKS = {
    "gate.lock": ("dev", "examples", "spark"), "run.lock": ("examples", "spark"), "demo.lock": ("serve",),
    "server.lock": ("serve", "postgres", "oidc"),
    "uv.lock": (), "older-client.lock": (), "older-spark.lock": (), "azure-tests.lock": (),
}  # fmt: skip
#: What is installed as pyproject.toml allows it: on other Pythons than those that were locked, and to compare
#: speed with other queues. No gate does that.
ALLOWED = ("--editable $(2)", "install ./bench")


@pytest.mark.parametrize("name", LOCKS)
def test_locks_pin_all_that_is_asked_for(name: str) -> None:
    text = (ROOT / "requirements" / name).read_text("utf-8")
    assert "://" not in text, "a lock file names no host"
    assert len(text) < 1_000_000
    parts = {canonicalize_name(one["name"]): one for one in components_of(text)}
    assert all(one["hashes"] for one in parts.values())
    assert len(parts) == len(re.findall(r"^\S+==", text, re.MULTILINE))
    extras = PROJECT["optional-dependencies"]
    asked = [*PROJECT["dependencies"], *(one for extra in LOCKS[name] for one in extras[extra])]
    asked = asked if LOCKS[name] else []
    assert parts
    for wanted in map(Requirement, asked):
        found = parts[canonicalize_name(wanted.name)]
        assert found["version"] in wanted.specifier, f"{found['purl']} is not {wanted}; run make lock"


def test_the_container_takes_what_is_locked() -> None:
    text = (ROOT / "contrib" / "container" / "Containerfile").read_text("utf-8")
    assert "--require-hashes --requirement /source/server.lock" in text


@pytest.mark.parametrize("path", ["Makefile", ".ci/run", "contrib/container/Containerfile"])
def test_nothing_is_installed_without_its_hash(path: str) -> None:
    text = (ROOT / path).read_text("utf-8").replace("\\\n", " ")
    installs = re.findall(r"(?:\$\(PIP\)|\bpip\b)[^;&|\n]*\binstall\b[^;&|\n]*", text)
    assert installs or path == ".ci/run"
    for one in installs:
        own = "--no-deps" in one and re.search(r"(--editable \.|/source)\s*$", one)
        # What lies in a folder of wheels was checked when it came there.
        checked = "--require-hashes" in one or "--no-index" in one
        assert checked or own or any(some in one for some in ALLOWED), one


def test_the_bill_of_materials(tmp_path: Path) -> None:
    lock = (ROOT / "requirements" / "server.lock").read_text("utf-8")
    made = bom_of(lock, PROJECT, datetime(2026, 3, 1, tzinfo=UTC))
    assert (made["bomFormat"], made["specVersion"]) == ("CycloneDX", "1.6")
    assert made["metadata"]["component"]["version"] == PROJECT["version"]
    refs = {one["bom-ref"] for one in made["components"]}
    assert len(refs) == len(made["components"])
    assert set(made["dependencies"][0]["dependsOn"]) == refs
    assert made == bom_of(lock, PROJECT, datetime(2026, 3, 1, tzinfo=UTC))
    command = [
        sys.executable,
        "-m",
        "contrib.sbom",
        "requirements/server.lock",
        str(tmp_path / "x" / "y.json"),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert f"{len(refs)} packages" in done.stdout
    assert (tmp_path / "x" / "y.json").stat().st_size > 1_000
