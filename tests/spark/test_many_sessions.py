"""Ten thousand sessions at once: each stays in its order, whatever happens to its neighbours."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from lazaretto import Broker, Message, PoisonPolicy, PoisonSession, QueueOptions
from lazaretto.spark import process

from .driver import Driver

pytestmark = pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::ResourceWarning"
)
SESSIONS, EACH = 10_000, 3
#: Every so many sessions, one message fails: of some the first, of others the second or the third.
BAD = 101


def fails(session: int, n: int) -> bool:
    return session % BAD == 0 and session // BAD % EACH == n


def act(message: Any) -> Any:
    if message.body == b"raise":
        raise ValueError("no")
    return {"n": int(message.body), "text": message.session_id}


def fill(broker: Broker) -> None:
    """Have the sessions take turns, message by message."""
    policy = PoisonPolicy(receive_retry_count=0)
    options = QueueOptions(requires_session=True, on_poison_session=PoisonSession.BLOCK, policy=policy)
    broker.delete_queue("work")
    broker.create_queue("work", options)
    sender = broker.sender("work")
    for n in range(EACH):
        sender.send([
            Message(b"raise" if fails(s, n) else b"%d" % n, session_id=f"s{s}") for s in range(SESSIONS)
        ])  # fmt: skip


def check(broker: Broker, folder: Path) -> None:
    """Each session done in order, up to what fails; and held there."""
    done: dict[int, list[int]] = {}
    for file in sorted(folder.glob("claim=*/part-*.parquet")):
        for row in pq.read_table(file, partitioning=None).to_pylist():
            done.setdefault(int(row["text"][1:]), []).append(row["n"])
    wanted = {}
    for session in range(SESSIONS):
        held = next((n for n in range(EACH) if fails(session, n)), EACH)
        if held:
            wanted[session] = [*range(held)]
    assert done == wanted
    held_now = {int(held.session_id[1:]) for held in broker.held_sessions("work", limit=1_000)}
    assert held_now == {session for session in range(SESSIONS) if session % BAD == 0}
    counts = broker.queue("work").counts
    left = sum(EACH - len(wanted.get(session, [])) for session in range(SESSIONS))
    assert (counts.total, counts.locked) == (left, 0)


def test_ten_thousand_sessions_stay_in_order(broker: Broker, url: str, tmp_path: Path) -> None:
    fill(broker)
    driver = Driver(broker, url, tmp_path)
    while (claim := driver.take()) is not None:
        driver.settle(driver.attempt(claim, act))
    check(broker, tmp_path)


@pytest.mark.stores("sqlite", "postgres")
@pytest.mark.skipif("LAZARETTO_SOAK" not in os.environ, reason="a minute of Spark: LAZARETTO_SOAK=1")
def test_ten_thousand_sessions_stay_in_order_on_spark(
    spark: Any, broker: Broker, url: str, tmp_path: Path
) -> None:
    fill(broker)
    process(
        spark, act, store=url, queue="work", checkpoint=str(tmp_path / "checkpoint"), shards=4,
        results=str(tmp_path / "results"), schema="n bigint, text string", max_rows=7_000, breaker=None,
    ).awaitTermination()  # fmt: skip
    check(broker, tmp_path / "results")
