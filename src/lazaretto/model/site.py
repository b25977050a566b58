"""The site of an error: where in the code it came from, whatever the release and the host."""

from __future__ import annotations

import functools
import linecache
import re
import sysconfig
from pathlib import Path
from types import TracebackType

#: A source line's longest part, a stack's, and a site's, in characters.
_LONGEST_LINE = 120
_LONGEST_STACK = 16_384
LONGEST_SITE = 600
#: Errors behind one another that are looked through for the first one.
_MOST_CHAINED = 100

_LIBRARIES = tuple(
    {f"{path}/" for name, path in sysconfig.get_paths().items() if name.endswith(("stdlib", "lib"))}
)
#: Where this package is, here and wherever a stack as text comes from: its frames are no site.
_OURS, _OURS_ANYWHERE = f"{Path(__file__).parents[1]}/", "/site-packages/lazaretto/"
_INSTALLED = ("/site-packages/", "/dist-packages/", "/node_modules/", "\\site-packages\\")
_PYTHON_LIBRARY = re.compile(r"/lib/python\d[\d.]*/")
_FRAME = re.compile(r'File "([^"]{1,1000})", line \d+(?:,)? in (.{1,400})')
_CHAINED = ("The above exception was the direct cause", "During handling of the above exception")
#: Functions that are no application's, in stacks of Java, .NET and JavaScript.
_FOREIGN = ("java.", "javax.", "jdk.", "sun.", "kotlin.", "System.", "Microsoft.", "node:", "internal/")


def site_of(error: BaseException) -> str | None:
    """Return an error's site: the innermost frame of the application, and below it the innermost of all.

    Each is its module, its qualified function and its source line; there is no path and no line number. Of
    errors that one led to another, the first one's. Frames of this package do not count. None if there are
    no others.
    """
    application: TracebackType | None = None
    innermost: TracebackType | None = None
    trace = _first(error).__traceback__
    while trace is not None:
        path = trace.tb_frame.f_code.co_filename
        if not _is_ours(path):
            innermost = trace
            application = application if _is_library(path) else trace
        trace = trace.tb_next
    if innermost is None:
        return None
    return _joined(
        None if application is None else _place(application),
        None if innermost is application else _place(innermost),
    )


def site_in(stack: str | None) -> str | None:
    """Return the site that a stack as text shows, as Python, Java, .NET or JavaScript write it."""
    if not stack:
        return None
    lines = stack[:_LONGEST_STACK].splitlines()
    return _site_in_python(lines) or _site_in_calls(lines)


def _first(error: BaseException) -> BaseException:
    """Return the error that led to another, and so on to this one; the first that others' code raised."""
    first, current, seen = error, error, {id(error)}
    while len(seen) < _MOST_CHAINED:
        before = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
        if before is None or id(before) in seen:
            break
        seen.add(id(before))
        current = before
        if _is_raised_by_others(current):
            first = current
    return first


def _is_raised_by_others(error: BaseException) -> bool:
    trace = error.__traceback__
    while trace is not None:
        if not _is_ours(trace.tb_frame.f_code.co_filename):
            return True
        trace = trace.tb_next
    return False


def _is_ours(path: str) -> bool:
    return path.startswith(_OURS) or _OURS_ANYWHERE in path


def _place(trace: TracebackType) -> str:
    frame = trace.tb_frame
    code, module = frame.f_code, frame.f_globals.get("__name__")
    # A process that was started anew calls the main module so.
    name = "__main__" if module == "__mp_main__" else module if isinstance(module, str) else "?"
    source = linecache.getline(code.co_filename, trace.tb_lineno, frame.f_globals)
    return _written(f"{name}.{code.co_qualname}", source)


def _written(function: str, source: str | None) -> str:
    line = " ".join(source.split())[:_LONGEST_LINE] if source else ""
    return f"{function}: {line}" if line else function


def _joined(application: str | None, innermost: str | None) -> str:
    return "\n".join(part for part in (application, innermost) if part)[:LONGEST_SITE]


@functools.lru_cache(4096)
def _is_library(path: str) -> bool:
    return (
        path.startswith(("<frozen", *_LIBRARIES))
        or any(part in path for part in _INSTALLED)
        or _PYTHON_LIBRARY.search(path) is not None
    )


def _site_in_python(lines: list[str]) -> str | None:
    # The fault handler prints the innermost frame first, and no source; what it met is wherever it was met.
    sampled = any("most recent call first" in line for line in lines)
    frames: list[tuple[str, str]] = []
    for number, line in enumerate(lines):
        if frames and line.strip().startswith(_CHAINED):
            # What comes before has led to what follows.
            break
        match = _FRAME.search(line)
        if match is not None and not _is_ours(match[1]):
            below = lines[number + 1] if number + 1 < len(lines) and not sampled else ""
            # Behind a frame stands its line; another frame does if the source was not found.
            source = "" if _FRAME.search(below) or not below.startswith((" ", "|")) else below.lstrip(" |")
            frames.append((match[1], _written(f"{_tail_of(match[1])}:{match[2].strip()}", source)))
    if not frames:
        return None
    if sampled:
        frames.reverse()
    application = next((place for path, place in reversed(frames) if not _is_library(path)), None)
    innermost = frames[-1][1]
    return _joined(application, None if sampled and application else _unless(application, innermost))


def _unless(application: str | None, innermost: str) -> str | None:
    return None if innermost == application else innermost


def _tail_of(path: str) -> str:
    """Return the end of a path, without what a release changes: parts with digits."""
    *folders, file = re.split(r"[/\\]", path)[-2:]
    return "/".join([*(folder for folder in folders if not re.search(r"\d", folder)), file])


def _site_in_calls(lines: list[str]) -> str | None:
    """Return the site in lines like `at module.function(file:12)`, of which the innermost comes first."""
    causes = [number for number, line in enumerate(lines) if line.lstrip().startswith("Caused by:")]
    functions: list[str] = []
    for line in lines[causes[-1] if causes else 0 :]:
        stripped = line.strip()
        if functions and stripped.startswith("--- End of"):
            break
        if stripped.startswith("at "):
            functions.append(re.split(r"[(\s]", stripped[3:].removeprefix("async "), maxsplit=1)[0][:400])
    if not functions:
        return None
    application = next((name for name in functions if not name.startswith(_FOREIGN)), None)
    return _joined(application, _unless(application, functions[0]))
