"""Runs stores on Citus, one for each worker, and an ordinary one beside them; checks and measures them.

    python contrib/citus/stores.py [SECONDS] [PROCESSESxTHREADS ...]

`up.sh` has started the servers. Each thread of each process sends a message, receives one and completes it,
in a loop. In the end the queues are emptied, and each message that was sent must have been handed out exactly
once. The ordinary store is in a database of the coordinator that has no extension. A spread is a partitioned
queue in both stores, which each process uses as one; each message has a key of its own. It is measured
through the coordinator, and with stores at the workers' own addresses.
"""

from __future__ import annotations

import collections
import contextlib
import multiprocessing
import os
import statistics
import sys
import threading
import time
import uuid
from collections.abc import Sequence
from typing import Any

import psycopg

import lazaretto
from lazaretto import Message, QueueOptions, spread

SERVER = os.environ.get("CITUS", "postgresql://lazaretto@127.0.0.1:26400")
WORKERS = os.environ.get(
    "CITUS_WORKERS", "postgresql://lazaretto@127.0.0.1:26401 postgresql://lazaretto@127.0.0.1:26402"
).split()
SHARDED = f"{SERVER}/postgres?options=-ccitus.enable_schema_based_sharding%3Don&schema="
BODY = b"x" * 1024
QUEUE = "work"


def host(urls: Sequence[str], home: int, threads: int, seconds: float, start: Any, out: Any) -> None:
    """Run one process: tell what it sent, what it was handed, and how long each cycle took."""
    sent: list[str] = []
    handed: list[str] = []
    took: list[float] = []
    with opened(urls, home) as broker:

        def run() -> None:
            sender, receiver = broker.sender(QUEUE), broker.receiver(QUEUE)
            end = time.perf_counter() + seconds
            while (begin := time.perf_counter()) < end:
                name = uuid.uuid4().hex
                sender.send(Message(BODY, message_id=name, partition_key=name if len(urls) > 1 else None))
                sent.append(name)
                found = receiver.receive(1, max_wait=5)
                receiver.complete(found)
                handed.extend(message.message_id for message in found)
                took.append(time.perf_counter() - begin)

        start.wait()
        workers = [threading.Thread(target=run) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    out.put((tuple(urls), sent, handed, took))


def opened(urls: Sequence[str], home: int) -> Any:
    """Open one store as a broker, several as a spread."""
    if len(urls) == 1:
        return lazaretto.connect(urls[0], timeout=60)
    return spread.connect(urls, home=home, timeout=60)


def measure(places: Sequence[Sequence[str]], processes: int, threads: int, seconds: float) -> str:
    """Run so many processes on each place at once; return what they did, or raise if a message was lost."""
    context = multiprocessing.get_context("spawn")
    start, out = context.Barrier(processes * len(places)), context.Queue()
    hosts = [
        context.Process(target=host, args=(urls, number % len(urls), threads, seconds, start, out))
        for urls in places
        for number in range(processes)
    ]
    for one in hosts:
        one.start()
    try:
        said = [out.get(timeout=seconds + 120) for _ in hosts]
    finally:
        for one in hosts:
            one.join(10)
            one.terminate()
    for urls in map(tuple, places):
        sent = collections.Counter(name for where, names, _, _ in said if where == urls for name in names)
        handed = collections.Counter(name for where, _, names, _ in said if where == urls for name in names)
        with opened(urls, 0) as broker:
            receiver = broker.receiver(QUEUE)
            while found := receiver.receive(100):
                receiver.complete(found)
                handed.update(message.message_id for message in found)
        if sent != handed:
            raise SystemExit(f"{urls}: lost {sent - handed}, twice or foreign {handed - sent}")
    took = [second for _, _, _, some in said for second in some]
    return f"{len(took) / seconds:,.0f} cycles/s, p50 {statistics.median(took) * 1e3:.1f} ms"


def main(words: Sequence[str]) -> None:
    seconds = float(words[0]) if words else 5.0
    layouts = [tuple(map(int, word.split("x"))) for word in words[1:] or ("1x1", "1x8", "4x1", "4x4")]
    name = uuid.uuid4().hex[:8]
    stores = [f"try_{name}_{place}" for place in range(2)]
    plain = f"plain_{name}"
    sharded = [SHARDED + store for store in stores]
    own = [f"{worker}/{plain}" for worker in WORKERS]
    with contextlib.ExitStack() as stack:
        for server in (SERVER, *WORKERS):
            connection = stack.enter_context(psycopg.connect(f"{server}/postgres", autocommit=True))
            connection.execute(f"CREATE DATABASE {plain}")
            stack.callback(connection.execute, f"DROP DATABASE IF EXISTS {plain} WITH (FORCE)")
        coordinator = stack.enter_context(psycopg.connect(f"{SERVER}/postgres", autocommit=True))
        for store in stores:
            stack.callback(coordinator.execute, f"DROP SCHEMA IF EXISTS {store} CASCADE")
        for url in (*sharded, *own, f"{SERVER}/{plain}"):
            with lazaretto.connect(url) as broker:
                broker.create_queue(QUEUE, QueueOptions(lock_duration=60, partitions=8))
        nodes = [
            {
                port
                for (port,) in coordinator.execute(
                    "SELECT nodeport FROM citus_shards WHERE table_name::text LIKE %s", (f"{store}.%",)
                )
            }
            for store in stores
        ]
        print("the stores' tables are on the nodes", nodes)
        if [len(some) for some in nodes] != [1, 1] or nodes[0] == nodes[1]:
            raise SystemExit("each store must be on a node of its own")
        cases = {
            "ordinary": [[f"{SERVER}/{plain}"]],
            "one store": [sharded[:1]],
            "two stores": [sharded[:1], sharded[1:]],
            "spread over both": [sharded],
            "spread over ordinary stores on the workers": [own],
        }
        for processes, threads in layouts:
            for case, places in cases.items():
                done = measure(places, processes, threads, seconds)
                print(f"{processes} x {threads}  {case:42}  {done}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
