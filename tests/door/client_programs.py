"""The programs of contrib/clients: what each needs is brought once, and kept outside of this project."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from door.facts import CLIENTS
from door.javascript_clients import installed
from lazaretto.errors import JavaNotFound
from lazaretto.spark import find_java

#: `none` leaves out all that must be brought.
NAMED = "LAZARETTO_TEST_CLIENTS"
_CACHE = Path(os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))) / "lazaretto-tests"
#: Where `make test` installs the older version of Azure's client.
_OLDER = Path(sys.prefix) / "azure-servicebus-7.14"
_BUILD_SECONDS = 600
#: Tests begin a program often, and none runs for long.
_JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m")


class Missing(Exception):
    """A program cannot be had on this machine; the text says why."""


@dataclasses.dataclass(frozen=True)
class Program:
    """How a program is started."""

    words: tuple[str, ...]
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)


def _python(number: str, authority: str) -> Program:
    # The administration client of the older one does not look at the certificate that it is given.
    trusts = dict.fromkeys(("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"), authority)
    environment = {}
    if not version("azure-servicebus").startswith(number):
        if not _OLDER.is_dir():
            raise Missing(f"there is no {_OLDER}: make test installs it")
        environment = {"PYTHONPATH": str(_OLDER), **trusts}
    return Program((sys.executable, str(CLIENTS / "python/client.py")), environment)


def _proton(name: str, _authority: str) -> Program:
    if find_spec("proton") is None:
        raise Missing("there is no Proton for this Python")
    return Program((sys.executable, str(CLIENTS / "python" / name)))


def _javascript(name: str, authority: str) -> Program:
    if shutil.which("node") is None or shutil.which("npm") is None:
        raise Missing("there is no node and npm")
    environment = {"NODE_PATH": str(installed()), "NODE_EXTRA_CA_CERTS": authority}
    return Program(("node", str(CLIENTS / "javascript" / name)), environment)


def _folder(kind: str, files: list[Path]) -> Path:
    """Return a folder of the cache for what is made of files."""
    known = hashlib.sha256(b"".join(file.read_bytes() for file in sorted(files))).hexdigest()
    return _CACHE / f"{kind}-{known[:12]}"


def _build(words: list[str], folder: Path) -> None:
    try:
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=_BUILD_SECONDS)
    except subprocess.SubprocessError as error:
        raise Missing(str(error)) from error
    if done.returncode != 0:
        raise Missing(f"{' '.join(words[:2])}: {(done.stderr.splitlines() or ['no reason'])[-1]}")


def _go(_name: str, _authority: str) -> Program:
    go = shutil.which("go")
    if go is None:
        raise Missing("there is no go")
    source = CLIENTS / "go"
    made = _folder("go", list(source.iterdir())) / "client"
    if not made.exists():
        part = made.with_name(f"client.{os.getpid()}")
        _build([go, "build", "-o", str(part), "."], source)
        part.rename(made)
    return Program((str(made),))


def _java(name: str, _authority: str) -> Program:
    # It needs Spark, whose client of Maven's repositories brings the jars.
    from examples.kafka_flights.kafka import jars_of

    source = CLIENTS / "java"
    try:
        java = find_java().home / "bin" / "java"
        jars = jars_of(source / "jars.xml", name.lower())
    except (JavaNotFound, OSError) as error:
        raise Missing(str(error)) from error
    compiler = java.with_name("javac")
    if not compiler.exists():
        raise Missing(f"the Java at {java} has no compiler")
    classes = os.pathsep.join(map(str, jars))
    made = _folder(f"java-{name.lower()}", list(source.iterdir()))
    if not made.exists():
        part = made.with_name(f"{made.name}.{os.getpid()}")
        words = ["-d", str(part), "-cp", classes, "-sourcepath", str(source), str(source / f"{name}.java")]
        _build([str(compiler), *words], source)
        part.rename(made)
    return Program((str(java), *_JVM, "-cp", os.pathsep.join([str(made), classes]), name))


#: Programs by name; each brings what it needs, and is told the file of the authority to trust.
PROGRAMS: Mapping[str, tuple[Callable[[str, str], Program], str]] = {
    "python-7.15": (_python, "7.15"),
    "python-7.14": (_python, "7.14"),
    "javascript": (_javascript, "client.js"),
    "proton": (_proton, "qpid.py"),
    "rhea": (_javascript, "rhea.js"),
    "go": (_go, ""),
    "java": (_java, "Azure"),
    "java-rabbit": (_java, "Rabbit"),
    "java-jms": (_java, "Jms"),
}


def program(name: str, authority: str = "") -> Program:
    """Return a program by name; `authority`: the file of what it trusts. Raises Missing."""
    bring, what = PROGRAMS[name]
    if os.environ.get(NAMED) == "none" and bring is not _python:
        raise Missing(f"{NAMED} is none")
    return bring(what, authority)


def main() -> None:
    """Bring all programs, and say which cannot be had."""
    for name in PROGRAMS:
        try:
            program(name)
        except Missing as error:
            print(f"the facts of {name} will not be asked: {error}")


if __name__ == "__main__":
    main()
