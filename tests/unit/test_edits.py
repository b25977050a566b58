"""Edits change what they name and nothing else, to the last digit and space."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lazaretto.errors import FilterSyntaxError, InvalidOption
from lazaretto.model.edits.difference import differences
from lazaretto.model.edits.edit import Changed, Edit, EditKind, Refused, Unchanged, whole_body
from lazaretto.model.edits.json_text import put, remove
from lazaretto.model.edits.patches import merge, read_merge
from lazaretto.model.filters.sql import compile_action
from lazaretto.model.headers import Headers, encode_headers
from lazaretto.model.messages import PeekedMessage

BODY = (
    b'{ "price": 1.10,"big": 123456789012345678901234567890, "name":"\\u00e9 \xc3\xa9", "items": [1.0, 2e3] }'
)


def letter(body: bytes = BODY, **headers: object) -> PeekedMessage:
    return PeekedMessage(
        key=7, body=body, message_id="m", enqueued=0, expires=None,
        encoded_headers=encode_headers(Headers(**headers)), body_id=None, deliveries=1, delivery_count=1,  # type: ignore[arg-type]
        cycle=0, generation=0, enqueued_sequence_number=None, recorded_reason=None, recorded_description=None,
    )  # fmt: skip


def body_after(edit: str, body: bytes = BODY) -> bytes:
    found = Edit.parse(edit).apply(letter(body))
    assert isinstance(found, Changed), found
    return found.message.body


@pytest.mark.parametrize(
    ("edit", "old", "new"),
    [
        ("SET body.region = 'eu'", b"2e3] }", b'2e3], "region": "eu" }'),
        ("SET body.region.of.x = 2", b"2e3] }", b'2e3], "region": {"of": {"x": 2}} }'),
        ("SET body.price = 2", b"1.10", b"2"),
        ("SET body.other = body.price", b"2e3] }", b'2e3], "other": 1.10 }'),
        ("SET body.items[1] = TRUE", b"2e3", b"true"),
        ("REMOVE body.price", b'"price": 1.10,', b""),
        ("REMOVE body.items", b', "items": [1.0, 2e3]', b""),
        ("REMOVE body.items[0]", b"1.0, ", b""),
        ('{"price": 2.50, "items": null}', None, None),
        ('[{"op": "add", "path": "/items/-", "value": 3.00}]', b"2e3]", b"2e3, 3.00]"),
        ('[{"op": "add", "path": "/items/0", "value": 3.00}]', b"[1.0", b"[3.00, 1.0"),
        ('[{"op": "test", "path": "/price", "value": 1.1}, {"op": "remove", "path": "/items/0"}]', b"1.0, ", b""),  # noqa: E501
        ('[{"op": "copy", "from": "/price", "path": "/items/0"}]', b"[1.0", b"[1.10, 1.0"),
    ],
)  # fmt: skip
def test_only_what_is_named_changes(edit: str, old: bytes | None, new: bytes) -> None:
    if old is None:
        expected = b'{ "price": 2.50,"big": 123456789012345678901234567890, "name":"\\u00e9 \xc3\xa9" }'
    else:
        expected = BODY.replace(old, new, 1).replace(b"{  ", b"{ ").replace(b'{  "', b'{ "')
    assert body_after(edit) == expected


def test_move_takes_the_text_along() -> None:
    assert body_after('[{"op": "move", "from": "/a/x", "path": "/b"}]', b'{"a":{"x": 1.10},"n":0}') == (
        b'{"a":{},"n":0,"b":1.10}'
    )


def test_lines_stay_lines() -> None:
    assert body_after("SET body.b = 2", b'{\n  "a": 1\n}') == b'{\n  "a": 1,\n  "b": 2\n}'


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        ("SET body.price.of = 1", "body.price is a number, not an object"),
        ("SET body.a = body.b", "body.b is not there"),
        ("SET body.a = body.b + 1", "unknown"),
        ("SET body.items[7] = 1", "has 2 elements"),
        ("SET body.a = 1e308 * 10", "no number"),
        ('[{"op": "test", "path": "/price", "value": 2}]', "/price is 1.10, not 2"),
        ('[{"op": "test", "path": "/price", "value": true}]', "/price is 1.10, not true"),
        ('[{"op": "remove", "path": "/none"}]', "/none is not there"),
        ('[{"op": "replace", "path": "/items/01", "value": 1}]', "/items/01 is not there"),
        ('[{"op": "add", "path": "/items/9", "value": 1}]', "not a position in an array of 2"),
    ],
)
def test_what_does_not_fit_is_refused(edit: str, why: str) -> None:
    found = Edit.parse(edit).apply(letter())
    assert isinstance(found, Refused)
    assert why in found.why


@pytest.mark.parametrize("body", [b"", b"x", b"\xff", b"NaN", b'{"a":1,}', b"[" * 100_000])
@pytest.mark.parametrize("edit", ["SET body.a = 1", '{"a": 1}', '[{"op": "add", "path": "/a", "value": 1}]'])
def test_a_body_that_is_no_json_is_refused(body: bytes, edit: str) -> None:
    assert isinstance(Edit.parse(edit).apply(letter(body)), Refused)


def test_a_patch_is_all_or_nothing() -> None:
    edit = '[{"op": "remove", "path": "/price"}, {"op": "test", "path": "/big", "value": 1}]'
    assert isinstance(Edit.parse(edit).apply(letter()), Refused)


@pytest.mark.parametrize(
    "edit", ["SET body.price = body.price", '{"price": 1.1, "none": null}', "REMOVE body.none", "REMOVE none"]
)
def test_no_change_is_told_apart(edit: str) -> None:
    assert Edit.parse(edit).apply(letter()) == Unchanged()


def test_properties_change_with_the_body() -> None:
    edit = "SET fixed = TRUE; SET body.n = 1; SET m = body.n + 1; REMOVE sys.SessionId; REMOVE Old; SET sys.Label = 's'"  # noqa: E501
    found = Edit.parse(edit).apply(letter(b"{}", session_id="s1", properties={"old": 1, "kept": 2}))
    assert isinstance(found, Changed)
    message = found.message
    assert message.properties == {"kept": 2, "fixed": True, "m": 2}
    assert (message.session_id, message.subject, message.body) == (None, "s", b'{"n": 1}')


def test_double_keys_do_not_hide_each_other() -> None:
    body = b'{"a": 1, "b": 0, "a": 2}'
    assert body_after("SET body.a = 3", body) == b'{"a": 1, "b": 0, "a": 3}'
    assert body_after("REMOVE body.a", body) == b'{"b": 0}'


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (' {"a": 1}', EditKind.MERGE_PATCH),
        ('[{"op": "remove", "path": "/a"}]', EditKind.JSON_PATCH),
        ("shop.fixes:mend", EditKind.FUNCTION),
        ("SET body.a = 1", EditKind.ACTION),
    ],
)
def test_the_text_says_its_kind(text: str, kind: EditKind) -> None:
    edit = Edit.parse(text)
    assert edit.kind is kind
    assert edit.digest == Edit.parse(text).digest != Edit.parse(text + " ").digest
    assert edit.describe().startswith(kind.value)


@pytest.mark.parametrize(
    "text",
    [
        "", "  ", None, b"{}", 7, "{", "[1]", '[{"op": "sing", "path": ""}]', '[{"op": "add", "path": "a", "value": 1}]',  # noqa: E501
        '[{"op": "add", "path": "/a"}]', '[{"op": "move", "from": "/a", "path": "/a/b"}]', "[]", '{"a": NaN}',
        "\ud800", '{"a":' * 200 + "1" + "}" * 200,
    ],
)  # fmt: skip
def test_wrong_edits_are_refused(text: object) -> None:
    with pytest.raises(InvalidOption):
        Edit.parse(text)


def test_wrong_actions_are_refused() -> None:
    for text in ("SET body.a", "REMOVE sys.EnqueuedTime", "REMOVE sys.MessageId", "SET a = 1 b"):
        with pytest.raises(FilterSyntaxError):
            Edit.parse(text)
    # Rules of topics still leave bodies alone.
    with pytest.raises(FilterSyntaxError):
        compile_action("SET body.a = 1")


def test_the_differences_are_told() -> None:
    found = Edit.parse("SET body.price = 2; REMOVE body.items; SET kind = 'x'; SET sys.Label = 'l'").apply(
        letter()
    )
    assert isinstance(found, Changed)
    assert differences(letter(), found.message) == [
        "+ subject: l", "+ property kind: x", "- body.price: 1.10", "+ body.price: 2", "- body.items: [1.0, 2e3]",  # noqa: E501
    ]  # fmt: skip
    assert len(differences(letter(), found.message, limit=2)) == 3


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def merged(target: object, patch: object) -> object:
    """Merge as RFC 7396 writes it down."""
    if not isinstance(patch, dict):
        return patch
    target = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        else:
            target[key] = merged(target.get(key), value)
    return target


@given(JSON, JSON, st.sampled_from([None, 2]), st.booleans())
def test_merging_text_is_merging_values(
    target: object, patch: object, indent: int | None, plain: bool
) -> None:
    text = json.dumps(target, indent=indent, ensure_ascii=plain)
    assert json.loads(merge(text, read_merge(json.dumps(patch)))) == merged(target, patch)


@given(
    st.dictionaries(st.text(max_size=3), JSON, max_size=4),
    st.text(max_size=3),
    JSON,
    st.sampled_from([None, 1]),
)
def test_putting_and_removing_undo_each_other(
    target: dict[str, object], key: str, value: object, indent: int | None
) -> None:
    text = json.dumps(target, indent=indent)
    with_it = put(text, (key,), json.dumps(value))
    assert json.loads(with_it) == {**target, key: value}
    without = {k: v for k, v in target.items() if k != key}
    assert json.loads(remove(with_it, (key,))) == without
    if key not in target and target:
        assert remove(with_it, (key,)) == text


def test_an_edit_can_be_kept() -> None:
    edit = Edit.parse("SET body.a = 1")
    assert msgspec.json.decode(msgspec.json.encode(edit), type=Edit) == edit


@pytest.mark.parametrize(
    "body", [b"", b"it's\na text", "\u00e9\U0001f98a".encode(), b"a\r\nb", b"\x00\xff", b"data:;base64,"]
)
def test_a_whole_body_is_replaced_exactly(body: bytes) -> None:
    assert body_after(whole_body(body), b"poison \xff") == body


def test_body_alone_is_the_whole_body() -> None:
    assert body_after("SET body = 'x'; SET body = 'y''z'") == b"y'z"
    assert body_after("SET body = body.items") == b"[1.0, 2e3]"
    found = Edit.parse("SET user.body = 'x'; SET [body] = 'y'").apply(letter())
    assert isinstance(found, Changed)
    assert (found.message.body, found.message.properties) == (BODY, {"body": "y"})
    assert isinstance(Edit.parse("SET body = 3").apply(letter()), Refused)
    for wrong in ("REMOVE body", "data:;base64,!!"):
        with pytest.raises((FilterSyntaxError, InvalidOption), match="body"):
            Edit.parse(wrong)
