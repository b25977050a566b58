"""Rules of a subscription over AMQP: added, listed and removed through its management node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from door.client import Manager, connected, opened, run
from lazaretto import CorrelationFilter, Rule, SqlAction, SqlFilter, TrueFilter
from lazaretto.servicebus.amqp.values import Described, Int

NODE = "t/Subscriptions/s/$management"


def listed(body: Any) -> list[list[Any]]:
    """Return the fields of listed rules, without their descriptors."""

    def plain(value: Any) -> Any:
        value = value.value if isinstance(value, Described) else value
        return [plain(one) for one in value] if isinstance(value, list) else value

    return [plain(one["rule-description"]) for one in body["rules"]]


def test_rules_are_added_listed_and_removed(tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(tmp_path) as (broker, door), connected(door) as client:
            await broker.create_topic("t")
            await broker.create_subscription("t", "s")
            manager = Manager(client)
            await manager.open(NODE)
            sql = {"sql-filter": {"expression": "n > 1"}, "sql-rule-action": {"expression": "SET a = 1"}}
            equal = {"correlation-filter": {"label": "x", "to": None, "properties": {"n": Int(5)}}}
            assert (await manager.ask("add-rule", rule_name="sql", rule_description=sql))[0] == 200
            assert (await manager.ask("add-rule", rule_name="equal", rule_description=equal))[0] == 200
            rules = (await broker.subscription("t", "s")).rules
            assert {rule.name: rule for rule in rules} == {
                "$Default": Rule("$Default", TrueFilter()),
                "sql": Rule("sql", SqlFilter("n > 1"), SqlAction("SET a = 1")),
                "equal": Rule("equal", CorrelationFilter(subject="x", properties={"n": 5})),
            }
            status, body = await manager.ask("enumerate-rules", top=Int(100), skip=Int(0))
            assert status == 200
            by_name = {rule[2]: rule for rule in listed(body)}
            assert by_name["$Default"][:2] == [[], []]
            assert by_name["sql"][:2] == [["n > 1", 20], ["SET a = 1", 20]]
            assert by_name["equal"][0] == [None, None, None, None, "x", None, None, None, {"n": 5}]
            assert len(listed((await manager.ask("enumerate-rules", top=Int(1), skip=Int(1)))[1])) == 1
            assert (await manager.ask("enumerate-rules", top=Int(5), skip=Int(3)))[0] == 204
            assert (await manager.ask("remove-rule", rule_name="$Default"))[0] == 200
            assert len((await broker.subscription("t", "s")).rules) == 2

    run(work)


def test_what_is_wrong_with_a_rule_is_told(tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(tmp_path) as (broker, door), connected(door) as client:
            await broker.create_topic("t")
            await broker.create_subscription("t", "s")
            manager = Manager(client)
            await manager.open(NODE)
            right = {"sql-filter": {"expression": "1 = 1"}}
            for name, given, status in (
                ("$Default", right, 409),
                ("r", {"sql-filter": {"expression": "n >"}}, 400),
                ("r", {"sql-filter": "n > 1"}, 400),
                ("r", {"correlation-filter": {}}, 400),
                ("r", {"correlation-filter": {"label": "x", "properties": {"l": [1]}}}, 400),
                ("r", {}, 400),
                ("r", None, 400),
                (None, right, 400),
                ("x" * 51, right, 400),
            ):
                assert (await manager.ask("add-rule", rule_name=name, rule_description=given))[0] == status, (
                    given
                )
            assert (await manager.ask("remove-rule", rule_name="gone"))[0] == 404
            assert (await manager.ask("remove-rule"))[0] == 400
            assert (await manager.ask("enumerate-rules", top="all", skip=Int(0)))[0] == 400
            assert len((await broker.subscription("t", "s")).rules) == 1
        async with opened(tmp_path / "other") as (_, door), connected(door) as client:
            manager = Manager(client)
            await manager.open("q/$management")
            assert (await manager.ask("enumerate-rules", top=Int(1), skip=Int(0)))[0] == 400

    (tmp_path / "other").mkdir()
    run(work)
