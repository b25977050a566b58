"""Finds values in a text in all the forms in which Python, JSON and a stack trace print them. Pure."""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

#: A value with fewer characters is looked for only where it is a word.
_SHORT: Final = 4
#: Of a longer value any part of this many characters is found, too: Python cuts what it prints.
PART: Final = 15
#: Each such part has one whole block of a value in it.
_BLOCK: Final = (PART + 1) // 2
#: Places that are remembered of a block that several values have.
_MOST_PLACES: Final = 4

#: A group of exceptions has a margin before each line.
_BREAKS: Final = r"\n\r\v\f\x1c-\x1e\x85\u2028\u2029"
_SPACES = re.compile(rf"[^\S{_BREAKS}]*[{_BREAKS}]\s*(?:\|\s*)*|\s+")
_LETTERS = r"\\+(?P<letter>[abfnrtv])"
_CODES = (
    r"\\+N\{(?P<name>[^{}]{1,90})\}|(?P<code8>(?:\\+U[0-9a-fA-F]{8})+)|(?P<code4>(?:\\+u[0-9a-fA-F]{4})+)"
    r"|(?P<code2>(?:\\+x[0-9a-fA-F]{2})+)"
)
_SLASHES = r"\\+"
_LETTER = dict(zip("abfnrtv", "\a\b\f\n\r\t\v", strict=True))
#: Where a text was cut in the middle.
_CUT = re.compile(r"\s… \d+ characters left out …\s")
#: Characters of an escape that such a cut can have broken.
_BROKEN: Final = 10


_NAMED = {"amp": "&", "apos": "'", "gt": ">", "lt": "<", "quot": '"'}
_AGAIN = re.compile(r"%(?:25)+(?=[0-9a-fA-F]{2})")
_NO_UTF8 = {0xDC00 + number: number for number in range(0x80, 0x100)}


def _codes(digits: str, *, as_bytes: bool) -> str:
    """Return what stands for escapes with numbers: characters, or bytes of UTF-8."""
    numbers = [int(part[1:], 16) for part in digits.split("\\") if part]
    if as_bytes:
        # What is no UTF-8 was a character before, which Python does not print.
        return bytes(numbers).decode("utf-8", "surrogateescape").translate(_NO_UTF8)
    if max(numbers) > 0x10FFFF:
        return digits
    # Two of JSON's can be one character.
    text = "".join(map(chr, numbers))
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def _escape(match: re.Match[str], *, as_bytes: bool) -> str:
    parts = match.groupdict()
    if parts.get("letter"):
        return _LETTER[parts["letter"]]
    if parts.get("name"):
        try:
            return unicodedata.lookup(parts["name"])
        except KeyError:
            return parts["name"]
    if parts.get("code2"):
        return _codes(parts["code2"], as_bytes=as_bytes)
    codes = parts.get("code4") or parts.get("code8")
    return _codes(codes, as_bytes=False) if codes else ""


def _unquoted(match: str) -> str:
    """Return what stands for escapes of a URL, also several times over."""
    plain = _AGAIN.sub("%", match)
    text = bytes.fromhex(plain.replace("%", "")).decode("utf-8", "replace") if plain[0] == "%" else plain
    return text.replace("+", " ")


def _reference(match: re.Match[str]) -> str:
    """Return what stands for a reference of HTML, also several times over."""
    if match[3]:
        return _NAMED[match[3]]
    code = int(match[1]) if match[1] else int(match[2], 16)
    return chr(code) if code <= 0x10FFFF else match[0]


class _Read(NamedTuple):
    """A text as it is read, and where each of its characters comes from."""

    text: str
    starts: Sequence[int]
    ends: Sequence[int]


class _Step(NamedTuple):
    """A way to read some escapes."""

    #: What a text without any such escape does not have.
    mark: str
    token: re.Pattern[str]
    meaning: Callable[[re.Match[str]], str]

    def read(self, value: _Read) -> _Read:
        """Read a text further."""
        parts: list[str] = []
        starts: list[int] = []
        ends: list[int] = []
        at = 0
        for match in self.token.finditer(value.text):
            first, last = match.span()
            means = self.meaning(match)
            parts += (value.text[at:first], means)
            starts += value.starts[at:first]
            ends += value.ends[at:first]
            starts += [value.starts[first]] * len(means)
            ends += [value.ends[last - 1]] * len(means)
            at = last
        starts += value.starts[at:]
        ends += value.ends[at:]
        return _Read("".join([*parts, value.text[at:]]), starts, ends)


def _backslashes(*tokens: str, as_bytes: bool = False) -> _Step:
    pattern = re.compile("|".join((*tokens, _SLASHES)))
    return _Step("\\", pattern, lambda match: _escape(match, as_bytes=as_bytes))


#: Escapes of URLs, also several times over, and of HTML.
_OUTER: Final = (
    _Step(
        "%",
        re.compile(r"(?:%(?:25)*[0-9a-fA-F]{2})+|\+"),
        lambda found: _unquoted(found[0]),
    ),
    _Step(
        "&",
        re.compile(r"&(?:amp;)*(?:#(\d{1,7})|#[xX]([0-9a-fA-F]{1,6})|(amp|apos|gt|lt|quot));"),
        _reference,
    ),
)
#: A backslash before `n` is a line's end, or that of a path before a name; `\xe9` is a character or a byte.
_INNER: Final = (
    _backslashes(_LETTERS, _CODES),
    _backslashes(_LETTERS, _CODES, as_bytes=True),
    _backslashes(_CODES),
    _backslashes(_CODES, as_bytes=True),
    _backslashes(_LETTERS),
    _backslashes(),
)
_SPACED: Final = _Step("", _SPACES, lambda found: " ")

#: Steps that read a text one after another. A value is in a text if both are the same, read in one way.
_Mode = tuple[_Step, ...]


def _modes(text: str) -> Iterator[_Mode]:
    """Yield the ways to read a text that can differ."""
    url, html = _OUTER
    outers: list[_Mode] = [()]
    outers += [(url,), (url, html)] if url.mark in text else []
    outers += [(html,)] if html.mark in text else []
    for outer in outers:
        # What was escaped can have backslashes.
        yield from ((*outer, inner) for inner in (_INNER if outer or "\\" in text else _INNER[-1:]))


def _read(text: str, mode: _Mode) -> _Read:
    read = _Read(text, range(len(text)), range(1, len(text) + 1))
    for step in (*mode, _SPACED):
        read = step.read(read)
    return _folded(read)


def _read_text(text: str, mode: _Mode) -> str:
    """Return a text as it is read; where it comes from takes ten times as long."""
    for step in mode:
        text = step.token.sub(step.meaning, text)
    if "|" in text:
        return _SPACES.sub(" ", text).casefold()
    # The same, more quickly.
    head, tail = " " * text[:1].isspace(), " " * (text[-1:].isspace() and not text.isspace())
    return f"{head}{' '.join(text.split())}{tail}".casefold()


def _folded(read: _Read) -> _Read:
    """Return a text without case."""
    folded = read.text.casefold()
    if len(folded) == len(read.text):
        return read._replace(text=folded)
    # One character can become two or three.
    widths = [len(one.casefold()) for one in read.text]
    repeat = itertools.chain.from_iterable
    starts = list(repeat([at] * width for at, width in zip(read.starts, widths, strict=True)))
    ends = list(repeat([at] * width for at, width in zip(read.ends, widths, strict=True)))
    return _Read(folded, starts, ends)


class _Index:
    """Values as a mode reads them, to be found in texts."""

    def __init__(self, values: Iterable[str], mode: _Mode) -> None:
        read = {_read_text(value, mode).strip() for value in values} - {""}
        self._values = sorted(read, key=len, reverse=True)
        self._long = [one for one in self._values if len(one) >= PART]
        self._blocks: dict[str, list[tuple[str, int]]] = {}
        for value in self._long:
            for at in range(0, len(value) - _BLOCK + 1, _BLOCK):
                places = self._blocks.setdefault(value[at : at + _BLOCK], [])
                if len(places) < _MOST_PLACES:
                    places.append((value, at))

    def spans(self, text: str, *, cut_before: bool, cut_after: bool) -> Iterator[tuple[int, int]]:
        """Yield where values are in a text, and where it begins or ends within one."""
        for value in self._values:
            at = text.find(value)
            while at >= 0:
                end = at + len(value)
                whole = len(value) >= _SHORT or not (
                    _is_word(text[at - 1 : at]) or _is_word(text[end : end + 1])
                )
                if whole:
                    yield at, end
                at = text.find(value, end if whole else at + 1)
        if cut_after:
            yield from ((at, len(text)) for at in _cut_off(text, self._values))
        if cut_before:
            backwards = [value[::-1] for value in self._values]
            yield from ((0, len(text) - at) for at in _cut_off(text[::-1], backwards))
        if self._blocks:
            yield from self._parts(text)

    def _parts(self, text: str) -> Iterator[tuple[int, int]]:
        reached = 0
        for at in range(len(text) - _BLOCK + 1):
            if at < reached:
                continue
            for value, place in self._blocks.get(text[at : at + _BLOCK], ()):
                first, last = at, at + _BLOCK
                begin, end = place, place + _BLOCK
                while first and begin and text[first - 1] == value[begin - 1]:
                    first, begin = first - 1, begin - 1
                while last < len(text) and end < len(value) and text[last] == value[end]:
                    last, end = last + 1, end + 1
                if last - first >= PART:
                    yield first, last
                    reached = max(reached, last - _BLOCK + 1)


def _cut_off(text: str, values: Iterable[str]) -> Iterator[int]:
    """Yield where values begin that go on behind the end of a text, which may end with half an escape."""
    for value in values:
        at = (
            text.find(value[:_SHORT], max(0, len(text) - len(value) - _BROKEN)) if len(value) > _SHORT else -1
        )
        while at >= 0:
            longest = range(len(text) - at, max(_SHORT, len(text) - at - _BROKEN) - 1, -1)
            if any(value.startswith(text[at : at + length]) for length in longest):
                yield at
                break
            at = text.find(value[:_SHORT], at + 1)


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"


class Spellings:
    """Values, however programs print them."""

    def __init__(self, values: Iterable[str]) -> None:
        self._values = sorted({value for value in values if value.strip()})
        marks = [step.mark for step in (*_OUTER, *_INNER)] + ["+"]
        #: Whether values are the same in all modes.
        self._plain = not any(mark in value for value in self._values for mark in marks)
        self._known: dict[_Mode, _Index] = {}

    def _index(self, mode: _Mode) -> _Index:
        key = () if self._plain else mode
        if key not in self._known:
            self._known[key] = _Index(self._values, key)
        return self._known[key]

    def without(self, text: str, instead: str) -> str:
        """Return a text with something else in place of each value."""
        out: list[str] = []
        at, cuts = 0, [match.span() for match in _CUT.finditer(text)]
        for number, (start, end) in enumerate([*cuts, (len(text), len(text))]):
            out.append(self._piece(text[at:start], instead, number > 0, number < len(cuts)))
            out.append(text[start:end])
            at = end
        return "".join(out)

    def _piece(self, text: str, instead: str, cut_before: bool, cut_after: bool) -> str:
        spans = [
            match.span()
            for value in self._values
            # No mode keeps backslashes.
            if not value.strip("\\")
            for match in re.finditer(rf"\\{{{len(value)},}}", text)
        ]
        seen: set[tuple[str, int]] = set()
        for mode in _modes(text):
            as_read = _read_text(text, mode)
            index = self._index(mode)
            if (as_read, id(index)) in seen:
                continue
            seen.add((as_read, id(index)))
            places = index.spans(as_read, cut_before=cut_before, cut_after=cut_after)
            if (first := next(places, None)) is not None:
                read = _read(text, mode)
                spans += [(read.starts[at], read.ends[end - 1]) for at, end in (first, *places)]
        return _replaced(text, spans, instead)


def _replaced(text: str, spans: Iterable[tuple[int, int]], instead: str) -> str:
    """Return a text with something else in place of each span; those that overlap are one."""
    out: list[str] = []
    at = 0
    for start, end in sorted(spans):
        if not out or start >= at:
            out += (text[at:start], instead)
        at = max(at, end)
    return "".join([*out, text[at:]])
