"""The notes under the tables: what a mark on a figure means, and how the figures were come by."""

from __future__ import annotations

import dataclasses

from bench.measure import Scale

#: The marks that stand for weaker durability: such a figure is no equal of one without.
WEAKER = "†§"

MARKS: dict[str, str] = {
    "†": (
        "**Weaker.** The call returns before the acknowledgement is on disk (AMQP's ack has no answer). "
        "The quorum queue does sync it, afterwards."
    ),
    "§": (
        "**Weaker.** At most once: the hand-over deletes the message and there is nothing to complete. "
        "A consumer that dies has lost it."
    ),
    "‖": (
        "The record of a hand-over is committed before the receiver gets the message, and survives any kill "
        "of any process; it is synced to disk with the settle. A power cut in between can lose the count of "
        "that attempt, never the message. A completion is on disk when it returns. `lazaretto-strict` syncs "
        "the hand-over too; that is the row to hold against `raw` and the peers that sync twice a message."
    ),
    "a": (
        "Sixteen threads hand their rows to one writer thread, which commits what has gathered: "
        "the most that the file can take, not sixteen connections in turn."
    ),
    "b": "Its `put` a hundred times in its own `transaction()`.",
    "c": "Depends on the backlog: each pop sorts all messages that are ready.",
    "d": (
        "With `clear_acked_data` after every 500 acknowledgements, in the time that is measured; "
        "without it each get scans past all messages acknowledged before."
    ),
    "e": (
        "It counts no attempts and has no dead letters: the five tries are counted in the memory of the "
        "benchmark (a restart would forget them), which also writes the message with reason and stack to a "
        "second queue."
    ),
    "f": (
        "The library counts the retries. The error with its stack goes to the result store; "
        "the message itself is gone."
    ),
    "g": (
        "The server counts hand-overs, the client must ask and decide; the benchmark does, and writes the "
        "message with reason and stack to a second stream."
    ),
    "h": (
        "The broker counts (`x-delivery-limit`) and moves (dead-letter exchange, at-least-once). "
        "The dead letter says only that the limit was reached: no reason of the handler's, no stack."
    ),
    "j": (
        "It counts the hand-overs; the benchmark decides, makes what failed visible at once, and writes the "
        "fifth failure with reason and stack to a second queue."
    ),
    "k": (
        "It counts the attempts; the benchmark decides, and what failed for good stays in its table with the "
        "traceback in its log."
    ),
    "l": (
        "It counts the attempts; the benchmark decides; one job at a time. What failed for good stays in its "
        "table, without reason or stack."
    ),
    "i": "Not all messages were handled when the time was up; the rate is of those that were.",
    "=": "Sends as `lazaretto` does: the same code, measured once.",
}


_METHOD = """
{rounds}. A round takes every workload in turn, and for each workload every system in turn, so that
what is compared is measured within minutes. Each measurement has a fresh process, an empty directory,
and a server of its own if the system has one.

Payload: 1,024 bytes of JSON, encoded beforehand. All threads of a workload are in one process.

An answer means that the message, or the completion, is on disk (fsync or fdatasync), except where a
mark says otherwise. No power was cut.

W1, W2, W3: {seconds:g} s after a warm-up of 0.2 s. W4 from a queue of {one_by_one:,}, W5 from one of
{in_batches:,}, for {seconds:g} s or until it is empty.

W6: {flow:,} messages, from the first send to the last completion, at most {flow_seconds:g} s. Latency is
from the start of the send to the message in a consumer's hands; saturated, it shows the backlog rather
than the system. Paced: 200 messages/s for {paced_seconds:g} s. Systems without a blocking receive are
polled every millisecond.

W7: {drill:,} messages of which 1 % always fail, 5 attempts each; one thread, in batches of 100 where the
system has them. That every message was handled, and every failing one tried 5 times and set aside, is
checked each time. Who counts and who moves differs (see the marks): it is not a ranking.

Figures are medians of the rounds. A ratio is the median of the rounds' ratios, with the least and the
most; above 1 Lazaretto is better, for times too.

CPU: cores kept busy by the measured process, and by all else (server, kernel, noise).
"""

_DEPTH_METHOD = """
One store for each depth, filled once in commits of 1,000. {rounds}, in each all depths in turn. Each
measurement is a fresh process that opens the store.

{seconds:g} s of receiving, in bursts of 2,000 messages; between two bursts, not timed, the queue is
filled up again, so that it stays at its depth.

Payload: 1,024 bytes of JSON. Figures are medians of the rounds; a ratio is the median of the rounds'
ratios to the smallest depth, with the least and the most.
"""


def method(scale: Scale, rounds: int) -> list[str]:
    """Return how the figures of the workloads were come by, an item a subject."""
    return _items(_METHOD, scale, rounds)


def depth_method(scale: Scale, rounds: int) -> list[str]:
    """Return how the figures of the depths were come by, an item a subject."""
    return _items(_DEPTH_METHOD, scale, rounds)


def _items(text: str, scale: Scale, rounds: int) -> list[str]:
    counted = "1 round" if rounds == 1 else f"{rounds} rounds"
    filled = text.format(rounds=counted, **dataclasses.asdict(scale))
    return [" ".join(item.split()) for item in filled.strip().split("\n\n")]
