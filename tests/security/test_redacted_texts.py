"""Values that are redacted, in texts of errors: none comes out, in whatever form a program prints it."""

from __future__ import annotations

import html
import json
import traceback
import urllib.parse
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lazaretto.model.edits.redact import MASK, Found, Redaction
from lazaretto.model.failure import LONGEST_TEXT, shorten
from lazaretto.model.headers import Headers
from lazaretto.model.redaction import checked_rule


def _raised(text: str) -> str:
    try:
        try:
            raise KeyError(text)
        except KeyError as error:
            raise ExceptionGroup("two", [ValueError(text), error]) from error
    except ExceptionGroup as group:
        return "".join(traceback.format_exception(group))


#: How programs print a text. Each can print what another has printed.
FORMS: dict[str, Callable[[str], str]] = {
    "str": str,
    "repr": repr,
    "ascii": ascii,
    "bytes": lambda text: repr(text.encode("utf-8", "surrogatepass")),
    "latin": lambda text: repr(text.encode("latin-1", "backslashreplace")),
    "json": json.dumps,
    "json in UTF-8": lambda text: json.dumps(text, ensure_ascii=False),
    "names": lambda text: text.encode("ascii", "namereplace").decode(),
    "a dict": lambda text: repr({"got": [text, 1]}),
    "HTML": lambda text: html.escape(text).encode("ascii", "xmlcharrefreplace").decode(),
    "a query": lambda text: urllib.parse.urlencode({"q": text.encode("utf-8", "surrogatepass")}),
    "a stack": _raised,
}


#: What makes a text hard to recognise, however it is printed.
WORDS = [
    "Zürich",
    "'q",
    '"',
    "\\x41",
    "\\n",
    "O'Neil",
    "日本語",
    "😀",
    "Ω\té\n%41",
    "&",
    "&amp;",
    "{x:1}",
    "/",
    "9",
]


def _left(body: object, text: str, field: str = "body.secret") -> str:
    rules, found = Redaction([checked_rule("*", field, "mask")], b"k" * 32), Found()
    rules.body(json.dumps(body).encode(), found)
    return (rules.text(text, found) or "").replace(MASK, "")


def _refuse_leak(value: str, left: str) -> None:
    readable = "".join(one for one in value if one.isalnum()).lower()
    for at in range(len(readable) - 5):
        assert readable[at : at + 6] not in left.lower(), left


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=5).map(" ".join)
    | st.text(min_size=1, max_size=40),
    st.lists(st.sampled_from(sorted(FORMS)), min_size=1, max_size=3),
    st.sampled_from(["", "C:\\", "x\n", "it's ", '"', "é"]),
    st.sampled_from([str, str.upper]),
)  # fmt: skip
@example("new", ["repr", "json"], "C:\\", str)
@example("O'Neil é", ["bytes", "json", "repr"], 'say "', str)
def test_no_text_comes_out_in_any_form(
    value: str, forms: list[str], before: str, case: Callable[[str], str]
) -> None:
    secret = f"Geheim{value}Quatsch"
    text = before + (secret if "\\" in secret else case(secret))
    for form in forms:
        text = FORMS[form](text)
    _refuse_leak(secret, _left({"secret": secret}, f"refused: {text}, done"))
    _refuse_leak(secret, _left({"secret": {secret: [0]}}, f"refused: {text}, done"))
    _refuse_leak(secret, _left({"secret": json.dumps([{"a": secret}])}, f"refused: {text}, done"))


@pytest.mark.parametrize(
    ("number", "texts"),
    [
        ("1234.50", ["1234.5", "1,234.50", "Decimal('1234.50')", "1234.50 EUR"]),
        ("1E3", ["1000.0", "1000", "1,000", "1E+3"]),
        ("41111111", ["41111111", "41,111,111", "41111111.0"]),
    ],
)
def test_no_number_comes_out(number: str, texts: list[str]) -> None:
    rules, found = Redaction([checked_rule("*", "body.secret", "mask")], b"k" * 32), Found()
    rules.body(f'{{"secret": {number}}}'.encode(), found)
    for text in texts:
        left = rules.text(f"sum {text} refused", found) or ""
        assert not any(one.isdigit() for one in left), left


@pytest.mark.parametrize("value", ["Zürich bei Nacht", b"caf\xc3\xa9 noir", b"\xff\xfe\xfd\xfc", 12345.5])
def test_no_property_comes_out(value: Any) -> None:
    rules, found = Redaction([checked_rule("*", "user.secret", "mask")], b"k" * 32), Found()
    rules.headers(Headers(properties={"secret": value}), found)
    for text in (repr(value), ascii(value), str(value), json.dumps(str(value))):
        left = (rules.text(f"({text}; {text})", found) or "").replace(MASK, "")
        assert sum(one.isalnum() for one in left) <= 2, left


def test_parts_of_what_was_cut_do_not_come_out() -> None:
    """Python cuts what it prints after 200 characters, and a long text is kept without its middle."""
    secret = "".join(f"<{n}-é>" for n in range(100))
    with pytest.raises(ValueError, match="invalid literal") as raised:
        int(secret)
    assert "<7-" not in _left({"secret": secret}, str(raised.value))
    for gap in range(12):
        for form in ("str", "ascii", "bytes"):
            room = (LONGEST_TEXT - 40) // 2 - gap
            text = shorten("." * room + FORMS[form]("Geheimé" * 3) + "." * 2 * room, LONGEST_TEXT)
            assert "left out" in text
            assert "Gehei" not in _left({"secret": "Geheimé" * 3}, text), (gap, form)


def test_short_values_are_redacted_where_they_are_words() -> None:
    assert _left({"secret": 7}, "pin 7 of 70") == "pin  of 70"
    assert _left({"secret": 7}, repr("pin\n7")) == "'pin\\n'"
    assert _left({"secret": {"pin": True}}, "no pin, no spin") == "no , no spin"
