"""A worker on Azure's client for Python: CONNECTION_STRING QUEUE [SESSION].

It prints a line for each message, and ends when it has seen the body "end"; "exit" kills it, "down" is
abandoned, all else is completed. It prefetches as many as there are. While there is the file that DOWN names
in the environment, all is abandoned.
"""

import os
import sys
from pathlib import Path

from azure.servicebus import ServiceBusClient

down = os.environ.get("DOWN")
with ServiceBusClient.from_connection_string(sys.argv[1], retry_total=0) as client:
    session = sys.argv[3] if len(sys.argv) > 3 else None
    with client.get_queue_receiver(sys.argv[2], session_id=session, prefetch_count=100) as receiver:
        for message in receiver:
            body = str(message)
            print(body, message.delivery_count, flush=True)
            if body == "exit":
                os.abort()
            if body == "down" or (down is not None and Path(down).exists()):
                receiver.abandon_message(message)
                continue
            receiver.complete_message(message)
            if body == "end":
                break
