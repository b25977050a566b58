"""Administers a broker's queues, topics, subscriptions and rules."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TypeVar, Unpack

from lazaretto.broker.dead_letters import checked_filter
from lazaretto.commands.desk import Maker
from lazaretto.engine.access import SESSION, TOKEN, Person, Token, find_people, find_tokens
from lazaretto.engine.command import formerly
from lazaretto.engine.entities.overview import Status, read_rates, read_status
from lazaretto.engine.entities.queues import (
    create_queues,
    describe,
    describe_all,
    refuse_topic,
    require_queue,
    update_queue,
)
from lazaretto.engine.entities.rules import change_rules
from lazaretto.engine.entities.status import SetStatus
from lazaretto.engine.entities.topics import (
    SubscriptionDescription,
    TopicDescription,
    create_subscription,
    create_topic,
    describe_subscription,
    describe_subscriptions,
    describe_topic,
    describe_topics,
    require_subscription,
    require_topic,
    update_topic,
)
from lazaretto.engine.four_eyes import FourEyesWish, four_eyes, four_eyes_wish
from lazaretto.engine.log import acting
from lazaretto.engine.maintenance import look
from lazaretto.engine.outcome.breakers import describe_breaker
from lazaretto.engine.outcome.dead_letter_operations import DeadLetterFilter
from lazaretto.engine.outcome.dead_letter_pages import ORDERS, DeadLetterPage, read_page
from lazaretto.engine.redaction import find_rules
from lazaretto.errors import InvalidOption, LazarettoError
from lazaretto.model.checks import GivenDuration, member, seconds, shown, text, whole
from lazaretto.model.descriptions import BreakerDescription, QueueDescription
from lazaretto.model.entities import (
    LONGEST_PATH,
    STATUSES,
    EntityKind,
    EntityPath,
    QueueOptions,
    QueueStatus,
    TopicOptions,
    dead_letter_path,
)
from lazaretto.model.filters.rules import Rule
from lazaretto.model.grants import person_name
from lazaretto.model.option_changes import QueueChanges, TopicChanges
from lazaretto.model.paths import subscription_path
from lazaretto.model.rates import KEPT, SPANS, Rate
from lazaretto.model.redaction import RedactionRule
from lazaretto.store.sql.store import Store
from lazaretto.store.sql.transaction import Transaction

T = TypeVar("T")

#: The most dead letters of a page.
_MOST_OF_PAGE = 1_000
#: The most characters of a cursor.
_LONGEST_CURSOR = 200


class Administration(Maker):
    """Creates, describes, changes, enables, disables and deletes entities.

    A message sent to a topic reaches every subscription whose rules match, in one commit. A subscription
    is a queue with a path such as `events/subscriptions/audit`: receive from it, peek at it and settle its
    messages as usual. It has the same subqueues.
    """

    # -- queues ---------------------------------------------------------------------------------

    def create_queue(
        self,
        path: str,
        options: QueueOptions | None = None,
        *,
        exist_ok: bool = False,
        actor: str | None = None,
    ) -> QueueDescription:
        """Create a queue. Raises EntityExists, InvalidPath.

        `exist_ok`: return one that exists with the same options. One with others is left as it is, and
        EntityExists names the differences.
        """
        return self.create_queues([path], options, exist_ok=exist_ok, actor=actor)[0]

    def create_queues(
        self,
        paths: Iterable[str],
        options: QueueOptions | None = None,
        *,
        exist_ok: bool = False,
        actor: str | None = None,
    ) -> list[QueueDescription]:
        """Create queues with the same options in one commit: all of them, or none.

        `exist_ok`: as in `create_queue`. Raises EntityExists, InvalidPath.
        """
        if isinstance(paths, str) or not isinstance(paths, Iterable):
            raise InvalidOption(f"expected paths to be several paths, got {shown(paths)}")
        if options is not None and not isinstance(options, QueueOptions):
            raise InvalidOption(f"expected options to be QueueOptions, got {shown(options)}")
        parsed = [EntityPath.parse(path) for path in paths]
        who, chosen = acting(actor), options or QueueOptions()
        return self._run(lambda tx: create_queues(tx, parsed, chosen, who, exist_ok=exist_ok))

    def queue(self, path: str) -> QueueDescription:
        """Return a queue: options, status and exact counts. Raises EntityNotFound."""
        parsed = EntityPath.parse(path)

        def find(tx: Transaction) -> QueueDescription:
            record = require_queue(tx, parsed)
            refuse_topic(record, "broker.topic(…) describes it")
            return describe(tx, record)

        return look(self._store, find)

    def queues(
        self,
        *,
        limit: int | None = None,
        after: str | None = None,
        name_contains: str | None = None,
        skip: int = 0,
    ) -> list[QueueDescription]:
        """Return queues by path, including the system's dead-letter queue.

        `limit`: at most so many, the only ones that are counted; `after`: those whose path comes after this
        one, such as the last of the page before; `name_contains`: those with this text in their path, without
        case; `skip`: without so many of the first ones. Default: all.
        """
        most, passed = _part(limit, skip)
        behind = "" if after is None else EntityPath.parse(after).key
        part = "" if name_contains is None else text("name_contains", name_contains, LONGEST_PATH).lower()
        return look(self._store, lambda tx: describe_all(tx, tx.queues.page(behind, part, most, passed)))

    def update_queue(
        self, path: str, *, actor: str | None = None, **changes: Unpack[QueueChanges]
    ) -> QueueDescription:
        """Change some of a queue's options, named as in QueueOptions."""
        parsed, who = EntityPath.parse(path), acting(actor)
        return self._run(lambda tx: update_queue(tx, parsed, changes, who))

    def set_status(self, path: str, status: QueueStatus | str, *, actor: str | None = None) -> QueueStatus:
        """Enable or disable a queue, topic or subscription; return its new status.

        "active", "disabled" (no sending, no receiving), "send_disabled" or "receive_disabled". A queue
        that forwards keeps its messages while receiving is disabled.
        """
        value = member("status", status, STATUSES).value
        return self._make(SetStatus(path=path, status=value), actor)

    def breaker(self, path: str) -> BreakerDescription:
        """Return the state of the queue's breaker, which pauses delivery to service hosts in an outage."""
        parsed = EntityPath.parse(path)
        return look(self._store, lambda tx: describe_breaker(require_queue(tx, parsed)))

    # -- topics ---------------------------------------------------------------------------------

    def create_topic(
        self,
        path: str,
        options: TopicOptions | None = None,
        *,
        exist_ok: bool = False,
        actor: str | None = None,
    ) -> TopicDescription:
        """Create a topic. `exist_ok`: as in `create_queue`. Raises EntityExists, InvalidPath."""
        if options is not None and not isinstance(options, TopicOptions):
            raise InvalidOption(f"expected options to be TopicOptions, got {shown(options)}")
        parsed, who, chosen = EntityPath.parse(path), acting(actor), options or TopicOptions()
        return self._run(lambda tx: create_topic(tx, parsed, chosen, who, exist_ok=exist_ok))

    def topic(self, path: str) -> TopicDescription:
        """Return a topic: options and counts. Raises EntityNotFound."""
        parsed = EntityPath.parse(path)
        return look(self._store, lambda tx: describe_topic(tx, require_topic(tx, parsed)))

    def topics(self, *, limit: int | None = None, skip: int = 0) -> list[TopicDescription]:
        """Return topics by path. `limit`: at most so many; `skip`: without so many of the first ones."""
        most, passed = _part(limit, skip)
        return look(
            self._store,
            lambda tx: describe_topics(tx, tx.queues.page("", "", most, passed, EntityKind.TOPIC)),
        )

    def update_topic(
        self, path: str, *, actor: str | None = None, **changes: Unpack[TopicChanges]
    ) -> TopicDescription:
        """Change some of a topic's options, named as in TopicOptions."""
        parsed, who = EntityPath.parse(path), acting(actor)
        return self._run(lambda tx: update_topic(tx, parsed, changes, who))

    @formerly(name="subscription")
    def create_subscription(
        self,
        topic: str,
        subscription: str,
        options: QueueOptions | None = None,
        rules: Sequence[Rule] | None = None,
        *,
        exist_ok: bool = False,
        actor: str | None = None,
    ) -> SubscriptionDescription:
        """Create a subscription of a topic. `rules` select its messages; by default it gets all.

        `exist_ok`: as in `create_queue`; the rules must be the same, too, if any are given. Raises
        EntityExists, EntityNotFound, InvalidPath.
        """
        if options is not None and not isinstance(options, QueueOptions):
            raise InvalidOption(f"expected options to be QueueOptions, got {shown(options)}")
        if rules is not None and (isinstance(rules, str | bytes) or not isinstance(rules, Sequence)):
            raise InvalidOption(f"expected rules to be a list of Rule objects, got {shown(rules)}")
        parsed, who, chosen = EntityPath.parse(topic), acting(actor), options or QueueOptions()
        return self._run(
            lambda tx: create_subscription(tx, parsed, subscription, chosen, rules, who, exist_ok=exist_ok)
        )

    def subscription(self, topic: str, name: str) -> SubscriptionDescription:
        """Return a subscription: options, status, exact counts and rules. Raises EntityNotFound."""
        parsed = EntityPath.parse(topic)
        return look(self._store, lambda tx: describe_subscription(tx, require_subscription(tx, parsed, name)))

    def subscriptions(
        self, topic: str, *, limit: int | None = None, skip: int = 0
    ) -> list[SubscriptionDescription]:
        """Return a topic's subscriptions by name. Raises EntityNotFound.

        `limit`: at most so many; `skip`: without so many of the first ones.
        """
        parsed = EntityPath.parse(topic)
        most, passed = _part(limit, skip)
        return look(
            self._store,
            lambda tx: describe_subscriptions(
                tx, tx.topics.subscriptions(require_topic(tx, parsed).queue_id)[passed : passed + most]
            ),
        )

    @formerly(name="subscription")
    def update_subscription(
        self, topic: str, subscription: str, *, actor: str | None = None, **changes: Unpack[QueueChanges]
    ) -> SubscriptionDescription:
        """Change some of a subscription's options, named as in QueueOptions."""
        parsed, who = subscription_path(topic, subscription), acting(actor)
        self._run(lambda tx: update_queue(tx, parsed, changes, who))
        return self.subscription(topic, subscription)

    @formerly(name="subscription")
    def add_rule(
        self, topic: str, subscription: str, rule: Rule, *, exist_ok: bool = False, actor: str | None = None
    ) -> SubscriptionDescription:
        """Add a rule to a subscription; it applies to later messages. Raises EntityExists.

        `exist_ok`: as in `create_queue`, for a rule of the same name.
        """
        parsed, who = EntityPath.parse(topic), acting(actor)
        return self._run(
            functools.partial(
                change_rules, topic=parsed, name=subscription, actor=who, added=rule, exist_ok=exist_ok
            )
        )

    @formerly(name="subscription")
    def update_rule(
        self, topic: str, subscription: str, rule: Rule, *, actor: str | None = None
    ) -> SubscriptionDescription:
        """Replace the rule of the same name, in one commit. Raises EntityNotFound."""
        parsed, who = EntityPath.parse(topic), acting(actor)
        if not isinstance(rule, Rule):
            raise InvalidOption(f"expected rule to be a Rule, got {shown(rule)}")
        return self._run(
            functools.partial(
                change_rules, topic=parsed, name=subscription, actor=who, added=rule, removed=rule.name
            )
        )


def _part(limit: int | None, skip: int) -> tuple[int, int]:
    """Return how many of a list are wanted at most, and how many before them are not."""
    return 1 << 30 if limit is None else whole("limit", limit, 1, 1 << 30), whole("skip", skip, 0, 1 << 30)


class AccessDesk:
    """Lists people and what stands for them."""

    _store: Store

    def people(self) -> list[Person]:
        """Return the people and groups that were granted something, by name."""
        return look(self._store, find_people)

    def tokens(self, person: str | None = None) -> list[Token]:
        """Return the tokens of a person or of all, the latest first."""
        name = None if person is None else person_name(person)
        return look(self._store, lambda tx: find_tokens(tx, TOKEN, name))

    def browser_sessions(self, person: str | None = None) -> list[Token]:
        """Return the sessions of a person or of all in browsers, the latest first."""
        name = None if person is None else person_name(person)
        return look(self._store, lambda tx: find_tokens(tx, SESSION, name))

    def four_eyes(self) -> int | None:
        """Return the most letters that one person may send or delete in an hour; None: any number."""
        return look(self._store, four_eyes)

    def four_eyes_wish(self) -> FourEyesWish | None:
        """Return the wish to let one person send more that waits for a second person; None: there is none."""
        return look(self._store, four_eyes_wish)

    def redaction(self) -> list[RedactionRule]:
        """Return the rules for fields of messages that people may not read."""
        return list(look(self._store, find_rules))


class ListingDesk:
    """Lists dead letters by pages, and how queues stand."""

    _store: Store

    def status(self, *, limit: int | None = 50, name_contains: str | None = None) -> Status:
        """Return how queues and subscriptions stand, those in trouble first, without counting messages.

        `limit`: at most so many; None: all. `name_contains`: those with this text in their path, without
        case.
        """
        most = None if limit is None else whole("limit", limit, 1, 1 << 30)
        part = "" if name_contains is None else text("name_contains", name_contains, LONGEST_PATH).lower()
        return look(self._store, lambda tx: read_status(tx, most, part))

    def rates(self, path: str | None = None, *, span: str = "minute", limit: int = 60) -> list[Rate]:
        """Return what happened to a queue's messages in the latest minutes or hours, oldest first.

        The last one is not over yet. `path`: None for all queues together, also those deleted since. `span`:
        "minute" (kept for a day) or "hour" (kept for 30 days). `limit`: how many. What other processes did
        in the last second or two may be missing. Raises EntityNotFound.
        """
        minutes = member("span", span, SPANS)
        most = whole("limit", limit, 1, KEPT[span])
        parsed = None if path is None else EntityPath.parse(path)
        with suppress(LazarettoError):
            # What cannot be written is missing; what was written is shown.
            self._store.write_rates()
        return look(self._store, lambda tx: read_rates(tx, parsed, minutes, most))

    def dead_letter_page(
        self,
        path: str,
        which: DeadLetterFilter | None = None,
        *,
        limit: int = 50,
        cursor: str | None = None,
        order: str = "-number",
        budget: GivenDuration = 0.25,
    ) -> DeadLetterPage:
        """Return a page of a queue's pending dead letters, with the first 200 bytes of each body.

        `limit`: at most 1,000. `order`: "number" or "time" (of dead-lettering), ascending, or "-number",
        "-time", descending. `cursor`: the `next` or `previous` of another page with the same queue, filter
        and order. A filter by text, reason, error type or condition searches the queue for `budget` seconds;
        the page may then have less than `limit`, and its `next` continues the search.
        """
        parsed, filter_ = dead_letter_path(EntityPath.parse(path)), checked_filter(which)
        whole("limit", limit, 1, _MOST_OF_PAGE)
        if cursor is not None:
            text("cursor", cursor, _LONGEST_CURSOR)
        order_ = member("order", order, ORDERS)
        longest = seconds("budget", budget)
        return look(
            self._store,
            lambda tx: read_page(
                tx, parsed, filter_, limit=limit, cursor=cursor, order=order_, budget=longest
            ),
        )
