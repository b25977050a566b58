"""The shape of a text: its words, with a hole for each value; and which shapes are one template."""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Mapping

#: Stands for a value.
HOLE = "\u2731"
#: Before a word that is a value only beside another one: a day, a month.
_WHEN = "\u2732"
#: How much of a text is looked at, and how much of a shape is kept, in characters.
_LONGEST_TEXT = 4096
LONGEST_SHAPE = 500
#: Pieces whose value is remembered; long ones, and those with values, are not.
_MOST_KNOWN, _LONGEST_KNOWN = 4096, 40

_PIECES = re.compile(r"=*[^\s()\[\]{}<>,;=\"'|]+|[\s()\[\]{}<>,;=\"'|]+").findall
_DIGIT = re.compile(r"\d").search
_TIMES = frozenset(
    [
        "Mon",
        "Tue",
        "Wed",
        "Thu",
        "Fri",
        "Sat",
        "Sun",
        "Jan",
        "Feb",
        "Mar",
        "Apr",
        "May",
        "Jun",
        "Jul",
        "Aug",
        "Sep",
        "Oct",
        "Nov",
        "Dec",
    ]
)
_HOST = re.compile(
    r"(?:[a-z][a-z-]*\.){2,}"
    r"(?:[a-z]{2}|com|net|org|edu|gov|mil|info|int|dev|app|cloud|local|internal|lan|svc|test)(?::.*)?[.:]?\Z",
    re.DOTALL,
).match
_HEX = re.compile(r"(?:[a-f]{8,}|[A-F]{8,})\Z").match
_MAIL = re.compile(r"[^@]+@[^@]+\.[^@.]+\Z", re.DOTALL).match
_CONSTANTS = frozenset(
    ["true", "false", "null", "none", "nil", "True", "False", "None", "NULL", "TRUE", "FALSE"]
)
_UNIT = r"(?: ?(?:[KMGT]i?B|B|bytes|ms|us|ns|s|secs?|seconds)\b)?"
_ONE = rf"(?:{_WHEN}\w+[ ,]{{0,2}}){{0,3}}{HOLE}{_UNIT}"
_RUN = re.compile(rf"{_ONE}(?:[\s,;:/.+|=-]{{0,8}}{_ONE}|\s?\({_ONE}\))*").sub
_SPACES = re.compile(r"\s\s+|[\t\n\r]").sub
_WORD = re.compile(r"[A-Za-z_][\w$.-]*|[^\s]")
_WORDS = _WORD.findall


def _hole_of(piece: str, head: str = "") -> str:
    """Return a hole with what stands before it, and with one of the marks that end the piece."""
    marks = len(piece) - len(piece.rstrip(".:!?"))
    return head + HOLE + (piece[-marks] if marks else "")


def _value(piece: str) -> str:
    """Return what stands in a shape for a piece of a text."""
    if piece[0] == "=":
        word = piece.lstrip("=")
        return piece[: len(piece) - len(word)] + HOLE if word else piece
    digit = _DIGIT(piece)
    if digit is not None:
        head = piece[: piece.rfind(":", 0, digit.start()) + 1]
        named = head and head[0].isalpha() and "/" not in head and "." not in head
        return _hole_of(piece, head if named else "")
    if piece[:3] in _TIMES and len(piece) < 11:
        return _WHEN + piece
    head, colon, tail = piece.rpartition(":")
    if colon and tail in _CONSTANTS:
        return f"{head}:{HOLE}"
    if (
        (piece[0] in "/\\~" and len(piece) > 2)
        or piece.count("/") > 1
        or piece.count("\\") > 1
        or "://" in piece
        or ("@" in piece and _MAIL(piece))
        or (piece.count(".") > 1 and _HOST(piece))
        or _HEX(piece)
    ):
        return _hole_of(piece)
    return piece


class _Pieces(dict[str, str]):
    """Replacements of pieces; words that come again and again are looked up."""

    def __missing__(self, piece: str) -> str:
        value = piece if piece[0] in " \t\n" else _value(piece)
        if len(self) < _MOST_KNOWN and HOLE not in value and len(piece) < _LONGEST_KNOWN:
            self[piece] = value
        return value


_PIECE = _Pieces().__getitem__


@functools.lru_cache(64)
def shape(text: str) -> str:
    """Return a text's words with a hole for each value: numbers, ids, times, paths, addresses.

    A pure function, linear in the text, of which the first 4,096 characters count. The shape has at most
    500 characters.
    """
    # These two have a meaning here, wherever a text has them from.
    text = text[:_LONGEST_TEXT].replace(_WHEN, HOLE)
    text_ = _RUN(HOLE, "".join(map(_PIECE, _PIECES(text)))).replace(_WHEN, "")
    return _SPACES(" ", text_).strip()[:LONGEST_SHAPE]


def _is_word(token: str) -> bool:
    return token[0].isalpha() or token[0] == "_"


#: A template with a hole at a place, and that place: what stands around it.
_Around = tuple[tuple[str, ...], int]


def _open_places(rows: Mapping[tuple[str, ...], int]) -> set[_Around]:
    """Return where a word may be any word: many different ones were seen there, or a hole."""
    around: dict[_Around, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for template, count in rows.items():
        for place, word in enumerate(template):
            if _is_word(word) or word == HOLE:
                around[(*template[:place], HOLE, *template[place + 1 :]), place][word] += count
    places = set()
    for (context, place), words in around.items():
        constants = sum(map(_is_word, context))
        if len(words) < 2 or not constants:
            continue
        if HOLE in words:
            is_open = constants >= 2
        else:
            # Good-Turing: if many words were seen only once, the next one may be new as well.
            once = sum(count == 1 for count in words.values())
            enough = len(words) >= (4 if constants >= 2 else 10)
            is_open = enough and (once >= 0.3 * len(words) or len(words) >= 6)
        if is_open:
            places.add((context, place))
    return places


def templates(counts: Mapping[str, int], rounds: int = 4) -> dict[str, str]:
    """Return the template of each shape: where shapes differ in one open word, that word is a hole too.

    `counts`: how many texts have each shape. A pure function; the order plays no role.
    """
    words = {shape: tuple(_WORDS(shape)) for shape in counts}
    for _ in range(rounds):
        rows: dict[tuple[str, ...], int] = defaultdict(int)
        for shape_, template in words.items():
            rows[template] += counts[shape_]
        places = _open_places(rows)
        again = {
            shape_: tuple(
                HOLE
                if _is_word(word)
                and places
                and ((*template[:place], HOLE, *template[place + 1 :]), place) in places
                else word
                for place, word in enumerate(template)
            )
            for shape_, template in words.items()
        }
        if again == words:
            break
        words = again
    # A shape that shares its template with no other one stays as it reads.
    alike: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for shape_, template in words.items():
        alike[template].append(shape_)
    return {
        shape_: shapes[0] if len(shapes) == 1 else " ".join(template)
        for template, shapes in alike.items()
        for shape_ in shapes
    }


_LITERAL = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|\u2731""")
_NO_WORDS = re.compile(r"[\s()\[\]{},:]*").fullmatch


def is_value(shape: str) -> bool:
    """Return whether a text is a value and nothing else, such as the key of a KeyError."""
    rest, literals = _LITERAL.subn("", shape)
    return literals > 0 and _NO_WORDS(rest) is not None


def covers(template: str, shape: str) -> bool:
    """Return whether a template is that of a shape: whether it has the same words, but for its holes."""
    words, others = _WORDS(template), _WORDS(shape)
    return len(words) == len(others) and all(
        word in (HOLE, other) for word, other in zip(words, others, strict=True)
    )


def words_in(shape: str, text: str) -> str:
    """Return a shape without the words that a text does not have: a hole instead of each.

    A value of which a part was a hole in the shape is not found there as it is.
    """
    vocabulary = {HOLE, *_WORDS(text)}
    return re.sub(
        _WORD, lambda match: match[0] if match[0] in vocabulary or not _is_word(match[0]) else HOLE, shape
    )
