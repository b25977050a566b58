"""Makes pages of templates: every text that is not a template's own is escaped twice over."""

from __future__ import annotations

import dataclasses
import hashlib
import re
import shlex
import urllib.parse
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import jinja2
import msgspec
from markupsafe import Markup, escape
from starlette.requests import Request

from lazaretto.engine.command import Command
from lazaretto.engine.outcome.causes import Cause
from lazaretto.model.causes import TimeMark
from lazaretto.model.clock import iso
from lazaretto.model.filters.rules import describe_filter
from lazaretto.model.records.plain import told_detail
from lazaretto.model.shown_text import safe, safe_lines, shown_size

#: Units of a drawing: how wide a bar is with its gap, and how high the highest is.
STEP: Final = 10
HEIGHT: Final = 100
_DAY: Final = 24 * 60
_EPOCH: Final = datetime.fromtimestamp(0, UTC)


@dataclasses.dataclass(frozen=True, slots=True)
class Bar:
    """A bar: where it is, and what it says."""

    x: int
    y: float
    height: float
    count: int
    label: str


class Line(NamedTuple):
    """A mark in time: where it is, and what it says."""

    x: float
    label: str


@dataclasses.dataclass(frozen=True, slots=True)
class Chart:
    """Bars of spans of time, the current one last. `most`: the number of the highest."""

    bars: tuple[Bar, ...]
    lines: tuple[Line, ...]
    width: int
    height: int
    most: int
    total: int


def bars_chart(
    counts: Sequence[int], now: datetime, minutes: int = 60, marks: Sequence[TimeMark] = ()
) -> Chart:
    """Return numbers by hour, or by so many minutes, as bars, the current one last, with marks in time.

    The highest is as high as can be, and none is never seen as some.
    """
    most = max(counts, default=0)
    bars = []
    for place, count in enumerate(counts):
        height = 0.0 if not count else max(6.0, round(count * HEIGHT / most, 1))
        at = now - timedelta(minutes=(len(counts) - 1 - place) * minutes)
        label = {60: f"{at:%H}:00", _DAY: f"{at:%Y-%m-%d}"}.get(minutes, f"{at:%H:%M}")
        bars.append(Bar(place * STEP, round(HEIGHT - height, 1), height, count, label))
    return Chart(
        tuple(bars),
        _marked(marks, now, len(counts), minutes),
        len(counts) * STEP,
        HEIGHT,
        most,
        sum(counts),
    )


def _marked(marks: Sequence[TimeMark], now: datetime, spans: int, minutes: int) -> tuple[Line, ...]:
    """Return the marks that are within the spans of a chart, whose last one began at a full one."""
    length = timedelta(minutes=minutes)
    begins = now - (now - _EPOCH) % length - (spans - 1) * length
    within = (mark for mark in marks if begins <= mark.time <= now)
    return tuple(Line(round((mark.time - begins) / length * STEP, 1), mark.text) for mark in within)


_HERE: Final = Path(__file__).parent
#: What browsers may load, by its name, and its type.
ASSETS: Final = {
    "console.css": "text/css; charset=utf-8",
    "console.js": "text/javascript; charset=utf-8",
    "htmx.min.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}

_MARKED: Final = re.compile("`([^`]+)`")

#: What every page says to browsers.
PAGE_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


@cache
def asset(name: str) -> tuple[str, bytes]:
    """Return the name of a file with a part of its hash, and its bytes."""
    content = (_HERE / "static" / name).read_bytes()
    stem, _, kind = name.rpartition(".")
    return f"{stem}.{hashlib.sha256(content).hexdigest()[:8]}.{kind}", content


def shown_number(value: float | None) -> str:
    """Return a number with commas between thousands."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if float(value).is_integer() or abs(value) >= 10 else f"{value:,.1f}"


def shown_age(then: datetime | None, now: datetime) -> str:
    """Return how long ago something was, in its largest unit."""
    if then is None:
        return "–"
    return shown_span((now - then).total_seconds())


def shown_moment(moment: datetime) -> str:
    """Return a moment to the second."""
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def name_stamp(moment: datetime) -> str:
    """Return a moment as the end of a name: to the millisecond, as people and programs make many at once."""
    return moment.strftime("%m%d-%H%M%S-%f")[:-3]


def shown_span(seconds: float) -> str:
    """Return a span of time in its largest unit."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if abs(seconds) >= size:
            return f"{abs(seconds) / size:.0f} {unit}"
    return f"{abs(seconds):.0f} s"


def shown_text(cause: Cause) -> str:
    """Return the text of a cause's errors; of one whose texts are values alone, how many these are."""
    return f"{len(cause.fingerprints)} values" if cause.is_of_values else cause.template or ""


def shown_words(value: str) -> str:
    """Return a word of programs as words of people."""
    return value.replace("_", " ")


def address(base: str, path: str, /, **parameters: object) -> str:
    """Return the address of a page, with those parameters that are something."""
    chosen = {name: value for name, value in parameters.items() if value not in (None, "")}
    query = urllib.parse.urlencode(chosen, errors="replace")
    return f"{base}{urllib.parse.quote(path, errors='replace')}{'?' if query else ''}{query}"


def base_of(request: Request) -> str:
    """Return what comes before every link: where the application is mounted."""
    return str(request.scope.get("root_path", "")).rstrip("/")


def command_line(*words: object) -> str:
    """Return what to type for the same: a line of the shell."""
    return shlex.join(["lazaretto", *map(str, words)])


def line_of(command: Command) -> str:
    """Return the command line that runs a command, without the fields that have their defaults."""
    fields = {
        field.encode_name: getattr(command, field.name)
        for field in msgspec.structs.fields(command)
        if field.required or getattr(command, field.name) not in (field.default, {}, None)
    }
    return command_line("command", "run", command.command_name, msgspec.json.encode(fields).decode())


def _lines(text: str) -> Markup:
    return Markup(escape(safe_lines(text)))  # noqa: S704 - it is escaped


def _prose(text: str) -> Markup:
    """Return a docstring's text with the words that it marks as code."""
    return Markup(_MARKED.sub(r"<code>\1</code>", str(escape(safe_lines(text)))))  # noqa: S704 - it is escaped


def _exactly(value: object) -> Markup:
    return escape("" if value is None else value)


def _finalize(value: Any) -> Any:
    return safe(value) if type(value) is str else "–" if value is None else value


@cache
def _environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        finalize=_finalize,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "number": shown_number, "size": shown_size, "words": shown_words, "text": shown_text, "lines": _lines,
        "prose": _prose, "detail": told_detail, "exactly": _exactly, "iso": iso, "moment": shown_moment,
        "condition": describe_filter, "name_stamp": name_stamp,
    }  # fmt: skip
    made.globals |= {"cli": command_line, "line_of": line_of, "chart": bars_chart, "age": shown_age}
    return made


def render(template: str, request: Request, **values: Any) -> bytes:
    """Return the page that answers a request."""
    base = base_of(request)

    def link(path: str, /, **parameters: object) -> str:
        return address(base, path, **parameters)

    files = {name: f"{base}/static/{asset(name)[0]}" for name in ASSETS}
    now = datetime.now(UTC)
    state = request.app.state
    text = (
        _environment()
        .get_template(template)
        .render(
            link=link, files=files, now=now, base=base, pages=state.pages, stores=state.stores, **values
        )
    )  # fmt: skip
    return text.encode("utf-8", "backslashreplace")
