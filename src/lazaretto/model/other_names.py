"""Names of options in Service Bus, SQS, RabbitMQ, Celery and MSMQ, and their names here."""

from __future__ import annotations

import re
from collections.abc import Mapping

_ATTEMPTS = "policy=PoisonPolicy(receive_retry_count={less})"
_TIME_TO_LIVE = "default_time_to_live={value}"
_POLICY = "policy=PoisonPolicy({name}={value})"

#: By the name elsewhere, what to write instead, or why there is nothing to write.
_QUEUE = {
    # Service Bus
    "max_delivery_count": _ATTEMPTS,
    "default_message_time_to_live": _TIME_TO_LIVE,
    "dead_lettering_on_message_expiration": "dead_letter_on_expiration={value}",
    "enable_dead_lettering_on_message_expiration": "dead_letter_on_expiration={value}",
    "dead_lettering_on_filter_evaluation_exceptions": "dead_letter_on_filter_errors={value}",
    "duplicate_detection_history_time_window": "duplicate_detection_window={value}",
    "enable_duplicate_detection": "requires_duplicate_detection={value}",
    "enable_sessions": "requires_session={value}",
    "max_size_in_megabytes": "max_size=… in bytes",
    "max_message_size_in_kilobytes": "max_message_size=… in bytes",
    "enable_partitioning": "partitions=16",
    "enable_batched_operations": "nothing: what threads do at the same time shares a commit",
    "enable_express": "nothing: each message is on disk when send returns",
    "user_metadata": "annotations={{'metadata': …}}",
    "authorization_rules": "nothing: roles say who may do what, see broker.run(commands.GrantRole(…))",
    "status": "nothing: broker.set_status(path, …) switches a queue",
    # SQS
    "visibility_timeout": "lock_duration={value}",
    "message_retention_period": _TIME_TO_LIVE,
    "delay_seconds": "Message(scheduled_enqueue_time=…) for each message",
    "receive_message_wait_time_seconds": "receive(max_wait={value})",
    "max_receive_count": _ATTEMPTS,
    "redrive_policy": "policy=PoisonPolicy(receive_retry_count=…)",
    "dead_letter_target_arn": "forward_dead_lettered_messages_to=… if another queue is to have them",
    "fifo_queue": "requires_session=True",
    "content_based_deduplication": "requires_duplicate_detection=True, and a message_id for each message",
    "maximum_message_size": "max_message_size={value}",
    # RabbitMQ
    "durable": "nothing: each queue and message is durable",
    "exclusive": "requires_session=True, if one consumer is to have related messages",
    "auto_delete": "auto_delete_on_idle=… in seconds",
    "expires": "auto_delete_on_idle=… in seconds",
    "message_ttl": "default_time_to_live=… in seconds",
    "ttl": _TIME_TO_LIVE,
    "time_to_live": _TIME_TO_LIVE,
    "dead_letter_exchange": "forward_dead_lettered_messages_to=… if another queue is to have them",
    "dead_letter_routing_key": "forward_dead_lettered_messages_to=… if another queue is to have them",
    "dead_letter_queue": "forward_dead_lettered_messages_to=… if another queue is to have them",
    "delivery_limit": "policy=PoisonPolicy(receive_retry_count={value})",
    "max_length": "max_size=… in bytes",
    "max_length_bytes": "max_size={value}",
    "max_priority": "one queue for each priority",
    "priority": "one queue for each priority",
    "prefetch_count": "receive(max_messages={value}), or @handler(queue, batch_size={value})",
    "consumer_timeout": "lock_duration=… in seconds",
    "queue_mode": "nothing: bodies are on disk",
    "arguments": "options by their own names",
    # Celery
    "max_retries": "policy=PoisonPolicy(receive_retry_count={value})",
    "retries": "policy=PoisonPolicy(receive_retry_count={value})",
    "max_attempts": _ATTEMPTS,
    "default_retry_delay": "policy=PoisonPolicy(max_retry_cycles=…, retry_cycle_delay={value})",
    "retry_delay": "policy=PoisonPolicy(max_retry_cycles=…, retry_cycle_delay={value})",
    "retry_backoff": "policy=PoisonPolicy(max_retry_cycles=…, retry_cycle_delay=Backoff(…))",
    "acks_late": "nothing: a message is completed when its handler has returned",
    "time_limit": "@handler(queue, deadline={value})",
    "soft_time_limit": "@handler(queue, deadline={value})",
    "timeout": "@handler(queue, deadline={value}), or lock_duration={value}",
    "rate_limit": "@handler(queue, concurrency=…)",
    "ack_late": "nothing: a message is completed when its handler has returned",
    "reject_on_worker_lost": "policy=PoisonPolicy(max_worker_deaths=…)",
    "serializer": "nothing: a body is bytes, and Message.json(…) makes some of a value",
    "routes": "broker.sender(queue), by name",
    "default_queue": "broker.sender(queue), by name",
    "concurrency": "@handler(queue, concurrency={value})",
    "prefetch_multiplier": "@handler(queue, batch_size={value})",
    # MSMQ
    "receive_error_handling": "policy=PoisonPolicy(on_poison=…)",
    "use_journal_queue": "kept_samples=…, or broker.events()",
    "transactional": "nothing: each queue is transactional",
    "maximum_queue_size": "max_size=… in bytes",
    "time_to_be_received": _TIME_TO_LIVE,
    "maximum_retry_cycles": "policy=PoisonPolicy(max_retry_cycles={value})",
} | dict.fromkeys(
    (
        "receive_retry_count",
        "max_retry_cycles",
        "retry_cycle_delay",
        "on_poison",
        "on_invalid",
        "max_worker_deaths",
    ),
    _POLICY,
)
_MESSAGE = {
    # Service Bus and AMQP
    "application_properties": "properties={value}",
    "label": "subject={value}",
    "ttl": "time_to_live={value}",
    "absolute_expiry_time": "time_to_live=… in seconds",
    "group_id": "session_id={value}",
    "scheduled_enqueue_time_utc": "scheduled_enqueue_time=…",
    # SQS
    "message_body": "the first argument",
    "message_attributes": "properties={value}",
    "message_group_id": "session_id={value}",
    "message_deduplication_id": "message_id={value}",
    "delay_seconds": "scheduled_enqueue_time=…",
    # RabbitMQ
    "expiration": "time_to_live=… in seconds",
    "headers": "properties={value}",
    "delivery_mode": "nothing: each message is durable",
    "priority": "nothing: one queue for each priority",
    # Celery and others
    "countdown": "scheduled_enqueue_time=…",
    "delay": "scheduled_enqueue_time=…",
    "eta": "scheduled_enqueue_time={value}",
    "expires": "time_to_live=… in seconds",
    "id": "message_id={value}",
    "payload": "the first argument",
}
_OWN = {
    "Message": _MESSAGE,
    "QueueOptions": _QUEUE,
    "TopicOptions": {name: text for name, text in _QUEUE.items() if "policy" not in text},
    "PoisonPolicy": {
        "max_delivery_count": "receive_retry_count={less}",
        "max_receive_count": "receive_retry_count={less}",
        "max_attempts": "receive_retry_count={less}",
        "max_retries": "receive_retry_count={value}",
        "retries": "receive_retry_count={value}",
        "delivery_limit": "receive_retry_count={value}",
        "retry_delay": "max_retry_cycles=… and retry_cycle_delay={value}",
        "default_retry_delay": "max_retry_cycles=… and retry_cycle_delay={value}",
        "retry_backoff": "max_retry_cycles=… and retry_cycle_delay=Backoff(…)",
    },
    "HandlerOptions": {
        "time_limit": "deadline={value}",
        "soft_time_limit": "deadline={value}",
        "timeout": "deadline={value}",
        "max_concurrent_calls": "concurrency={value}",
        "prefetch_count": "batch_size={value}",
        "max_retries": "policy=PoisonPolicy(receive_retry_count={value})",
    },
}


def written_here(owner: str, name: str, given: object) -> str | None:
    """Return what to write instead of an option's name elsewhere, None if the name is not known.

    `owner`: the class of options that was given it. `given`: all that was given, with the values if known.
    """
    plain = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().replace("-", "_")
    plain = re.sub("^(x|task|worker)_", "", plain)
    text = _OWN.get(owner, {}).get(plain)
    if text is None:
        return None
    value = given.get(name) if isinstance(given, Mapping) else None
    literal = isinstance(value, int | float | bool | str)
    less = value - 1 if isinstance(value, int) and not isinstance(value, bool) and value > 0 else "…"
    return text.format(name=plain, value=repr(value) if literal else "…", less=less)
