-- How queues stand, at a glance: from counts that are kept, and from the ends of ranges. See queries.sql.

-- name: sum_held_sessions
-- How many sessions each queue holds back.
SELECT [queue_of held_key], count(*) FROM lazaretto_sessions WHERE held_key IS NOT NULL GROUP BY 1

-- name: sum_dead_letters
-- How many dead letters wait in each place, since when, and how many fingerprints they have.
SELECT place, sum(waiting), min(since), count(*) FROM lazaretto_fingerprints WHERE waiting > 0 GROUP BY place

-- name: count_open_claims
-- How many claims are open.
SELECT count(*) FROM lazaretto_claims WHERE lease_until IS NOT NULL AND state = 'open'

-- name: select_concerned
-- Queues that are not as they should be, and these.
SELECT [queue_columns] FROM lazaretto_queues
WHERE kind <> 'topic' AND (status <> 'active' OR halted_by IS NOT NULL OR dead_letter_halted_by IS NOT NULL
    OR breaker IS NOT NULL OR queue_id [among ids])
ORDER BY path_key

-- name: count_holders
-- How many queues and subscriptions have a text in their path.
SELECT count(*) FROM lazaretto_queues WHERE kind <> 'topic' AND path_key LIKE :part ESCAPE '!'

-- name: select_holders
-- Queues and subscriptions by path, with a text in their path.
SELECT [queue_columns] FROM lazaretto_queues
WHERE kind <> 'topic' AND path_key LIKE :part ESCAPE '!' ORDER BY path_key LIMIT :limit

-- name: select_waiting
-- The ends of queues, how many messages stand there if these are few, and when the first was sent.
-- locks: not looked at
-- claims: not looked at
SELECT q.queue_id,
    (SELECT min(m.key) FROM lazaretto_messages m
     WHERE m.key > [lower_bound q.queue_id] AND m.key < [subqueue_bound q.queue_id, {DEAD_LETTER}]),
    (SELECT max(m.key) FROM lazaretto_messages m
     WHERE m.key > [lower_bound q.queue_id] AND m.key < [subqueue_bound q.queue_id, {DEAD_LETTER}]),
    (SELECT count(*) FROM (
        SELECT 1 FROM lazaretto_messages m
        WHERE m.key > [lower_bound q.queue_id] AND m.key < [subqueue_bound q.queue_id, {DEAD_LETTER}]
        LIMIT :few) AS counted),
    (SELECT m.enqueued FROM lazaretto_messages m
     WHERE m.key > [lower_bound q.queue_id] AND m.key < [subqueue_bound q.queue_id, {DEAD_LETTER}]
     ORDER BY m.key LIMIT 1)
FROM lazaretto_queues q WHERE q.queue_id [among ids]

-- name: select_waiting_in_partitions
-- The same of the partitions of queues, of which each has at most so many.
-- locks: not looked at
-- claims: not looked at
WITH RECURSIVE partitions (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM partitions WHERE n + 1 < :partitions)
SELECT q.queue_id,
    (SELECT min(m.key) FROM lazaretto_messages m
     WHERE m.key > [partition_bound q.queue_id, n] AND m.key < [partition_bound q.queue_id, n + 1]),
    (SELECT max(m.key) FROM lazaretto_messages m
     WHERE m.key > [partition_bound q.queue_id, n] AND m.key < [partition_bound q.queue_id, n + 1]),
    (SELECT count(*) FROM (
        SELECT 1 FROM lazaretto_messages m
        WHERE m.key > [partition_bound q.queue_id, n] AND m.key < [partition_bound q.queue_id, n + 1]
        LIMIT :few) AS counted),
    (SELECT m.enqueued FROM lazaretto_messages m
     WHERE m.key > [partition_bound q.queue_id, n] AND m.key < [partition_bound q.queue_id, n + 1]
     ORDER BY m.key LIMIT 1)
FROM lazaretto_queues q CROSS JOIN partitions WHERE q.queue_id [among ids]

-- name: select_unattended
-- Queues of which nobody has taken a message lately, though some wait: since when the first of them do. Only the first
-- few are looked at; of what is locked or claimed, somebody is at work.
-- locks: not looked at
-- claims: not looked at
SELECT queue_id, since FROM (
    SELECT q.queue_id AS queue_id, (
        SELECT CASE WHEN count(CASE WHEN state = {LOCKED} THEN 1 END) = 0
            THEN min(CASE WHEN state IN ({FRESH}, {READY}) THEN enqueued END) END
        FROM (SELECT m.state AS state, m.enqueued AS enqueued FROM lazaretto_messages m
              WHERE m.key > [lower_bound q.queue_id] AND m.key < [subqueue_bound q.queue_id, {DEAD_LETTER}]
              ORDER BY m.key LIMIT :few) AS first_ones) AS since
    FROM lazaretto_queues q
    WHERE q.kind <> 'topic' AND q.status = 'active' AND q.path_key LIKE :part ESCAPE '!' AND q.path_key <> :system
        AND NOT EXISTS (SELECT 1 FROM lazaretto_rates r
            WHERE r.queue_id = q.queue_id AND r.span = 1 AND r.start >= :minute AND r.received > 0)
        AND NOT EXISTS (SELECT 1 FROM lazaretto_claims c
            WHERE c.queue_id = q.queue_id AND c.state = 'open' AND c.lease_until > :now)
        AND NOT [has_range q.queue_id]) AS waiting
WHERE since < :before

-- name: sum_client_failures
-- How many messages of each queue failed at clients since a time, how many by locks that ran out, and when the first
-- did. Only the latest failures are looked at.
SELECT [queue_of key], count(DISTINCT key), count(DISTINCT CASE WHEN outcome = 'expired' THEN key END), min(ended)
FROM (SELECT key, outcome, worker, ended FROM lazaretto_attempts
      WHERE outcome IN ('failed', 'expired') AND ended >= :since ORDER BY ended DESC LIMIT :most) AS latest
WHERE worker LIKE :clients
GROUP BY 1

-- name: sum_hours
-- How many dead letters came to places in each hour, from one on.
SELECT place, hour, sum(letters) FROM lazaretto_cause_hours
WHERE place [among places] AND hour >= :hour GROUP BY place, hour
