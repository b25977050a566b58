"""What a server consists of, as CycloneDX: `python -m contrib.sbom LOCK_FILE OUTPUT`, or `make sbom`."""

from __future__ import annotations

import importlib.metadata
import json
import re
import sys
import tomllib
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[1]
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)(?:\s*;\s*([^\\]+?))?\s*\\?$", re.MULTILINE)
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def components_of(lock: str) -> list[dict[str, Any]]:
    """Return the packages of a lock file, each with the hashes of its files."""
    pins = [*_PIN.finditer(lock)]
    ends = [pin.start() for pin in pins[1:]] + [len(lock)]
    found = []
    for pin, end in zip(pins, ends, strict=True):
        name, version, marker = pin[1], pin[2], pin[3]
        one: dict[str, Any] = {
            "type": "library", "bom-ref": f"pkg:pypi/{name}@{version}", "name": name, "version": version,
            "purl": f"pkg:pypi/{name}@{version}",
            "hashes": [{"alg": "SHA-256", "content": value} for value in _HASH.findall(lock, pin.end(), end)],
        }  # fmt: skip
        licence = _licence_of(name)
        if licence is not None:
            one["licenses"] = [{"license": {"name": licence}}]
        if marker is not None:
            one["properties"] = [{"name": "lazaretto:marker", "value": marker}]
        found.append(one)
    return found


def _licence_of(name: str) -> str | None:
    """Return the licence that an installed package states; None: it is not installed, or states none."""
    try:
        told = importlib.metadata.metadata(name)
    except importlib.metadata.PackageNotFoundError:
        return None
    stated = next((told[field] for field in ("License-Expression", "License") if field in told), "")
    classifiers = [one for one in told.get_all("Classifier") or () if one.startswith("License ::")]
    first = stated.strip().partition("\n")[0]
    return first or (classifiers[0].rpartition(" :: ")[2] if classifiers else None)


def bom_of(lock: str, project: dict[str, Any], when: datetime) -> dict[str, Any]:
    """Return the bill of materials of the project with the packages of a lock file."""
    name, version = project["name"], project["version"]
    ref, parts = f"pkg:pypi/{name}@{version}", components_of(lock)
    content = json.dumps([ref, parts], sort_keys=True)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        # The same for the same contents.
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, content)}",
        "version": 1,
        "metadata": {
            "timestamp": when.isoformat(timespec="seconds"),
            "component": {
                "type": "application", "bom-ref": ref, "name": name, "version": version, "purl": ref,
                "licenses": [{"license": {"id": project["license"]}}],
            },
        },
        "components": parts,
        "dependencies": [{"ref": ref, "dependsOn": sorted(one["bom-ref"] for one in parts)}],
    }  # fmt: skip


def main(lock: str, output: str) -> None:
    """Write the bill of materials of the packages in a lock file."""
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    path = Path(output)
    path.parent.mkdir(parents=True, exist_ok=True)
    made = bom_of(Path(lock).read_text("utf-8"), project, datetime.now(UTC))
    path.write_text(f"{json.dumps(made, indent=2)}\n", "utf-8")
    print(f"{path}: {len(made['components'])} packages")


if __name__ == "__main__":
    main(*sys.argv[1:])
