"""What is taken out of bodies, properties and texts, and which filters and edits name it."""

from __future__ import annotations

import json
import uuid

import pytest

from lazaretto.engine import queue_admission
from lazaretto.engine.dialogs import conversation_ends
from lazaretto.engine.outcome import dispositions
from lazaretto.errors import InvalidOption
from lazaretto.model.edits.named_fields import edit_names, filter_names
from lazaretto.model.edits.redact import MASK, Found, Redaction
from lazaretto.model.failure import HANDLER_TIMEOUT, OUT_OF_MEMORY, WORKER_CRASHED
from lazaretto.model.headers import Headers, encode_headers
from lazaretto.model.messages import Message, StoredMessage
from lazaretto.model.redaction import OWN_REASONS, Form, checked_rule, rules_for

CARD = '{"id": 1.10, "card": {"number": "4111 1111", "cvc": 123}, "ok": true}'


def redaction(*fields: str, form: str = "mask", key: bytes = b"k" * 32) -> Redaction:
    return Redaction([checked_rule("*", field, form) for field in fields], key)


@pytest.mark.parametrize(
    ("fields", "form", "body", "left"),
    [
        ("body.card.number", "mask", CARD, CARD.replace("4111 1111", MASK)),
        ("body.card.number", "drop", CARD, '{"id": 1.10, "card": {"cvc": 123}, "ok": true}'),
        ("body.card", "mask", CARD, f'{{"id": 1.10, "card": "{MASK}", "ok": true}}'),
        ("body.card", "drop", CARD, '{"id": 1.10, "ok": true}'),
        ("body..CVC", "mask", CARD, CARD.replace("123", f'"{MASK}"')),
        ("body.CARD.Number", "mask", CARD, CARD.replace("4111 1111", MASK)),
        ("body.card.gone", "mask", CARD, CARD),
        ("body.id.number", "drop", CARD, CARD),
        ("body", "mask", CARD, f'"{MASK}"'),
        ("body", "drop", CARD, ""),
        ("body.a", "drop", '{"a":1,"a":2}', "{}"),
        ("body.a", "drop", '{"b":0,"a":1}', '{"b":0}'),
        ("body.a", "drop", '{ "a" : 1, "b" : [ ] }', '{ "b" : [ ] }'),
        ("body.a", "mask", '{"a":1,"\\u0061":2}', f'{{"a":"{MASK}","\\u0061":"{MASK}"}}'),
        ("body.a", "drop", '[{"a":1,"b":2},{"a":3},4]', '[{"b":2},{},4]'),
        ("body.a.b", "mask", '{"a":[{"b":1},{"b":[2]}]}', f'{{"a":[{{"b":"{MASK}"}},{{"b":"{MASK}"}}]}}'),
        ("body..b", "mask", '[[{"x":{"b":{"b":1}}}]]', f'[[{{"x":{{"b":"{MASK}"}}}}]]'),
        ('body."a.b"', "mask", '{"a.b":1,"a":{"b":2}}', f'{{"a.b":"{MASK}","a":{{"b":2}}}}'),
        ("body.[a.b]", "mask", '{"a.b":1}', f'{{"a.b":"{MASK}"}}'),
        ("body.a..b", "mask", '{"b":1,"a":{"c":{"b":2}}}', f'{{"b":1,"a":{{"c":{{"b":"{MASK}"}}}}}}'),
        # What is no JSON cannot be looked into.
        ("body.card", "mask", "card=4111", MASK),
        ("body.card", "drop", "card=4111", ""),
        ("body.card", "mask", '{"card": NaN}', MASK),
        ("body.card", "mask", '\ufeff{"card": 1}', MASK),
        ("body.card", "mask", "[" * 100_000, MASK),
        ("user.card", "mask", "card=4111", "card=4111"),
        ("body.card", "mask", "", ""),
    ],
)  # fmt: skip
def test_bodies(fields: str, form: str, body: str, left: str) -> None:
    assert redaction(fields, form=form).body(body.encode()).decode() == left


def test_bodies_in_other_encodings_are_redacted_whole() -> None:
    """JSON is UTF-8: what a lenient parser would read in another encoding is not shown."""
    for encoding in ("utf-16", "utf-32", "utf-16-le"):
        assert redaction("body.card").body(CARD.encode(encoding)) == MASK.encode()
    long = json.dumps({"card": 1, "text": "x" * (1 << 20)}).encode()
    assert redaction("body.card").body(long) == MASK.encode()


def test_deep_bodies() -> None:
    """A field that is deeper than is looked is not shown, with what holds it."""
    deep = '{"a":' * 70 + '{"card":"4111"}' + "}" * 70
    assert "4111" not in redaction("body..card").body(deep.encode()).decode()
    found = Found()
    assert "4111" not in redaction("body.a").body(deep.encode(), found).decode()
    assert found.all


def test_hashes_tell_equal_values_and_nothing_else() -> None:
    hashing = redaction("body.card", "user.card", form="hash")
    one, same, other = (hashing.body(f'{{"card":{v}}}'.encode()) for v in ('"A1"', '"\\u00411"', '"A2"'))
    assert one == same != other
    assert "A1" not in one.decode()
    assert redaction("body.card", form="hash", key=b"x" * 32).body(b'{"card":"A1"}') != one
    properties = hashing.headers(Headers(properties={"Card": "A1"})).properties
    assert json.loads(one)["card"] == properties["Card"]


def test_several_forms() -> None:
    """Where two rules name one field, less is shown."""
    rules = [checked_rule("*", "body.a", form) for form in ("drop", "hash", "mask")]
    assert Redaction(rules, b"k").body(b'{"a":1}') == b"{}"
    rules = [checked_rule("*", "body.a", "hash"), checked_rule("*", "body..A", "mask")]
    assert Redaction(rules, b"k").body(b'{"a":1}') == f'{{"a":"{MASK}"}}'.encode()


def test_properties() -> None:
    given = {"Card": "4111", "raw": b"\xff", "id": uuid.UUID(int=1), "n": 5, "none": None, "left": "L"}
    found = Found()
    headers = Headers(subject="s", properties=given)
    left = redaction("user.card", "user.raw", "user.id", "user.none").headers(headers, found)
    assert left.properties == {"Card": MASK, "raw": MASK, "id": MASK, "n": 5, "none": MASK, "left": "L"}
    assert left.subject == "s"
    assert found.values == ["4111", "\ufffd", str(uuid.UUID(int=1))]
    assert redaction("user", form="drop").headers(headers).properties == {}
    assert headers.properties == given


@pytest.mark.parametrize(
    ("field", "body", "text", "left"),
    [
        ("body.card", '{"card": "4111"}', "card 4111 refused", f"card {MASK} refused"),
        ("body.card", '{"card": "4111"}', "card 41112 refused", f"card {MASK}2 refused"),
        ("body.pin", '{"pin": 7}', "pin 7 of 70", f"pin {MASK} of 70"),
        ("body.name", '{"name": "O\'Neil \\"x\\""}', """KeyError: 'O\\'Neil "x"'""", f"KeyError: '{MASK}'"),
        ("body.name", '{"name": "a\\nb\\u00e9"}', "got 'a\\nb\u00e9'", f"got '{MASK}'"),
        ("body.name", '{"name": "a\\nb\\u00e9"}', '{"name": "a\\nb\\u00e9"}', f'{{"name": "{MASK}"}}'),
        ("body.card", '{"card": {"a": "first", "b": ["second"]}}', "first, second", f"{MASK}, {MASK}"),
        ("body.card", '{"card": true}', "got true", "got true"),
        # As Python's errors print it.
        ("body.sum", '{"sum": 1234.50}', "refused 1234.5, not 1234.50", f"refused {MASK}, not {MASK}"),
        ("body.sum", '{"sum": [1E3]}', "refused 1000.0", f"refused {MASK}"),
        ("error", '{"card": "4111"}', "anything", MASK),
        # The whole body is hidden, so any text may be a part of it.
        ("body.card", "no json", "anything", MASK),
        ("user.card", '{"card": "4111"}', "card 4111", "card 4111"),
    ],
)  # fmt: skip
def test_texts(field: str, body: str, text: str, left: str) -> None:
    found, rules = Found(), redaction(field)
    rules.body(body.encode(), found)
    assert rules.text(text, found) == left
    assert rules.text(None, found) is None


def test_texts_without_their_message() -> None:
    """What is gone cannot be looked for in a text, so the text is not shown."""
    assert redaction("body.card").text("card 4111", None) == MASK
    assert redaction("user.card").text("card 4111", None) == MASK
    assert Redaction().text("card 4111", None) == "card 4111"


def test_reasons() -> None:
    """Those of the system are always shown: they hold nothing of a message. Others can."""
    found, rules = Found(), redaction("body.card")
    rules.body(b'{"card": "4111-2222"}', found)
    assert rules.reason("bad 4111-2222", found) == f"bad {MASK}"
    assert rules.reason("bad", None) == MASK
    assert rules.reason("MaxDeliveryCountExceeded", None) == "MaxDeliveryCountExceeded"
    assert redaction("error").reason("bad", None) == "bad"


def test_the_reasons_of_the_system_are_known() -> None:
    for module in (queue_admission, conversation_ends, dispositions):
        reasons = {value for name, value in vars(module).items() if name.endswith("_REASON")}
        assert reasons
        assert reasons <= OWN_REASONS
    assert dispositions.SESSION_POISONED in OWN_REASONS
    assert {HANDLER_TIMEOUT, WORKER_CRASHED, OUT_OF_MEMORY} <= OWN_REASONS


def test_many_values_hide_all_texts() -> None:
    """More values than are looked for in a text hide it as a whole: nothing slips through."""
    body = json.dumps({"card": [f"value {n}" for n in range(5_000)]}).encode()
    found, rules = Found(), redaction("body.card")
    rules.body(body, found)
    assert found.all
    assert rules.text("value 4999", found) == MASK


@pytest.mark.parametrize(
    "field",
    ["", "card", "bodycard", "body.", "body[0]", "body.items[0]", "body...a", "user..a", "user.a.b",
     "error.a", "body.a b", "sys.Label", "body." + ".".join("a" * 33), "error ", "body.[]"],
)  # fmt: skip
def test_wrong_fields(field: str) -> None:
    with pytest.raises(InvalidOption):
        checked_rule("*", field, "mask")


def test_wrong_forms_and_patterns() -> None:
    for queue, form in (("*", "hide"), ("*", 1), ("", "mask"), (None, "mask")):
        with pytest.raises(InvalidOption):
            checked_rule(queue, "body", form)


def test_patterns() -> None:
    rules = [checked_rule(p, "body.a", "mask") for p in ("*", "shop/*", "Orders")]
    assert [r.queue for r in rules_for(rules, "shop/eu;poison")] == ["*", "shop/*"]
    assert [r.queue for r in rules_for(rules, "ORDERS")] == ["*", "Orders"]
    assert [r.queue for r in rules_for(rules, "shop2")] == ["*"]
    assert [r.queue for r in rules_for(rules, "orders/subscriptions/a")] == ["*", "Orders"]
    assert rules[0].form is Form.MASK


NAMED = redaction("body.card.number", "body.a..pin", "user.token")


@pytest.mark.parametrize(
    ("condition", "names"),
    [
        ("body.card.number = '4111'", True),
        ("body.CARD.NUMBER LIKE '4%'", True),
        ("body.card[0].number = '4'", True),
        ("body.card.number.first = '4'", True),
        ("EXISTS(body.card)", True),
        ("body.card.cvc = 1", False),
        ("body.other = 1 AND sys.Label = 'x'", False),
        ("body.a = 1", True),
        ("body.a.b.pin = 1", True),
        ("body.b.pin = 1", False),
        ("user.DeadLetterReason = 'x'", True),
        ("DEADLETTERERRORDESCRIPTION LIKE '%4111%'", True),
        ("Token = 'x'", True),
        ("user.TOKEN IS NULL", True),
        ("PROPERTY('tok' + 'en') = 'x'", True),
        ("p('Token') = 'x'", True),
        ("p(other) = 'x'", True),
        ("p('x') = 'y' AND property('y') = 'p(z)'", False),
        ("p('DeadLetterReason') = 'x'", True),
        ("user.other = 'x'", False),
        ("this is wrong", True),
    ],
)
def test_filters(condition: str, names: bool) -> None:
    assert filter_names(NAMED, condition) is names
    assert not filter_names(redaction("error"), condition)


def test_a_size_tells_how_long_a_field_of_the_body_is() -> None:
    """Not where the message is judged as it may be seen."""
    assert filter_names(NAMED, "sys.Size > 10", sizes=True)
    assert not filter_names(NAMED, "sys.Size > 10")
    assert not filter_names(redaction("user.token"), "sys.Size > 10", sizes=True)


@pytest.mark.parametrize(
    ("edit", "names"),
    [
        ("SET body.x = 1; REMOVE body.y", False),
        ("SET body.x = body.card.number", True),
        ("SET user.x = body.card", True),
        ("SET user.x = sys.Size", True),
        ("SET body.x = body.z; SET user.y = token", True),
        ("SET body.card.number = '1'", True),
        ('{"x": 1, "card": {"cvc": 2}}', False),
        ('{"card": {"number": 1}}', True),
        ('{"card": null}', True),
        ('[{"op": "replace", "path": "/x", "value": 1}]', False),
        ('[{"op": "copy", "from": "/card/number", "path": "/x"}]', True),
        ('[{"op": "move", "from": "/card", "path": "/x"}]', True),
        ('[{"op": "test", "path": "/card/0/number", "value": "4"}]', True),
        ('[{"op": "test", "path": "/x", "value": {"card": 1}}]', True),
        ('[{"op": "test", "path": "/x", "value": [1]}]', True),
        ('[{"op": "test", "path": "/x", "value": 1}]', False),
        ('[{"op": "copy", "from": "/a/b", "path": "/x"}]', True),
        ('[{"op": "copy", "from": "", "path": "/x"}]', True),
        ("module:function", True),
        ("{wrong", True),
    ],
)
def test_edits(edit: str, names: bool) -> None:
    assert edit_names(NAMED, edit) is names


def test_edits_below_two_names_at_any_depth() -> None:
    rules = redaction("body..a..b")
    assert edit_names(rules, '[{"op": "copy", "from": "/x/a/c", "path": "/y"}]')
    assert not edit_names(rules, '[{"op": "copy", "from": "/x/c", "path": "/y"}]')


def test_what_amqp_clients_sent_besides_is_left_out() -> None:
    """It may have properties in it that Lazaretto has no type for."""
    headers = Headers(properties={"Card": 1}, amqp=b"...types...Card...SSN...")
    for field, all_unknown in (
        ("user.card", False),
        ("user.ssn", True),
        ("user", True),
        ("user.other", False),
    ):
        found = Found()
        assert redaction(field).headers(headers, found).amqp is None
        assert found.all is all_unknown, field
    assert redaction("body.card").headers(headers).amqp is not None, "a sample of it has no body"
    message = StoredMessage(1, b"{}", "m", 0, None, encode_headers(headers), None, 0, 0, 0, 0, *[None] * 3)
    assert redaction("body.card").message(message).amqp is None
    assert redaction("body.card").made(Message(b"{}", amqp=b"x")).amqp is None
