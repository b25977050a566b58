"""What services may say: message types with validation, contracts, services, and one file of all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lazaretto import Broker
from lazaretto.dialogs.declaration import as_declaration, parse_declaration
from lazaretto.dialogs.validation import problem_with
from lazaretto.errors import DefinitionError, InvalidOption
from lazaretto.model.dialog_contracts import MessageType, SentBy, Validation

from .talk import ORDER, ORDERING, SHOP, begin, leftovers, read, services

SCHEMA = {
    "type": "object",
    "properties": {"id": {"type": "integer", "minimum": 1}},
    "required": ["id"],
}


@pytest.mark.parametrize(
    ("validation", "body", "good"),
    [
        ("none", b"\xff\x00 anything", True),
        ("empty", b"", True),
        ("empty", b" ", False),
        ("json", b'{"a": [1, null]}', True),
        ("json", b"", False),
        ("json", b"{'a': 1}", False),
        ("json", b"\xff", False),
        ("json", b'"\xff"', False),
        ("json_schema", b'{"id": "\xff"}', False),
        ("json", b"[" * 100_000, False),
        ("json_schema", b'{"id": 7}', True),
        ("json_schema", b'{"id": 0}', False),
        ("json_schema", b"{}", False),
        ("json_schema", b"nothing", False),
        ("xml", b"<a><b/></a>", True),
        ("xml", '<?xml version="1.0" encoding="utf-8"?><ä>ö</ä>'.encode(), True),
        ("xml", b"<a><b></a>", False),
        ("xml", b"", False),
        ("xml", b"\xff\xfe", False),
        ("xml", b'<!DOCTYPE a SYSTEM "file:///etc/passwd"><a/>', False),
        ("xml", b'<!DOCTYPE a [<!ENTITY b "cc"><!ENTITY c "&b;&b;">]><a>&c;</a>', False),
    ],
)
def test_validation(validation: str, body: bytes, good: bool) -> None:
    schema = SCHEMA if validation == "json_schema" else None
    message_type = MessageType("T", Validation(validation), schema)
    assert (problem_with(message_type, body) is None) is good


@pytest.mark.stores("sqlite")
class TestDefining:
    def test_what_is_wrong_is_said(self, broker: Broker) -> None:
        dialogs = broker.dialogs
        for call, words in [
            (lambda: dialogs.create_message_type("T", "jsn"), "expected validation to be one of"),
            (lambda: dialogs.create_message_type("T", "json_schema"), "with validation json_schema"),
            (lambda: dialogs.create_message_type("T", "json", schema={}), "with validation json_schema"),
            (lambda: dialogs.create_message_type(""), "message type's name"),
            (lambda: dialogs.create_message_type("DEFAULT", "json"), "is a built-in message type"),
            (lambda: dialogs.create_contract("DEFAULT", {"DEFAULT": "any"}), "the built-in contract"),
            (lambda: dialogs.create_contract("C", {"DEFAULT": "target"}), "the initiator can send"),
            (lambda: dialogs.create_contract("C", {"DEFAULT": "all"}), "expected who sends it"),
            (lambda: dialogs.create_service("S", "a b"), "expected each part of a path"),
            (lambda: dialogs.create_service("S", "q;poison"), "not in a subqueue"),
            (lambda: dialogs.create_service("S", "q", "Contract"), "expected contracts to be a list"),
            (lambda: dialogs.create_service("S", "q", poison="x"), "expected poison to be one of"),
            (lambda: dialogs.create_service("S", "q", handler="x"), "'module:function'"),
            (lambda: dialogs.create_service("S", "q", max_readers=0), "max_readers"),
            (lambda: dialogs.create_priority("P", 11), "expected level to be an integer from 1 to 10"),
            (lambda: dialogs.drop("table", "T"), "expected a kind of"),
        ]:
            with pytest.raises(ValueError, match=words):
                call()  # type: ignore[no-untyped-call]
        for call, words in [
            (lambda: dialogs.create_contract("C", {"T": "any"}), "contract 'C' needs message type 'T'"),
            (lambda: dialogs.create_service("S", "q", ["C"]), "service 'S' needs contract 'C'"),
            (lambda: dialogs.drop("service", "S"), "service 'S' does not exist"),
        ]:
            with pytest.raises(DefinitionError, match=words):
                call()  # type: ignore[no-untyped-call]
        assert [q.path for q in broker.queues()] == ["$system/deadletter"]

    def test_a_schema_that_is_none(self, broker: Broker) -> None:
        with pytest.raises(InvalidOption, match="not a valid JSON Schema"):
            broker.dialogs.create_message_type("T", "json_schema", schema={"type": "wrong"})

    @pytest.mark.parametrize(
        "schema",
        [
            {"$ref": "http://127.0.0.1:9/schema"},
            {"$ref": "file:///etc/hostname"},
            {"properties": {"a": {"$ref": "other.json"}}},
            {"$schema": "http://127.0.0.1:9/dialect"},
            {"pattern": "("},
            {"pattern": "(?=a)b"},
            {"const": "\ud800"},
            {"const": object()},
            {1: 2},
            [],
            "schema",
            5,
        ],
    )
    def test_a_schema_that_cannot_be_used(self, broker: Broker, schema: Any) -> None:
        """It fetches nothing from anywhere, and what is wrong with it is said when it is made."""
        with pytest.raises(InvalidOption, match="schema"):
            broker.dialogs.create_message_type("T", "json_schema", schema=schema)

    def test_a_pattern_takes_time_in_proportion_to_the_text(self) -> None:
        schema = {"properties": {"id": {"pattern": "^(a+)+$"}}, "patternProperties": {"^(a+)+$": {}}}
        long = "a" * 100_000 + "!"
        body = f'{{"id": "{long}", "{long}": 1}}'.encode()
        found = problem_with(MessageType("T", Validation.JSON_SCHEMA, schema), body)
        assert found is not None
        assert "does not match" in found
        assert len(found) < 500

    def test_services_on_one_queue_agree_on_poison(self, broker: Broker) -> None:
        broker.dialogs.create_service("A", "q", poison="end")
        broker.dialogs.create_service("B", "Q", poison="end")
        with pytest.raises(DefinitionError, match="must agree"):
            broker.dialogs.create_service("C", "q", poison="hold")

    def test_two_services_on_one_queue_talk_to_each_other(self, broker: Broker) -> None:
        broker.dialogs.create_service("A", "q")
        broker.dialogs.create_service("B", "q", ["DEFAULT"])
        with broker.dialogs.transaction() as work:
            handle = work.begin_dialog("A", "B")
            work.send(handle, body=b"to B")
        (message,) = read(broker, "q")
        assert (message.service, message.body) == ("B", b"to B")
        with broker.dialogs.transaction() as work:
            work.end(message.conversation)
        assert read(broker, "q")[0].service == "A"
        assert leftovers(broker) == []

    def test_what_is_used_is_not_dropped(self, broker: Broker) -> None:
        services(broker)
        handle = begin(broker, b"1")
        dialogs = broker.dialogs
        with pytest.raises(DefinitionError, match="needs message type"):
            dialogs.drop("message_type", ORDER)
        with pytest.raises(DefinitionError, match="needs contract"):
            dialogs.drop("contract", ORDERING)
        with pytest.raises(DefinitionError, match="has conversations"):
            dialogs.drop("service", SHOP)
        with pytest.raises(DefinitionError, match="cannot be changed while"):
            dialogs.create_contract(ORDERING, {ORDER: "any"})
        dialogs.end(handle)
        read(broker)
        dialogs.create_contract(ORDERING, {ORDER: "any"})
        dialogs.drop("service", SHOP)
        broker.delete_queue("shop")

    def test_a_validation_that_changes_counts_at_once(self, broker: Broker) -> None:
        services(broker)
        begin(broker, b"{broken")
        assert read(broker, "front")[0].is_error
        broker.dialogs.create_message_type(ORDER)
        begin(broker, b"{broken")
        assert read(broker)[0].body == b"{broken"


FILE = """
[message_types]
"Order" = { validation = "json" }
"Receipt" = {}

[contracts.Ordering]
Order = "initiator"
Receipt = "target"

[services]
Front = { queue = "front" }
Shop = { queue = "shop", contracts = ["Ordering"], poison = "end", failures = 2, max_readers = 3 }

[priorities]
urgent = { level = 9, contract = "Ordering" }
"""


class TestDeclaration:
    def test_it_is_applied_once(self, broker: Broker, tmp_path: Path) -> None:
        file = tmp_path / "services.toml"
        file.write_text(FILE)
        wanted = broker.dialogs.apply(file, compare=True)
        assert broker.dialogs.definitions().all("service") == []
        assert broker.dialogs.apply(file) == wanted
        assert {c.verb for c in wanted} == {"create"}
        assert len(wanted) == 6
        assert broker.dialogs.apply(file) == []
        shop = broker.dialogs.definitions().service("Shop")
        assert (shop.failures, shop.max_readers) == (2, 3)
        assert broker.dialogs.definitions().contract("Ordering").messages["Receipt"] is SentBy.TARGET
        # What the store has is what the file says.
        again = parse_declaration(as_declaration(broker.dialogs.definitions()))
        assert broker.dialogs.apply(again, drop_others=True) == []

    def test_changes_and_what_is_no_longer_named(self, broker: Broker, tmp_path: Path) -> None:
        file = tmp_path / "services.toml"
        file.write_text(FILE)
        broker.dialogs.apply(file)
        file.write_text(
            FILE.replace("failures = 2", "failures = 5")
            .replace('"Receipt" = {}', '"Receipt" = {validation = "empty"}')
            .partition("[priorities]")[0]
        )
        assert [tuple(c) for c in broker.dialogs.apply(file)] == [
            ("change", "message_type", "Receipt"),
            ("change", "service", "Shop"),
        ]
        assert broker.queue("shop").options.policy.receive_retry_count == 4
        assert [tuple(c) for c in broker.dialogs.apply(file, drop_others=True)] == [
            ("drop", "priority", "urgent")
        ]

    @pytest.mark.stores("sqlite")
    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("= 1", "is not TOML"),
            ("[tables]", "unknown option 'tables' of a declaration"),
            ("[message_types]\nT = 1", "to be a table"),
            ("[message_types.T]\nvalidaton = 'json'", "did you mean 'validation'"),
            ("[services.S]", "service 'S' needs queue"),
            ("[priorities.P]\ncontract = 'C'", "priority 'P' needs level"),
            ("[contracts.C]\nT = 'nobody'", "contract 'C': expected who sends it"),
        ],
    )
    def test_a_file_that_is_wrong(self, broker: Broker, tmp_path: Path, text: str, words: str) -> None:
        file = tmp_path / "services.toml"
        file.write_text(text)
        with pytest.raises(InvalidOption, match=words):
            broker.dialogs.apply(file)

    def test_all_or_nothing(self, broker: Broker, tmp_path: Path) -> None:
        file = tmp_path / "services.toml"
        file.write_text('[services.S]\nqueue = "q"\n[services.T]\nqueue = "t"\ncontracts = ["missing"]')
        with pytest.raises(DefinitionError, match="'missing'"):
            broker.dialogs.apply(file)
        assert broker.dialogs.definitions().all("service") == []
