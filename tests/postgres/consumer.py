"""A process with several threads that receive, complete and journal, until nothing comes."""

from __future__ import annotations

import os
import sys
import threading

import lazaretto


def consume(broker: lazaretto.Broker, journal: int, idle: float) -> None:
    with broker.receiver("work") as receiver:
        while messages := receiver.receive(5, max_wait=idle):
            for message in messages:
                os.write(journal, f"handed {message.message_id} {message.attempt}\n".encode())
            receiver.complete(messages)
            for message in messages:
                os.write(journal, f"completed {message.message_id}\n".encode())


def main(url: str, journal: str, threads: str, idle: str) -> None:
    file = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with lazaretto.connect(url, create=False) as broker:
        os.write(file, f"ready {os.getpid()}\n".encode())
        working = [
            threading.Thread(target=consume, args=(broker, file, float(idle))) for _ in range(int(threads))
        ]
        for thread in working:
            thread.start()
        for thread in working:
            thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
