"""The container file: without a container engine, what its instructions say is done here."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from servers import free_port

_ROOT = Path(__file__).parents[2]
_FILE = _ROOT / "contrib" / "container" / "Containerfile"
_KNOWN = {"FROM", "COPY", "RUN", "USER", "VOLUME", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT", "CMD"}


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the file, each in one line."""
    lines = [line for line in _FILE.read_text().splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    pairs = (line.partition(" ") for line in joined.splitlines() if line)
    return [(word, rest.strip()) for word, _, rest in pairs]


def one(word: str) -> str:
    """Return what stands behind the only instruction of a kind."""
    (found,) = (rest for kind, rest in instructions() if kind == word)
    return found


def test_every_instruction_is_one() -> None:
    found = instructions()
    assert {word for word, _ in found} <= _KNOWN
    assert found[0][0] == "FROM"
    stages = {rest.split(" AS ")[1] for word, rest in found if word == "FROM" and " AS " in rest}
    assert set(re.findall(r"from=(\w+)", _FILE.read_text())) <= stages


def test_commands_are_those_of_a_shell() -> None:
    for word, rest in instructions():
        if word == "RUN":
            command = re.sub(r"--mount=\S+", "", rest)
            assert subprocess.run(["sh", "-n", "-c", command], check=False).returncode == 0, command


def test_it_installs_what_there_is_on_a_python_that_there_may_be() -> None:
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    text = _FILE.read_text()
    extras = set(re.findall(r"\[(\w+)\]\"", text))
    assert extras
    assert extras <= project["optional-dependencies"].keys()
    versions = re.findall(r"python:(\d+\.\d+)", text)
    assert {f"Programming Language :: Python :: {one}" for one in versions} <= set(project["classifiers"])


def test_it_is_built_and_runs_on_a_root_that_cannot_be_written() -> None:
    script = str(_FILE.parent / "check.sh")
    subprocess.run(["sh", "-n", script], check=True)
    if not os.environ.get("LAZARETTO_TEST_CONTAINER"):
        pytest.skip("LAZARETTO_TEST_CONTAINER does not say that debootstrap and buildah may be run as root")
    done = subprocess.run(["sh", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "sent and received as user 12345" in done.stdout


def test_a_compose_file_and_an_example_are_well_formed() -> None:
    yaml = pytest.importorskip("yaml")
    compose = yaml.safe_load((_FILE.parent / "compose.yaml").read_text())
    emulator, program = compose["services"]["servicebus"], compose["services"]["program"]
    assert [port.rpartition(":")[2] for port in emulator["ports"]] == one("EXPOSE").split()
    assert program["depends_on"]["servicebus"]["condition"] == "service_healthy"
    text = program["environment"]["SERVICE_BUS"]
    assert dict(part.split("=", 1) for part in text.strip(";").split(";"))["Endpoint"] == "sb://servicebus"
    example = _FILE.parent / "with_testcontainers.py"
    compile(example.read_text(), str(example), "exec")


def test_what_it_starts_says_that_it_is_well(tmp_path: Path) -> None:
    words, ports = json.loads(one("ENTRYPOINT")), one("EXPOSE").split()
    assert [words[words.index(option) + 1] for option in ("--port", "--also")] == ports
    assert words[0] == "lazaretto"
    # Ports that are free here, and this machine alone.
    here = {port: str(free_port()) for port in ports} | {"0.0.0.0": "127.0.0.1"}
    command = [sys.executable, "-m", *(here.get(word, word) for word in words)]
    check = json.loads(one("HEALTHCHECK").partition("CMD")[2])
    assert check[0] == "python"
    code = check[2].replace(ports[1], here[ports[1]])
    with pytest.raises(subprocess.CalledProcessError):
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=120)
    store = ["--store", str(tmp_path / "emulator.db"), "--json"]
    with subprocess.Popen([*command, *store], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline()
            subprocess.run([sys.executable, *check[1:2], code], check=True, timeout=120)
        finally:
            process.terminate()
        assert process.wait(120) == 0
