"""The record of an error: its type, its message and its stack, of bounded length."""

from __future__ import annotations

import itertools
import linecache
import traceback
from pathlib import Path
from types import FrameType, TracebackType

import msgspec

from lazaretto.errors import InvalidOption
from lazaretto.model.checks import shown
from lazaretto.model.site import LONGEST_SITE, site_of

#: Where the code stands that calls handlers, and of Python what awaits theirs.
_CALLERS = (
    *(
        str(Path(__file__).parents[1] / name)
        for name in ("host", "isolation", "spark/sandbox_handler.py", "broker/consume.py", "aio")
    ),
    *(str(Path(traceback.__file__).with_name(name)) for name in ("asyncio", "concurrent")),
)

#: Types of failures that no handler raises: its deadline was over, its process died, its memory was used up.
HANDLER_TIMEOUT = "HandlerTimeout"
WORKER_CRASHED = "WorkerCrashed"
OUT_OF_MEMORY = "OutOfMemory"

LONGEST_TYPE = 256
#: Service Bus's limit for a dead letter's reason and description, in characters.
LONGEST_TEXT = 4096
LONGEST_STACK = 8192
# The innermost frames of a deep recursion: more than that does not fit the longest stack anyway.
_MOST_FRAMES = -100
#: Longer stacks may repeat themselves, and are shortened where they do.
_SHORT = 20
#: Errors for which Python knows more than they say.
_WITH_HINTS = (NameError, AttributeError, ImportError)


class Failure(msgspec.Struct, frozen=True):
    """An error as the history keeps it. `site`: where in the code it came from, as far as that is known."""

    type: str
    message: str | None = None
    stack: str | None = None
    site: str | None = None


def short_error(kind: str, message: str | None, longest: int = 512) -> str:
    """Return an error on one line: its type and the first line of its text."""
    first = (message or "").strip().partition("\n")[0]
    return shorten(f"{kind}: {first}" if first else kind, longest).replace("\n", " ")


def shown_reason(reason: str | None, *more: str | None) -> str:
    """Return why a message is a dead letter, and more about it. Who sets one aside may give no reason."""
    return ": ".join(one for one in (reason, *more) if one) or "no reason was given"


def shorten(text: str, longest: int) -> str:
    """Return text that can be stored, cut in the middle if it is too long, and saying so."""
    if type(text) is str and len(text) <= longest and text.isascii():
        return text
    # A lone surrogate cannot be stored; what is left of an error's text still helps.
    text = text.encode("utf-8", "backslashreplace").decode()
    if len(text) <= longest:
        return text
    mark = f"\n… {len(text) - longest} characters left out …\n"
    room = longest - len(mark)
    return f"{text[: room - room // 2]}{mark}{text[len(text) - room // 2 :]}"


def _without_ours(trace: TracebackType | None) -> TracebackType | None:
    """Leave out the frames that lead to a handler: they are the same for every error."""
    theirs = trace
    while theirs is not None and theirs.tb_frame.f_code.co_filename.startswith(_CALLERS):
        theirs = theirs.tb_next
    return trace if theirs is None else theirs


def _stack_of(error: BaseException) -> str:
    """Return the stack as Python prints it, without carets below the lines: they cost four times as much."""
    chained = error.__cause__ is not None or error.__context__ is not None
    if chained or isinstance(error, BaseExceptionGroup | SyntaxError):
        return "".join(traceback.format_exception(error))
    trace = list(itertools.islice(traceback.walk_tb(_without_ours(error.__traceback__)), _SHORT + 1))
    if len(trace) > _SHORT:
        whole = traceback.walk_tb(_without_ours(error.__traceback__))
        lines = traceback.StackSummary.extract(whole, limit=_MOST_FRAMES).format()
    else:
        lines = [_frame_of(frame, line) for frame, line in trace]
    head = ["Traceback (most recent call last):\n"] if lines else []
    return "".join([*head, *lines, *_last_lines(error)])


def _frame_of(frame: FrameType, number: int) -> str:
    """Return a line of a stack as Python prints it, without looking at the file again, as Python would."""
    code = frame.f_code
    source = linecache.getline(code.co_filename, number, frame.f_globals).strip()
    line = f'  File "{code.co_filename}", line {number}, in {code.co_name}\n'
    return f"{line}    {source}\n" if source else line


def _last_lines(error: BaseException) -> list[str]:
    if isinstance(error, _WITH_HINTS) or hasattr(error, "__notes__"):
        return traceback.format_exception_only(error)
    name, text = name_of(error), str(error)
    return [f"{name}: {text}\n" if text else f"{name}\n"]


def name_of(error: BaseException) -> str:
    """Return the type of an error as failures name it."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def kept(name: str, value: object) -> str | None:
    """Return what a receiver tells of a message, as it is kept; else raise InvalidOption."""
    if value is not None and not isinstance(value, str):
        raise InvalidOption(f"expected {name} to be text or None, got {shown(value)}")
    return None if value is None else shorten(value, LONGEST_TEXT)


def forget_context(error: BaseException, outer: BaseException | None) -> None:
    """Part an error of a handler from one that was being handled already when the handler was called.

    Python makes that one a context of all that is raised meanwhile, though it led to none of it.
    """
    current: BaseException | None = error
    seen: set[int] = set()
    while outer is not None and current is not None and id(current) not in seen:
        seen.add(id(current))
        if current.__context__ is outer:
            current.__context__ = None
        current = current.__cause__ or current.__context__


def failure_of(error: BaseException | str | None) -> Failure | None:
    """Return what is kept of an exception, or of an error given as text "Type: message"."""
    if error is None:
        return None
    if not isinstance(error, BaseException | str):
        raise InvalidOption(f"expected error to be an exception, text or None, got {shown(error)}")
    if isinstance(error, BaseException):
        name = name_of(error)
        try:
            text = str(error)
            stack = _stack_of(error)
            site = site_of(error)
        except BaseException as broken:  # an exception's own __str__ may fail in any way
            text = stack = f"(no text: {type(broken).__name__} while asking for it)"
            site = None
        return Failure(
            shorten(name, LONGEST_TYPE),
            shorten(text, LONGEST_TEXT),
            shorten(stack, LONGEST_STACK),
            None if site is None else shorten(site, LONGEST_SITE),
        )
    name, colon, text = error.partition(": ")
    if not colon or not name.replace(".", "").isidentifier():
        return Failure("Error", shorten(error, LONGEST_TEXT))
    return Failure(shorten(name, LONGEST_TYPE), shorten(text, LONGEST_TEXT))
