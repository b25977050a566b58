"""The words of all queries: a message's states, and the arithmetic of keys."""

from __future__ import annotations

from collections.abc import Mapping

from lazaretto.model.entities import Subqueue
from lazaretto.model.keys import (
    LAST_QUEUE,
    PARTITION_SEQUENCE_BITS,
    QUEUE_BITS,
    QUEUE_ID_BITS,
    SEQUENCE_BITS,
    SET_ASIDE,
    SUBQUEUE_BITS,
    place_of,
)
from lazaretto.store.records.claims import MOST_SHARDS
from lazaretto.store.records.messages import DEFERRED, DELAYED, FRESH, LOCKED, READY, SCHEDULED, SUSPECT
from lazaretto.store.sql.columns import PARTS
from lazaretto.store.sql.query_files import Words

_CONSTANTS = {
    "FRESH": FRESH,
    "READY": READY,
    "LOCKED": LOCKED,
    "DEFERRED": DEFERRED,
    "SCHEDULED": SCHEDULED,
    "DELAYED": DELAYED,
    "SUSPECT": SUSPECT,
    "DEAD_LETTER": place_of(Subqueue.DEAD_LETTER),
    "TRANSFER_DEAD_LETTER": place_of(Subqueue.TRANSFER_DEAD_LETTER),
    "SET_ASIDE": SET_ASIDE,
    "MOST_SHARDS": MOST_SHARDS,
}
_SUBQUEUE_MASK = (1 << SUBQUEUE_BITS) - 1

#: What SQL says where Python says the functions of the module keys. An index is on `queue_of`.
_KEYS = {
    "first_lane": f"({{0}}::bigint << {QUEUE_ID_BITS})",
    "queue_of_lane": f"{{0}} & {LAST_QUEUE}",
    "queue_of": f"{{0}} >> {QUEUE_BITS}",
    "place_of": f"({{0}} >> {SEQUENCE_BITS} & {_SUBQUEUE_MASK})",
    "main_key": f"{{0}} & ~(CAST({_SUBQUEUE_MASK} AS BIGINT) << {SEQUENCE_BITS})",
    "dead_key": f"{{0}} | ({{1}} << {SEQUENCE_BITS})",
    "lower_bound": f"({{0}} << {QUEUE_BITS})",
    "partition_bound": f"(({{0}} << {QUEUE_BITS}) + (CAST({{1}} AS BIGINT) << {PARTITION_SEQUENCE_BITS}))",
    "place_in": f"({{0}} << {SUBQUEUE_BITS} | {{1}})",
    "subqueue_bound": f"(({{0}} << {SUBQUEUE_BITS} | {{1}}) << {SEQUENCE_BITS})",
}


def words(of_database: Mapping[str, str]) -> Words:
    """Return the words of a database's queries: its own, and those of all."""
    return Words({**_KEYS, **of_database}, _CONSTANTS, PARTS)
