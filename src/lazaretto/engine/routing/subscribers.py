"""Looks up a topic's subscriptions by their rules."""

from __future__ import annotations

import collections
import operator
from collections.abc import Sequence

from lazaretto.model.filters.rules import CompiledRules
from lazaretto.model.filters.stored import compiled
from lazaretto.model.filters.view import MessageView
from lazaretto.store.records.messages import QueueRecord
from lazaretto.store.sql.transaction import Transaction

_PLACE = operator.itemgetter(0)


class Subscribers:
    """A topic's subscriptions, indexed so that few rules are evaluated for each message.

    A subscription whose only rule is a correlation filter is found by one of the filter's values. All other
    rules are evaluated one by one. `everyone`: subscriptions that store every message unchanged.
    """

    def __init__(self, subscriptions: Sequence[QueueRecord]) -> None:
        self._asked: list[tuple[int, CompiledRules]] = []
        self._wanted: dict[tuple[str, str], dict[object, list[tuple[int, CompiledRules]]]] = {}
        self.records = tuple(subscriptions)
        everyone = []
        for place, record in enumerate(self.records):
            rules = compiled(record.rules)
            key = rules.wanted()
            if rules.takes_all and _keeps_as_it_is(record):
                everyone.append(record)
            elif key is None:
                self._asked.append((place, rules))
            else:
                name, value = key
                self._wanted.setdefault(name, {}).setdefault((type(value), value), []).append((place, rules))

        self.everyone = tuple(everyone)
        #: Whether there are other subscriptions, whose rules must be evaluated.
        self.asks = len(everyone) < len(self.records)

    def concerned(self, view: MessageView) -> list[tuple[QueueRecord, CompiledRules]]:
        """Return the other subscriptions that may match a message, in order."""
        matches = self._asked
        for name, by_value in self._wanted.items():
            value = view.get(*name)
            exact = by_value.get((type(value), value))
            if exact:
                matches = sorted([*matches, *exact], key=_PLACE)
        return [(self.records[place], rules) for place, rules in matches]


def _keeps_as_it_is(record: QueueRecord) -> bool:
    options = record.options
    return (
        options.forward_to is None and not options.requires_session and options.default_time_to_live is None
    )


#: Subscribers of the latest topics, by the identity of the list that the store returned.
_known: collections.OrderedDict[int, tuple[tuple[QueueRecord, ...], Subscribers]] = collections.OrderedDict()
_MOST_KNOWN = 64


def subscribers(tx: Transaction, topic: QueueRecord) -> Subscribers:
    """Return a topic's subscriptions; the same object as long as nothing has changed."""
    records = tx.topics.subscriptions(topic.queue_id)
    cached = _known.get(id(records))
    if cached is None or cached[0] is not records:
        cached = _known[id(records)] = records, Subscribers(records)
        while len(_known) > _MOST_KNOWN:
            _known.popitem(last=False)
    return cached[1]
