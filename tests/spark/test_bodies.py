"""Bodies with a schema: what fits is a value, what does not is a dead letter that names the field."""

from __future__ import annotations

import io
import json
import os
import uuid
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lazaretto import (
    Broker,
    InvalidMessage,
    InvalidOption,
    Message,
    PoisonPolicy,
    PoisonSession,
    QueueOptions,
)
from lazaretto.spark import process, settle
from lazaretto.spark.bodies import PROBLEM, VALUE, BodyFormat, inferred, make_extras
from lazaretto.spark.columns import property_columns
from lazaretto.spark.source_options import SparkOptions, parse

pytestmark = pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::ResourceWarning"
)

both_stores = pytest.mark.stores("sqlite", *(["postgres"] if "LAZARETTO_SOAK" in os.environ else []))
ORDER = "item string, price bigint NOT NULL, lines array<struct<n: int>>"
AVRO = {
    "type": "record", "name": "Order", "fields": [
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "buyer", "type": {"type": "record", "name": "Buyer", "fields": [
            {"name": "name", "type": "string"}, {"name": "age", "type": ["null", "int"]},
        ]}},
        {"name": "total", "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}  # fmt: skip
MIXIN = "google.protobuf.api_pb2:Mixin"


def read(bodies: list[bytes], kind: pa.DataType, **options: Any) -> tuple[list[Any], list[Any]]:
    """Return the values of bodies and what is wrong with them."""
    columns = pa.schema([(VALUE, kind), (PROBLEM, pa.string())])
    extras = make_extras(SparkOptions(store="x", queue="work", **{"body": "json", **options}), columns)
    found = extras.of(pa.RecordBatch.from_pydict({"body": bodies}))
    return found[VALUE].to_pylist(), found[PROBLEM].to_pylist()


class TestJson:
    KIND = pa.struct([
        pa.field("item", pa.string()),
        pa.field("price", pa.int32(), nullable=False),
        pa.field("total", pa.decimal128(5, 2)),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("raw", pa.binary()),
        pa.field("tags", pa.map_(pa.string(), pa.list_(pa.int8()))),
        pa.field("weight", pa.float32()),
        pa.field("log", pa.list_(pa.struct([("at", pa.timestamp("us", tz="UTC"))]))),
        pa.field("seen", pa.map_(pa.string(), pa.timestamp("us", tz="UTC"))),
    ])  # fmt: skip

    def test_what_fits(self) -> None:
        body = (
            b'{"price": 4, "total": 12.5, "at": "2026-01-01T02:00:00+02:00", "raw": "AP8=", "more": 1,'
            b' "tags": {"a": [1, null]}}'
        )
        (value,), problems = read([body], self.KIND)
        assert value == {
            "item": None, "price": 4, "total": Decimal("12.50"), "at": datetime(2026, 1, 1, tzinfo=UTC),
            "raw": b"\x00\xff", "tags": [("a", [1, None])],
            "weight": None, "log": None, "seen": None,
        }  # fmt: skip
        assert problems == [None]

    @pytest.mark.parametrize(
        ("body", "problem"),
        [
            (b'{"price": "4"}', "Expected `int`, got `str` - at `$.price`"),
            (b"{}", "Object missing required field `price` - at `$`"),
            (b'{"price": 4000000000}', "Expected `int` <= 2147483647 - at `$.price`"),
            (b'{"price": 1, "item": 5}', "Expected `str | null`, got `int` - at `$.item`"),
            (b'{"price": 1, "tags": {"a": [1, 300]}}', "Expected `int` <= 127 - at `$.tags[...][1]`"),
            (b'{"price": 1, "total": 1234567}', "the value does not fit decimal128(5, 2) - at `$.total`"),
            (b'{"price": 1, "weight": 1e39}', "Expected `float` <= 3.402823466385288"),
            (b'{"price": 1, "at": "9999-12-31T23:00:00-05:00"}', "timestamp[us, tz=UTC] - at `$.at`"),
            (b'{"price": 1, "log": [{}, {"at": "0001-01-01T00:00:00+05:00"}]}', "- at `$.log[1].at`"),
            (b'{"price": 1, "seen": {"x": "9999-12-31T23:00:00-05:00"}}', "- at `$.seen[...]`"),
            (b'{"price": 1, "at": "noon"}', "Invalid RFC3339 encoded datetime - at `$.at`"),
            (b'{"price": 1, "item": "\xff"}', "the body is not UTF-8 (byte 22) - at `$`"),
            (b"", "the body is not JSON: Input data was truncated - at `$`"),
            (b'{"price": 1, "x": ' + b"[" * 100_000, "recursion"),
            (b"null", "Expected `object`, got `null` - at `$`"),
        ],
    )  # fmt: skip
    def test_what_does_not_fit_names_the_field(self, body: bytes, problem: str) -> None:
        good = b'{"price": 1}'
        values, (_, found, _) = read([good, body, good], self.KIND)
        assert [value and value["price"] for value in values] == [1, None, 1]
        assert problem in found

    def test_types_that_json_does_not_have(self) -> None:
        kind = pa.struct([("a", pa.list_(pa.struct([("b", pa.duration("us"))])))])
        with pytest.raises(
            InvalidOption, match=r"a type that JSON cannot give: duration\[us\], at \$\.a\[\]\.b"
        ):
            read([], kind)


class TestSample:
    def test_a_field_has_the_type_that_nearly_all_values_have(self) -> None:
        bodies = [b'{"a": 1, "b": {"c": [1, 2.5]}, "n": null, "e": {}, "t": "x"}'] * 18 + [
            b'{"a": "1"}',
            b"{",
        ]
        kind = pa.struct([
            ("a", pa.int64()), ("b", pa.struct([("c", pa.list_(pa.float64()))])), ("t", pa.string()),
        ])  # fmt: skip
        assert inferred(bodies) == kind

    def test_one_large_number_of_many_is_what_does_not_fit(self) -> None:
        assert inferred([b'{"a": 1}'] * 19 + [b'{"a": 9223372036854775808}']) == pa.struct(
            [("a", pa.int64())]
        )
        assert inferred([b'{"a": 1.5}', b'{"a": 9223372036854775808}']) == pa.struct([("a", pa.float64())])

    @pytest.mark.parametrize(
        ("bodies", "text"),
        [
            (
                [b'{"a": {"b": 1}}', b'{"a": {"b": "x"}}'],
                r"\$\.a\.b has 1 numbers, 1 texts; give body_schema",
            ),
            ([b"1", b"{"], "0 of 2 bodies of the sample are JSON objects"),
            ([b"{}"], "are empty"),
            ([b'{"a": 99999999999999999999}'], r"\$\.a has 1 numbers beyond 64 bits"),
        ],
    )
    def test_what_cannot_be_told(self, bodies: list[bytes], text: str) -> None:
        with pytest.raises(InvalidOption, match=text):
            inferred(bodies)


class TestAvro:
    def test_values_and_what_does_not_fit(self) -> None:
        import fastavro

        from lazaretto.spark.avro_bodies import avro_type

        number = uuid.uuid4()
        order = {
            "id": number, "buyer": {"name": "Ann", "age": 30}, "total": Decimal("12.50"),
            "at": datetime(2026, 1, 1, tzinfo=UTC),
        }  # fmt: skip
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, AVRO, order)
        body, text = stream.getvalue(), json.dumps(AVRO)
        bodies = [body, body[:39], body + b"!", b""]
        values, problems = read(bodies, avro_type(text), body="avro", body_schema=text)
        assert values == [{**order, "id": str(number)}, None, None, None]
        before = "the body is not Avro of this schema: "
        assert problems == [
            None, f"{before}it ends too early - at `$.buyer.name`", f"{before}1 bytes too many - at `$`",
            f"{before}it ends too early - at `$.id`",
        ]  # fmt: skip

    @pytest.mark.parametrize(
        ("schema", "text"),
        [
            ("{", "no Avro schema: JSONDecodeError"),
            ('"int"', "no Avro schema of a record"),
            ([{"name": "x", "type": "Foo"}], "UnknownType: Foo"),
            ([{"name": "x", "type": ["null", "int", "string"]}], r"a union of several types .*: \$\.x"),
            # An array of nothing takes no byte an item: a few bytes could stand for billions.
            ([{"name": "x", "type": {"type": "array", "items": "null"}}], r"Avro's null: \$\.x\.item"),
            ([{"name": "x", "type": ["null", "R"]}], r"Avro's R: \$\.x"),
            (
                [{"name": "x", "type": {"type": "bytes", "logicalType": "decimal", "precision": 50}}],
                r"precision from 1 to 38, got 50: \$\.x",
            ),
            (
                [{"name": "x", "type": {"type": "bytes", "logicalType": "decimal"}}],
                r"precision from 1 to 38, got None: \$\.x",
            ),
        ],
    )  # fmt: skip
    def test_schemas_that_are_refused(self, schema: Any, text: str) -> None:
        from lazaretto.spark.avro_bodies import avro_type

        if not isinstance(schema, str):
            schema = json.dumps({"type": "record", "name": "R", "fields": schema})
        with pytest.raises(InvalidOption, match=text):
            avro_type(schema)


class TestProtobuf:
    def test_values_and_what_does_not_fit(self) -> None:
        from google.protobuf import api_pb2

        from lazaretto.spark.protobuf_bodies import protobuf_type

        body = api_pb2.Mixin(name="Ann").SerializeToString()
        kind = protobuf_type(MIXIN)
        values, problems = read([body, b"\xff", b""], kind, body="protobuf", body_schema=MIXIN)
        assert values == [{"name": "Ann", "root": ""}, None, {"name": "", "root": ""}]
        assert problems == [
            None, "the body is not Protobuf of google.protobuf.Mixin: DecodeError - at `$`", None
        ]  # fmt: skip

    def test_nested_repeated_maps_enums_and_presence(self) -> None:
        from google.protobuf import struct_pb2, type_pb2

        from lazaretto.spark.protobuf_bodies import protobuf_type

        reference = "google.protobuf.type_pb2:Field"
        field = type_pb2.Field(kind="TYPE_BOOL", number=7, options=[type_pb2.Option(name="o")])
        kind = protobuf_type(reference)
        (value,), problems = read([field.SerializeToString()], kind, body="protobuf", body_schema=reference)
        assert (value["kind"], value["number"], problems) == ("TYPE_BOOL", 7, [None])
        assert value["options"] == [{"name": "o", "value": None}]
        assert struct_pb2 is not None
        with pytest.raises(InvalidOption, match="contains itself"):
            protobuf_type("google.protobuf.struct_pb2:Struct")

    @pytest.mark.parametrize(
        "reference", ["nowhere:X", "json:loads", "x", "google.protobuf.timestamp_pb2:Timestamp"]
    )
    def test_what_is_no_message_class(self, reference: str) -> None:
        from lazaretto.spark.protobuf_bodies import protobuf_type

        with pytest.raises(InvalidOption, match=r"module:Class|has no columns"):
            protobuf_type(reference)


def test_properties_as_columns() -> None:
    assert list(property_columns("region string, `a b`: BIGINT")) == ["region", "a b"]
    for text in ("region", "region text", "region string; drop", "a string, a int", "body string"):
        with pytest.raises(InvalidOption, match=r"expected properties|a property cannot be a column"):
            property_columns(text, ["body"])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"body": "xml"}, "json, avro, protobuf"),
        ({"body": "avro"}, "needs the option body_schema"),
        ({"body_schema": "a int"}, "needs the option body"),
    ],
)
def test_options_that_are_wrong(options: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidOption, match=text):
        SparkOptions(store="x", queue="work", **options)


# -- on Spark --------------------------------------------------------------------------------------

GOOD = b'{"item": "lamp", "price": 40, "lines": [{"n": 1}]}'
BAD = b'{"item": "desk", "price": "high"}'
WORSE = b'{"price": 1, "lines": [{"n": 1}, {"n": "x"}]}'


def load(spark: Any, url: str, **options: Any) -> Any:
    reader = spark.readStream.format("lazaretto").option("store", url).option("queue", "work")
    return reader.options(**{"body": "json", "body_schema": ORDER, **options}).load()


def send(broker: Broker, *bodies: bytes, **fields: Any) -> None:
    broker.sender("work").send([Message(body, **fields) for body in bodies])


def book(message: Any, context: Any) -> Any:
    order = __import__("json").loads(message.body)
    return {"n": order["price"]}


def double(batch: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    return pa.RecordBatch.from_pydict({"n": pc.struct_field(batch.column("value"), "price")})


@both_stores
@pytest.mark.parametrize("way", ["direct", "stream", "vectorised"])
def test_what_does_not_fit_is_a_dead_letter(
    spark: Any, broker: Broker, url: str, tmp_path: Path, way: str
) -> None:
    send(broker, GOOD, BAD, WORSE, b"{", GOOD)
    direct: dict[str, Any] = {} if way == "stream" else {"body": "json", "body_schema": ORDER}
    process(
        load(spark, url) if way == "stream" else spark, double if way == "vectorised" else book,
        store=url, queue="work", checkpoint=str(tmp_path / "check"), results=str(tmp_path / "results"),
        schema="n bigint", isolation="vectorised" if way == "vectorised" else "process", **direct,
    ).awaitTermination()  # fmt: skip
    rows = spark.read.parquet(str(tmp_path / "results")).collect()
    assert sorted((row.sequence_number, row.n) for row in rows) == [(1, 40), (5, 40)]
    letters = {letter.sequence_number: letter for letter in broker.dead_letters("work")}
    assert {letter.reason for letter in letters.values()} == {"InvalidMessage"}
    assert {number: letter.error_message for number, letter in letters.items()} == {
        2: "Expected `int`, got `str` - at `$.price`",
        3: "Expected `int | null`, got `str` - at `$.lines[1].n`",
        4: "the body is not JSON: Input data was truncated - at `$`",
    }
    assert broker.queue("work").counts.active == 0


def test_a_session_waits_behind_what_does_not_fit(
    spark: Any, broker: Broker, url: str, tmp_path: Path
) -> None:
    broker.delete_queue("work")
    policy = PoisonPolicy(receive_retry_count=0)
    options = QueueOptions(requires_session=True, on_poison_session=PoisonSession.BLOCK, policy=policy)
    broker.create_queue("work", options)
    for body in (GOOD, BAD, GOOD):
        broker.sender("work").send([Message(body, session_id=session) for session in "ab"])
    broker.sender("work").send(Message(GOOD, session_id="c"))
    process(
        spark, book, store=url, queue="work", checkpoint=str(tmp_path / "check"),
        results=str(tmp_path / "results"), schema="n bigint", body="json", body_schema=ORDER,
    ).awaitTermination()  # fmt: skip
    rows = spark.read.parquet(str(tmp_path / "results")).collect()
    assert sorted(row.sequence_number for row in rows) == [1, 2, 7]
    assert sorted(held.session_id for held in broker.held_sessions("work")) == ["a", "b"]


def test_a_batch_with_problems_settles_them_as_invalid(
    spark: Any, broker: Broker, url: str, tmp_path: Path
) -> None:
    broker.update_queue("work", policy=PoisonPolicy(receive_retry_count=3))
    send(broker, GOOD, BAD, GOOD, properties={"region": "eu", "tenant": 7})
    seen: list[Any] = []

    def keep(batch: Any, _number: int) -> None:
        rows = batch.where("sequence_number IS NOT NULL").select("value.item", "problem", "region", "tenant")
        seen.extend(tuple(row) for row in rows.orderBy("problem").collect())
        settle(batch, store=url, queue="work", failed={3: InvalidMessage("no")})

    stream = load(spark, url, properties="region string, tenant bigint")
    writer = stream.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path / "check"))
    writer.trigger(availableNow=True).start().awaitTermination()
    problem = "Expected `int`, got `str` - at `$.price`"
    assert seen == [("lamp", None, "eu", 7)] * 2 + [(None, problem, "eu", 7)]
    letters = broker.dead_letters("work")
    assert [(letter.sequence_number, letter.reason) for letter in letters] == [
        (2, "InvalidMessage"), (3, "InvalidMessage"),
    ]  # fmt: skip


def test_tables_and_a_schema_from_a_sample(spark: Any, broker: Broker, url: str) -> None:
    tables = spark.read.format("lazaretto").option("store", url).option("queue", "work")
    tables = tables.option("view", "messages").option("body", "json")
    with pytest.raises(Exception, match="'work' is empty; give body_schema"):
        tables.load()
    with pytest.raises(Exception, match='Unsupported data type "BIGINTT"'):
        load(spark, url, body_schema="n bigintt")
    broker.sender("work").send(
        [Message(b'{"a b": %d, "in": {"x": 1.5}}' % n, properties={"n": n, "s": True}) for n in range(12)]
    )
    send(broker, b'{"a b": "x"}')
    frame = tables.option("properties", "n int, s string").load()
    assert frame.where("problem IS NOT NULL").select("sequence_number").collect() == [(13,)]
    told = frame.where("sequence_number = 12").selectExpr("value.`a b`", "value.in.x", "n", "s").collect()
    assert told == [(11, 1.5, 11, "true")]
    asked = tables.option("properties", "n int").schema("value struct<`a b`: bigint>, n int").load()
    assert asked.selectExpr("sum(value.`a b`)", "sum(n)").collect() == [(66, 66)]
    with pytest.raises(Exception, match="no column 'valu'"):
        tables.schema("valu struct<a: int>").load().collect()
    with pytest.raises(Exception, match="are for messages"):
        tables.option("view", "events").load().collect()


class TestRegistry:
    """Bodies with the header of Confluent's schema registry."""

    def read(self, name: str, definition: str, *bodies: bytes) -> tuple[list[Any], list[str | None]]:
        options = parse({"store": "x.db", "queue": "q", "body": name, "body_schema": definition})
        values, problems = BodyFormat.of(options, registry=True).read(bodies)
        return values.to_pylist(), problems

    def test_the_schema_s_number_stands_before_the_value(self) -> None:
        schema = '{"type": "record", "name": "o", "fields": [{"name": "n", "type": "long"}]}'
        good = b"\0\0\0\0\x07"
        values, problems = self.read(
            "avro", schema, good + b"\x0a", b"\x0a", good, b"\1" + good[1:] + b"\x0a", b""
        )
        assert values == [{"n": 5}, None, None, None, None]
        assert [bool(one) for one in problems] == [False, True, True, True, True]
        assert "no header of a schema registry" in str(problems[1])
        assert self.read("json", "n long", good + b'{"n": 5}')[0] == [{"n": 5}]

    @pytest.mark.parametrize("path", [b"\0", b"\x02\0", b"\x04\x02\0"])
    def test_the_path_of_a_type_of_protobuf_is_left_out(self, path: bytes) -> None:
        name = "google.protobuf.wrappers_pb2:StringValue"
        values, problems = self.read("protobuf", name, b"\0\0\0\0\x07" + path + b"\x0a\x01a")
        assert (values, problems) == ([{"value": "a"}], [None])
        assert self.read("protobuf", name, b"\0\0\0\0\x07\x04\x82")[1][0] is not None
