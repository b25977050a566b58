"""Waits for messages one by one, and tells when it waits, and each message that it took."""

from __future__ import annotations

import sys
import threading
import time

import lazaretto
from lazaretto.broker.broker import store_of
from lazaretto.store.sql.store import Store


def main(place: str, busy: float) -> None:
    """Take what comes to the queue `q`. `busy`: how long each takes, in seconds."""
    with lazaretto.connect(place) as broker, broker.receiver("q", mode="receive_and_delete") as receiver:
        store = store_of(broker)
        assert isinstance(store, Store)
        notifier, receives = store.notifier, threading.Event()
        # A wake that goes to a frozen process is made good by the poll; most must not need it.
        store.poll = 10.0

        def tell() -> None:
            while True:
                receives.wait()
                receives.clear()
                while not notifier.waiting:
                    time.sleep(0.001)
                print("waits", flush=True)

        threading.Thread(target=tell, daemon=True).start()
        while True:
            receives.set()
            for message in receiver.receive(max_wait=600):
                print(message.body.decode(), flush=True)
                time.sleep(busy)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
