"""Runs stores on Citus, one for each worker, and an ordinary one beside them; checks and measures them.

    python contrib/citus/stores.py [SECONDS] [PROCESSESxTHREADS ...]

`up.sh` has started the servers. Each thread of each process sends a message, receives one and completes it,
in a loop. In the end the queues are emptied, and each message that was sent must have been handed out exactly
once. The ordinary store is in a database of the coordinator that has no extension.
"""

from __future__ import annotations

import collections
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
from lazaretto import Message, QueueOptions

SERVER = os.environ.get("CITUS", "postgresql://lazaretto@127.0.0.1:26400")
SHARDED = f"{SERVER}/postgres?options=-ccitus.enable_schema_based_sharding%3Don&schema="
BODY = b"x" * 1024
QUEUE = "work"


def host(url: str, threads: int, seconds: float, start: Any, out: Any) -> None:
    """Run one process: tell what it sent, what it was handed, and how long each cycle took."""
    sent: list[str] = []
    handed: list[str] = []
    took: list[float] = []
    with lazaretto.connect(url, timeout=60) as broker:

        def run() -> None:
            sender, receiver = broker.sender(QUEUE), broker.receiver(QUEUE)
            end = time.perf_counter() + seconds
            while (begin := time.perf_counter()) < end:
                name = uuid.uuid4().hex
                sender.send(Message(BODY, message_id=name))
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
    out.put((url, sent, handed, took))


def measure(urls: Sequence[str], processes: int, threads: int, seconds: float) -> str:
    """Run so many processes on each store at once; return what they did, or raise if a message was lost."""
    context = multiprocessing.get_context("spawn")
    start, out = context.Barrier(processes * len(urls)), context.Queue()
    hosts = [
        context.Process(target=host, args=(url, threads, seconds, start, out))
        for url in urls
        for _ in range(processes)
    ]
    for one in hosts:
        one.start()
    try:
        said = [out.get(timeout=seconds + 120) for _ in hosts]
    finally:
        for one in hosts:
            one.join(10)
            one.terminate()
    for url in urls:
        sent = collections.Counter(name for where, names, _, _ in said if where == url for name in names)
        handed = collections.Counter(name for where, _, names, _ in said if where == url for name in names)
        with lazaretto.connect(url) as broker:
            receiver = broker.receiver(QUEUE)
            while found := receiver.receive(100):
                receiver.complete(found)
                handed.update(message.message_id for message in found)
        if sent != handed:
            raise SystemExit(f"{url}: lost {sent - handed}, twice or foreign {handed - sent}")
    took = [second for _, _, _, some in said for second in some]
    return f"{len(took) / seconds:,.0f} cycles/s, p50 {statistics.median(took) * 1e3:.1f} ms"


def main(words: Sequence[str]) -> None:
    seconds = float(words[0]) if words else 5.0
    layouts = [tuple(map(int, word.split("x"))) for word in words[1:] or ("1x1", "1x8", "4x1", "4x4")]
    stores = [f"try_{uuid.uuid4().hex[:8]}" for _ in range(2)]
    plain = f"plain_{uuid.uuid4().hex[:8]}"
    urls = [SHARDED + store for store in stores]
    with psycopg.connect(f"{SERVER}/postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {plain}")
        try:
            for url in (*urls, f"{SERVER}/{plain}"):
                with lazaretto.connect(url) as broker:
                    broker.create_queue(QUEUE, QueueOptions(lock_duration=60))
            places = [
                {
                    port
                    for (port,) in connection.execute(
                        "SELECT nodeport FROM citus_shards WHERE table_name::text LIKE %s", (f"{store}.%",)
                    )
                }
                for store in stores
            ]
            print("the stores' tables are on the nodes", places)
            if [len(some) for some in places] != [1, 1] or places[0] == places[1]:
                raise SystemExit("each store must be on a node of its own")
            for processes, threads in layouts:
                for name, some in (
                    ("ordinary", [f"{SERVER}/{plain}"]),
                    ("one store", urls[:1]),
                    ("two stores", urls),
                ):
                    done = measure(some, processes, threads, seconds)
                    print(f"{processes} x {threads}  {name:10}  {done}", flush=True)
        finally:
            for store in stores:
                connection.execute(f"DROP SCHEMA IF EXISTS {store} CASCADE")
            connection.execute(f"DROP DATABASE IF EXISTS {plain} WITH (FORCE)")


if __name__ == "__main__":
    main(sys.argv[1:])
