-- Every statement the PostgreSQL store runs, beside those of the SQLite store, under the same names. A query starts with its name and what it is for.
-- A part is what several queries have in common: they say its name in brackets.
-- [rows] after VALUES stands for as many copies of the row as there are rows.

-- == queues ==

-- name: insert_queue
-- A new queue; its id.
INSERT INTO lazaretto_queues (path, path_key, options, created, updated, kind, topic_id, rules)
VALUES (%(path)s, %(path_key)s, %(options)s, %(created)s, %(updated)s, %(kind)s, %(topic_id)s, %(rules)s) RETURNING queue_id

-- name: insert_queues
-- New queues at those of these paths at which nothing is.
INSERT INTO lazaretto_queues (path, path_key, options, created, updated, kind, topic_id, rules)
VALUES [rows] (%s, %s, %s, %s, %s, %s, %s, %s)
ON CONFLICT (path_key) DO NOTHING

-- name: last_queue
-- The highest id of a queue.
SELECT coalesce(max(queue_id), 0) FROM lazaretto_queues

-- name: select_queues_after
-- The queues behind an id, in the order in which they came.
SELECT queue_id, path, options, status, halted_by, dead_letter_halted_by, breaker, created, updated,
       kind, topic_id, rules
FROM lazaretto_queues WHERE queue_id > %s ORDER BY queue_id

-- name: select_queue
-- One queue by path.
SELECT queue_id, path, options, status, halted_by, dead_letter_halted_by, breaker, created, updated,
       kind, topic_id, rules
FROM lazaretto_queues WHERE path_key = %s

-- name: select_queue_by_id
-- One queue by the id in its messages' keys.
SELECT queue_id, path, options, status, halted_by, dead_letter_halted_by, breaker, created, updated,
       kind, topic_id, rules
FROM lazaretto_queues WHERE queue_id = %s

-- name: select_queues
-- All queues by path.
SELECT queue_id, path, options, status, halted_by, dead_letter_halted_by, breaker, created, updated,
       kind, topic_id, rules
FROM lazaretto_queues ORDER BY path_key

-- name: select_subscriptions
-- The subscriptions of a topic by path.
SELECT queue_id, path, options, status, halted_by, dead_letter_halted_by, breaker, created, updated,
       kind, topic_id, rules
FROM lazaretto_queues WHERE topic_id = %s ORDER BY path_key

-- name: update_queue
-- The options and status of a queue.
UPDATE lazaretto_queues
SET options = %(options)s, status = %(status)s, halted_by = %(halted_by)s,
    dead_letter_halted_by = %(dead_letter_halted_by)s, breaker = %(breaker)s, updated = %(now)s,
    rules = %(rules)s
WHERE queue_id = %(queue_id)s

-- name: select_size
-- The bytes that an entity with a largest size holds.
SELECT size FROM lazaretto_queues WHERE queue_id = %s

-- name: grow
-- Add to the bytes that an entity with a largest size holds.
UPDATE lazaretto_queues SET size = size + %s WHERE queue_id = %s

-- name: set_size
-- The bytes of all messages of an entity, counted one by one.
UPDATE lazaretto_queues SET size = (
    SELECT coalesce(sum(coalesce(length(m.body),
        (SELECT length(b.body) FROM lazaretto_bodies b WHERE b.body_id = m.body_id), 0)
        + coalesce(length(m.headers), 0)), 0)
    FROM lazaretto_messages m JOIN lazaretto_queues q ON q.queue_id = %(queue_id)s OR q.topic_id = %(queue_id)s
    WHERE m.key > q.queue_id << 44 AND m.key < q.queue_id + 1 << 44)
WHERE queue_id = %(queue_id)s

-- name: sum_sizes
-- The bytes of some messages.
SELECT coalesce(sum(coalesce(length(m.body),
    (SELECT length(b.body) FROM lazaretto_bodies b WHERE b.body_id = m.body_id), 0)
    + coalesce(length(m.headers), 0)), 0)
FROM lazaretto_messages m WHERE key = ANY(%s)

-- name: sum_range
-- The bytes of all messages between two keys, or of those of them that are held under a lock.
SELECT coalesce(sum(coalesce(length(m.body),
    (SELECT length(b.body) FROM lazaretto_bodies b WHERE b.body_id = m.body_id), 0)
    + coalesce(length(m.headers), 0)), 0)
FROM lazaretto_messages m
WHERE key >= %(first)s AND key <= %(last)s AND (%(token)s::bigint IS NULL OR state = 2 AND lock_token = %(token)s)

-- name: set_idle_at
-- When an entity is deleted, unless it is used before.
UPDATE lazaretto_queues SET idle_at = %s WHERE queue_id = %s

-- name: select_idle
-- Entities that were not used for as long as they may be.
SELECT queue_id FROM lazaretto_queues WHERE idle_at <= %s ORDER BY idle_at LIMIT %s

-- name: next_idle
-- When an entity will have been unused for too long.
SELECT min(idle_at) FROM lazaretto_queues WHERE idle_at IS NOT NULL

-- name: make_due
-- Let the first active message of a queue be looked at now.
UPDATE lazaretto_messages SET due = %(now)s WHERE key = (
    SELECT key FROM lazaretto_messages WHERE key > %(first)s AND key <= %(last)s AND state IN (0, 1, 6)
    ORDER BY key LIMIT 1)

-- name: count_discarded
-- Add to the numbers of messages discarded.
UPDATE lazaretto_queues SET expired = expired + %(expired)s, dropped = dropped + %(dropped)s
WHERE queue_id = %(queue_id)s

-- name: select_rollbacks
-- How many receives from the queue were rolled back in a row.
SELECT rollbacks FROM lazaretto_queues WHERE queue_id = %s

-- name: set_rollbacks
-- Note how many receives from the queue were rolled back in a row.
UPDATE lazaretto_queues SET rollbacks = %(rollbacks)s WHERE queue_id = %(queue_id)s

-- name: select_high_water
-- The highest sequence number known to be used by messages that are gone.
SELECT sequence_number FROM lazaretto_high_water WHERE queue_id = %s ORDER BY sequence_number DESC LIMIT 1

-- name: set_high_water
-- Keep the highest sequence number when the message that has it goes.
WITH lower AS (
    DELETE FROM lazaretto_high_water
    WHERE queue_id = %(queue_id)s AND sequence_number = (
        SELECT sequence_number FROM lazaretto_high_water
        WHERE queue_id = %(queue_id)s ORDER BY sequence_number DESC LIMIT 1)
        AND sequence_number < %(sequence_number)s
)
INSERT INTO lazaretto_high_water (queue_id, sequence_number) SELECT %(queue_id)s, %(sequence_number)s
WHERE NOT EXISTS (
    SELECT 1 FROM lazaretto_high_water
    WHERE queue_id = %(queue_id)s AND sequence_number >= %(sequence_number)s)

-- name: select_last_key
-- The highest key within a subqueue.
SELECT key FROM lazaretto_messages WHERE key > %s AND key <= %s ORDER BY key DESC LIMIT 1

-- name: delete_queue
-- Free the path of a queue; its id is never used again.
WITH high_water AS (DELETE FROM lazaretto_high_water WHERE queue_id = %(queue_id)s)
DELETE FROM lazaretto_queues WHERE queue_id = %(queue_id)s

-- name: insert_deleted_queue
-- Note that a queue's messages are to be removed.
INSERT INTO lazaretto_deleted_queues (queue_id) VALUES (%s)

-- name: select_deleted_queue
-- A queue whose messages are to be removed.
SELECT queue_id FROM lazaretto_deleted_queues LIMIT 1

-- name: delete_deleted_queue
-- All of a queue's messages are removed.
DELETE FROM lazaretto_deleted_queues WHERE queue_id = %s

-- name: select_some_keys
-- Some messages of a range, to remove them.
SELECT key, body_id FROM lazaretto_messages WHERE key > %s AND key <= %s LIMIT %s

-- name: delete_attempts_range
-- The history of a deleted queue.
DELETE FROM lazaretto_attempts WHERE key > %s AND key <= %s

-- name: delete_dead_letters_range
-- The dead-letter records of a deleted queue.
DELETE FROM lazaretto_dead_letters WHERE key > %s AND key <= %s

-- name: delete_sessions_of
-- The sessions of a deleted queue.
DELETE FROM lazaretto_sessions WHERE queue_id = %s

-- name: delete_message_ids_of
-- The duplicate history of a deleted queue.
DELETE FROM lazaretto_message_ids WHERE queue_id = %s

-- name: select_standings
-- How queues stand: what was discarded, the size, subscriptions, sessions held back, the numbers of messages in
-- both dead-letter subqueues; and a row for each state that messages of the queue itself are in.
SELECT q.queue_id, expired, dropped, size,
       (SELECT count(*) FROM lazaretto_queues s WHERE s.topic_id = q.queue_id),
       (SELECT count(*) FROM lazaretto_sessions s
        WHERE s.held_key > q.queue_id << 44 AND s.held_key < q.queue_id + 1 << 44),
       (SELECT count(*) FROM lazaretto_messages m
        WHERE m.key > (q.queue_id << 2 | 1) << 42 AND m.key < (q.queue_id << 2 | 2) << 42),
       (SELECT count(*) FROM lazaretto_messages m
        WHERE m.key > (q.queue_id << 2 | 2) << 42 AND m.key < q.queue_id + 1 << 44),
       state, amount
FROM lazaretto_queues q LEFT JOIN LATERAL (
    SELECT state, sum(n)::bigint AS amount FROM (
        SELECT state, count(*) AS n FROM lazaretto_messages
        WHERE key > q.queue_id << 44 AND key < (q.queue_id << 2 | 1) << 42 GROUP BY state
        UNION ALL
        SELECT unnest(ARRAY[2, 0]), unnest(ARRAY[r.amount, -r.amount])
        FROM lazaretto_range_locks r WHERE last > q.queue_id << 44 AND last < (q.queue_id << 2 | 1) << 42
    ) AS counted GROUP BY state HAVING sum(n) > 0
) AS counts ON true
WHERE q.queue_id = ANY(%(ids)s)

-- == messages ==

-- name: insert_messages
-- New messages.
INSERT INTO lazaretto_messages
    (key, state, due, expires, enqueued, message_id, session_id, headers, body_id, body)
VALUES [rows] (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)

-- name: copy_messages
-- Many new messages.
COPY lazaretto_messages
    (key, state, due, expires, enqueued, message_id, session_id, headers, body_id, body)
FROM STDIN (FORMAT BINARY)

-- name: insert_routed
-- Messages that come to rest in a queue, from a topic or another queue.
INSERT INTO lazaretto_messages
    (key, state, due, expires, enqueued, message_id, session_id, headers, body_id, body,
     enqueued_sequence_number, generation, resubmitted_from)
VALUES [rows] (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)

-- name: repeat_routed
-- The messages that one subscription has just got, for another one.
INSERT INTO lazaretto_messages
    (key, state, due, expires, enqueued, message_id, session_id, headers, body_id, body,
     enqueued_sequence_number, generation, resubmitted_from)
SELECT key + %(shift)s, state, due, expires, enqueued, message_id, session_id, headers, body_id, body,
       enqueued_sequence_number, generation, resubmitted_from
FROM lazaretto_messages WHERE key >= %(first)s AND key <= %(last)s

-- name: select_last_body
-- Behind which id there are ids for bodies that nobody else takes.
SELECT nextval('lazaretto_body_blocks'::regclass) << 20

-- name: copy_bodies
-- Many bodies.
COPY lazaretto_bodies (body_id, body) FROM STDIN (FORMAT BINARY)

-- name: insert_bodies
-- Bodies too large to stand with their message, or of several messages.
INSERT INTO lazaretto_bodies (body_id, body) VALUES [rows] (%s, %s)

-- name: add_uses
-- Say how many messages have a body. One that is shared already has so many more, less the first.
INSERT INTO lazaretto_shared_bodies (body_id, uses) VALUES [rows] (%s, %s)
ON CONFLICT (body_id) DO UPDATE SET uses = lazaretto_shared_bodies.uses + excluded.uses - 1

-- name: insert_full_message
-- A message with a past: resubmitted, activated, or returned to its sender.
INSERT INTO lazaretto_messages
    (key, state, due, expires, enqueued, message_id, session_id, deliveries, failures, worker_deaths,
     lock_expiries, delivery_count, cycle_attempts, cycle, moves, generation, enqueued_sequence_number,
     resubmitted_from, headers, body_id, body)
VALUES
    (%(key)s, %(state)s, %(due)s, %(expires)s, %(enqueued)s, %(message_id)s, %(session_id)s, %(deliveries)s, %(failures)s,
     %(worker_deaths)s, %(lock_expiries)s, %(delivery_count)s, %(cycle_attempts)s, %(cycle)s, %(moves)s, %(generation)s,
     %(enqueued_sequence_number)s, %(resubmitted_from)s, %(headers)s, %(body_id)s, %(body)s)

-- name: select_fresh
-- The next messages of a subqueue that were never handed out.
SELECT key, coalesce(body, (SELECT b.body FROM lazaretto_bodies b WHERE b.body_id = m.body_id)),
       message_id, enqueued, expires, headers, body_id, deliveries + 1, delivery_count, cycle, generation,
       enqueued_sequence_number, NULL, NULL, cycle_attempts
FROM lazaretto_messages m
WHERE key > %s AND key <= %s AND state = 0 AND (expires IS NULL OR expires > %s)
ORDER BY key LIMIT %s

-- part: is_clear
-- Whether nothing is to be looked at before the next fresh messages of a queue are handed out, if that is asked,
-- and behind which key these stand: behind all that is locked.
SELECT NOT (%(look)s AND (
    EXISTS (SELECT 1 FROM lazaretto_messages WHERE due > %(since)s AND due <= %(now)s)
    OR EXISTS (SELECT 1 FROM lazaretto_range_locks WHERE until > %(since)s AND until <= %(now)s)
    OR EXISTS (SELECT 1 FROM lazaretto_sessions WHERE locked_until > %(since)s AND locked_until <= %(now)s)
    OR EXISTS (SELECT 1 FROM lazaretto_claims WHERE lease_until <= %(now)s)
    OR EXISTS (SELECT 1 FROM lazaretto_queues WHERE idle_at <= %(now)s)
    OR EXISTS (SELECT 1 FROM lazaretto_messages WHERE key > %(first)s AND key <= %(last)s AND state = 1)
    OR EXISTS (SELECT 1 FROM lazaretto_messages WHERE key > %(first)s AND key <= %(last)s AND state = 6)
)) AS clear,
coalesce((
    SELECT r.last FROM lazaretto_range_locks r WHERE r.last > %(start)s AND r.last <= %(last)s
    ORDER BY r.last DESC LIMIT 1), %(start)s) AS start

-- name: take_rows
-- Lock the next fresh messages of a queue, each under a token of a list, if nothing is to be looked at first. One
-- row, or one for each. They are looked up by a list of keys: a join may be planned for a table that seems empty,
-- and then reads all that is kept for an open transaction.
WITH clear AS ([is_clear]), next AS (
    SELECT ARRAY(
        SELECT key FROM lazaretto_messages
        WHERE (SELECT clear FROM clear) AND key > (SELECT start FROM clear) AND key <= %(last)s AND state = 0
            AND (expires IS NULL OR expires > %(now)s)
        ORDER BY key LIMIT %(limit)s) AS keys
), taken AS (
    UPDATE lazaretto_messages m
    SET state = 2, due = %(until)s, locked_at = %(now)s, locked_by = %(worker)s, deliveries = deliveries + 1,
        lock_token = (%(tokens)s::bigint[])[array_position((SELECT keys FROM next), m.key)]
    WHERE m.key = ANY((SELECT keys FROM next)::bigint[])
    RETURNING lock_token, m.key, coalesce(body, (SELECT b.body FROM lazaretto_bodies b WHERE b.body_id = m.body_id)),
        message_id, enqueued, expires, headers, body_id, deliveries, delivery_count, cycle, generation,
        enqueued_sequence_number, NULL::text, NULL::text, cycle_attempts
)
SELECT clear.clear, taken.* FROM clear LEFT JOIN taken ON true

-- name: take_range
-- The same for many, which are locked as a range.
WITH clear AS ([is_clear]), taken AS (
    SELECT %(token)s::bigint, key, coalesce(body, (SELECT b.body FROM lazaretto_bodies b WHERE b.body_id = m.body_id)),
           message_id, enqueued, expires, headers, body_id, deliveries + 1, delivery_count, cycle, generation,
           enqueued_sequence_number, NULL::text, NULL::text, cycle_attempts
    FROM lazaretto_messages m
    WHERE (SELECT clear FROM clear) AND key > (SELECT start FROM clear) AND key <= %(last)s AND state = 0
        AND (expires IS NULL OR expires > %(now)s)
    ORDER BY key LIMIT %(limit)s
), locked AS (
    INSERT INTO lazaretto_range_locks (last, first, token, until, locked_at, locked_by, amount)
    SELECT max(key), min(key), %(token)s, %(until)s, %(now)s, %(worker)s, count(*) FROM taken HAVING count(*) > 0
)
SELECT clear.clear, taken.* FROM clear LEFT JOIN taken ON true

-- name: select_ready
-- The first messages of a subqueue that were handed out before and are receivable again.
SELECT m.key, coalesce(body, (SELECT b.body FROM lazaretto_bodies b WHERE b.body_id = m.body_id)),
       m.message_id, m.enqueued, expires, headers, body_id, deliveries + 1, delivery_count, cycle,
       m.generation, enqueued_sequence_number, d.reason, d.description, cycle_attempts
FROM lazaretto_messages m
LEFT JOIN lazaretto_dead_letters d ON d.key = m.key & ~(3::bigint << 42) AND (m.key >> 42 & 3) <> 0
WHERE m.key > %s AND m.key <= %s AND state = 1 AND (expires IS NULL OR expires > %s)
ORDER BY m.key LIMIT %s

-- name: select_session_messages
-- The first receivable messages of a session, those handed out before first.
SELECT m.key, coalesce(body, (SELECT b.body FROM lazaretto_bodies b WHERE b.body_id = m.body_id)),
       message_id, enqueued, expires, headers, body_id, deliveries + 1, delivery_count, cycle,
       generation, enqueued_sequence_number, NULL, NULL, cycle_attempts
FROM lazaretto_messages m
WHERE m.key >> 44 = %s AND session_id = %s AND state = %s AND (expires IS NULL OR expires > %s) AND m.key < %s
ORDER BY m.key LIMIT %s

-- name: select_sizes
-- The bytes of the next messages of a subqueue in the order in which they are handed out: those that were before first, and
-- the fresh ones behind all that is locked as a range.
SELECT size FROM (
    SELECT * FROM (
        SELECT 0 AS part, key, coalesce(octet_length(body), (SELECT octet_length(b.body) FROM lazaretto_bodies b WHERE b.body_id = m.body_id)) + coalesce(octet_length(headers), 0) AS size
        FROM lazaretto_messages m
        WHERE key > %(first)s AND key <= %(last)s AND state = 1 AND (expires IS NULL OR expires > %(now)s)
        ORDER BY key LIMIT %(limit)s) AS ready
    UNION ALL
    SELECT * FROM (
        SELECT 1 AS part, key, coalesce(octet_length(body), (SELECT octet_length(b.body) FROM lazaretto_bodies b WHERE b.body_id = m.body_id)) + coalesce(octet_length(headers), 0) AS size
        FROM lazaretto_messages m
        WHERE key > coalesce((
                SELECT r.last FROM lazaretto_range_locks r WHERE r.last > %(start)s AND r.last <= %(last)s
                ORDER BY r.last DESC LIMIT 1), %(start)s)
            AND key <= %(last)s AND state = 0 AND (expires IS NULL OR expires > %(now)s)
        ORDER BY key LIMIT %(limit)s) AS fresh
) AS next ORDER BY part, key LIMIT %(limit)s

-- name: select_session_sizes
-- The same of a session.
SELECT size FROM (
    SELECT * FROM (
        SELECT 0 AS part, key, coalesce(octet_length(body), (SELECT octet_length(b.body) FROM lazaretto_bodies b WHERE b.body_id = m.body_id)) + coalesce(octet_length(headers), 0) AS size
        FROM lazaretto_messages m
        WHERE key >> 44 = %(queue_id)s AND session_id = %(session_id)s AND state = 1
            AND (expires IS NULL OR expires > %(now)s)
        ORDER BY key LIMIT %(limit)s) AS ready
    UNION ALL
    SELECT * FROM (
        SELECT 1 AS part, key, coalesce(octet_length(body), (SELECT octet_length(b.body) FROM lazaretto_bodies b WHERE b.body_id = m.body_id)) + coalesce(octet_length(headers), 0) AS size
        FROM lazaretto_messages m
        WHERE key >> 44 = %(queue_id)s AND session_id = %(session_id)s AND state = 0
            AND (expires IS NULL OR expires > %(now)s)
        ORDER BY key LIMIT %(limit)s) AS fresh
) AS next ORDER BY part, key LIMIT %(limit)s

-- name: select_messages
-- Messages by key, in a given state, whatever their order.
SELECT m.key, coalesce(body, (SELECT b.body FROM lazaretto_bodies b WHERE b.body_id = m.body_id)),
       m.message_id, m.enqueued, expires, headers, body_id, deliveries + 1, delivery_count, cycle,
       m.generation, enqueued_sequence_number, d.reason, d.description, cycle_attempts
FROM lazaretto_messages m
LEFT JOIN lazaretto_dead_letters d ON d.key = m.key & ~(3::bigint << 42) AND (m.key >> 42 & 3) <> 0
WHERE m.key = ANY(%s) AND state = %s
ORDER BY m.key

-- name: lock_range
-- Lock all receivable messages of one state between two keys.
UPDATE lazaretto_messages
SET state = 2, due = %s, lock_token = %s, locked_at = %s, locked_by = %s, deliveries = deliveries + 1
WHERE key >= %s AND key <= %s AND state = %s AND (expires IS NULL OR expires > %s)

-- name: lock_one
-- Lock one message. SQLite needs no list of the rows it is to change then, which is most of the cost.
UPDATE lazaretto_messages
SET state = 2, due = %s, lock_token = %s, locked_at = %s, locked_by = %s, deliveries = deliveries + 1
WHERE key = %s

-- name: lock_keys
-- Lock messages by key.
UPDATE lazaretto_messages
SET state = 2, due = %s, lock_token = %s, locked_at = %s, locked_by = %s, deliveries = deliveries + 1
WHERE key = ANY(%s)

-- name: delete_locked
-- Remove messages that are held under a lock, if it is still held.
DELETE FROM lazaretto_messages
WHERE key = ANY(%s) AND state = 2 AND lock_token = %s AND (due IS NULL OR due > %s)

-- name: delete_all_locked
-- Remove messages that are held under locks of their own, each by its token, or all by one. Fails if one is not
-- held any more.
WITH gone AS (
    DELETE FROM lazaretto_messages
    WHERE key = ANY(%(keys)s) AND state = 2 AND (due IS NULL OR due > %(now)s) AND lock_token = CASE
        WHEN cardinality(%(tokens)s::bigint[]) = 1 THEN (%(tokens)s::bigint[])[1]
        ELSE (%(tokens)s::bigint[])[array_position(%(keys)s::bigint[], key)] END
    RETURNING 1
)
SELECT 1 / (count(*) = %(amount)s)::int FROM gone

-- name: delete_all_ranged
-- The same for messages that may be locked as a range.
WITH range AS (
    SELECT first, last FROM lazaretto_range_locks
    WHERE last >= %(last)s AND first <= %(last)s AND token = %(token)s AND until > %(now)s ORDER BY last LIMIT 1
), gone AS (
    DELETE FROM lazaretto_messages
    WHERE key = ANY(%(keys)s) AND (
        state = 2 AND lock_token = %(token)s AND (due IS NULL OR due > %(now)s)
        OR state = 0 AND key >= (SELECT first FROM range) AND key <= (SELECT last FROM range))
    RETURNING state
), done AS (
    SELECT count(*) AS amount, count(*) FILTER (WHERE state = 0) AS ranged FROM gone
), ended AS (
    DELETE FROM lazaretto_range_locks
    WHERE last = (SELECT last FROM range) AND amount = (SELECT ranged FROM done)
), fewer AS (
    UPDATE lazaretto_range_locks SET amount = amount - (SELECT ranged FROM done)
    WHERE last = (SELECT last FROM range) AND amount > (SELECT ranged FROM done)
)
SELECT 1 / (amount = %(amount)s)::int FROM done

-- name: delete_one_locked
-- Remove a message that is held under a lock, if it is still held.
DELETE FROM lazaretto_messages
WHERE key = %s AND state = 2 AND lock_token = %s AND (due IS NULL OR due > %s)

-- name: select_locked
-- Which of these messages are held under this lock, their own or one of their range.
SELECT key FROM lazaretto_messages m
WHERE key = ANY(%(keys)s) AND (
    state = 2 AND lock_token = %(token)s AND (due IS NULL OR due > %(now)s)
    OR state = 0 AND EXISTS (
        SELECT 1 FROM (
            SELECT * FROM lazaretto_range_locks r WHERE r.last >= m.key ORDER BY r.last LIMIT 1) AS range
        WHERE first <= m.key AND token = %(token)s AND until > %(now)s))

-- name: select_held
-- The messages of these that are held under this lock, which stands in them.
SELECT key, state, due, expires, enqueued, message_id, session_id, lock_token, locked_at, locked_by,
       deliveries, failures, worker_deaths, lock_expiries, delivery_count, cycle_attempts, cycle, moves,
       generation, deferred, enqueued_sequence_number, resubmitted_from, headers, body_id, suspect
FROM lazaretto_messages
WHERE key = ANY(%(keys)s) AND state = 2 AND lock_token = %(token)s AND (due IS NULL OR due > %(now)s)

-- name: write_range_locks
-- Write the locks on ranges into their messages.
WITH ranges AS (DELETE FROM lazaretto_range_locks RETURNING *)
UPDATE lazaretto_messages m
SET state = 2, due = r.until, lock_token = r.token, locked_at = r.locked_at, locked_by = r.locked_by,
    deliveries = deliveries + 1
FROM ranges r
WHERE m.key >= r.first AND m.key <= r.last AND m.state = 0 AND (m.expires IS NULL OR m.expires > r.locked_at)

-- name: delete_messages
-- Remove messages by key.
DELETE FROM lazaretto_messages WHERE key = ANY(%s)

-- name: count_down_uses
-- Messages that had a shared body are gone; an id stands for each of them.
WITH gone AS (SELECT body_id, count(*) AS count FROM unnest(%s::bigint[]) AS body_id GROUP BY body_id)
UPDATE lazaretto_shared_bodies s SET uses = uses - (SELECT g.count FROM gone g WHERE g.body_id = s.body_id)
WHERE s.body_id = ANY(ARRAY(SELECT g.body_id FROM gone g))

-- name: delete_bodies
-- Remove the bodies of messages that are gone.
DELETE FROM lazaretto_bodies WHERE body_id = ANY(%s)

-- name: delete_unused_bodies
-- Remove the bodies of messages that are gone, but those that others have too.
DELETE FROM lazaretto_bodies AS b WHERE body_id = ANY(%s)
    AND coalesce((SELECT s.uses FROM lazaretto_shared_bodies s WHERE s.body_id = b.body_id), 0) < 1

-- name: delete_uses
-- Bodies that nobody has any more are not shared.
DELETE FROM lazaretto_shared_bodies WHERE body_id = ANY(%s) AND uses < 1

-- name: select_row
-- All that the engine decides by of one message; not its body.
SELECT key, state, due, expires, enqueued, message_id, session_id, lock_token, locked_at, locked_by,
       deliveries, failures, worker_deaths, lock_expiries, delivery_count, cycle_attempts, cycle, moves,
       generation, deferred, enqueued_sequence_number, resubmitted_from, headers, body_id, suspect
FROM lazaretto_messages WHERE key = %s

-- name: select_rows
-- The same of several messages.
SELECT key, state, due, expires, enqueued, message_id, session_id, lock_token, locked_at, locked_by,
       deliveries, failures, worker_deaths, lock_expiries, delivery_count, cycle_attempts, cycle, moves,
       generation, deferred, enqueued_sequence_number, resubmitted_from, headers, body_id, suspect
FROM lazaretto_messages WHERE key = ANY(%s)

-- name: select_active
-- The first active messages of a queue, as the engine decides by them.
SELECT key, state, due, expires, enqueued, message_id, session_id, lock_token, locked_at, locked_by,
       deliveries, failures, worker_deaths, lock_expiries, delivery_count, cycle_attempts, cycle, moves,
       generation, deferred, enqueued_sequence_number, resubmitted_from, headers, body_id, suspect
FROM lazaretto_messages WHERE key > %s AND key <= %s AND state IN (0, 1, 6) ORDER BY key LIMIT %s

-- name: select_due
-- The messages whose time has come, the longest due first.
SELECT key, state, due, expires, enqueued, message_id, session_id, lock_token, locked_at, locked_by,
       deliveries, failures, worker_deaths, lock_expiries, delivery_count, cycle_attempts, cycle, moves,
       generation, deferred, enqueued_sequence_number, resubmitted_from, headers, body_id, suspect
FROM lazaretto_messages WHERE due > %(since)s AND due <= %(now)s ORDER BY due LIMIT %(limit)s

-- name: select_session_locked
-- The messages a session's receiver holds.
SELECT key, state, due, expires, enqueued, message_id, session_id, lock_token, locked_at, locked_by,
       deliveries, failures, worker_deaths, lock_expiries, delivery_count, cycle_attempts, cycle, moves,
       generation, deferred, enqueued_sequence_number, resubmitted_from, headers, body_id, suspect
FROM lazaretto_messages
WHERE key >> 44 = %s AND session_id = %s AND state = 2

-- name: anything_due
-- Whether the time of any message, session or claim has come.
SELECT EXISTS (SELECT 1 FROM lazaretto_messages WHERE due > %(since)s AND due <= %(now)s)
    OR EXISTS (SELECT 1 FROM lazaretto_range_locks WHERE until > %(since)s AND until <= %(now)s)
    OR EXISTS (SELECT 1 FROM lazaretto_sessions WHERE locked_until > %(since)s AND locked_until <= %(now)s)
    OR EXISTS (SELECT 1 FROM lazaretto_claims WHERE lease_until <= %(now)s)
    OR EXISTS (SELECT 1 FROM lazaretto_queues WHERE idle_at <= %(now)s)

-- name: next_due
-- When the store must look at a message again.
SELECT least((SELECT min(due) FROM lazaretto_messages WHERE due > %(since)s AND due <= %(ahead)s),
             (SELECT min(until) FROM lazaretto_range_locks WHERE until > %(since)s AND until <= %(ahead)s))

-- name: update_row
-- The new standing of one message, its lock gone.
UPDATE lazaretto_messages
SET key = %(new_key)s, state = %(state)s, due = %(due)s, expires = %(expires)s, enqueued = %(enqueued)s,
    session_id = %(session_id)s, lock_token = NULL, locked_at = NULL, locked_by = NULL,
    deliveries = %(deliveries)s, failures = %(failures)s, worker_deaths = %(worker_deaths)s,
    lock_expiries = %(lock_expiries)s, delivery_count = %(delivery_count)s, cycle_attempts = %(cycle_attempts)s,
    cycle = %(cycle)s, moves = %(moves)s, generation = %(generation)s, deferred = %(deferred)s,
    enqueued_sequence_number = %(enqueued_sequence_number)s, resubmitted_from = %(resubmitted_from)s,
    suspect = %(suspect)s, headers = %(headers)s
WHERE key = %(key)s

-- name: update_rows
-- The new standing of several messages, their locks gone.
WITH new (
    key, new_key, state, due, expires, enqueued, session_id, deliveries, failures, worker_deaths, lock_expiries,
    delivery_count, cycle_attempts, cycle, moves, generation, deferred, enqueued_sequence_number,
    resubmitted_from, suspect, headers
) AS (VALUES [rows]
    (%s::bigint, %s::bigint, %s::int, %s::bigint, %s::bigint, %s::bigint, %s::text, %s::bigint, %s::bigint,
     %s::bigint, %s::bigint, %s::bigint, %s::bigint, %s::bigint, %s::bigint, %s::bigint, %s::int, %s::bigint,
     %s::bigint, %s::bigint, %s::bytea))
UPDATE lazaretto_messages AS m
SET key = n.new_key, state = n.state, due = n.due, expires = n.expires, enqueued = n.enqueued,
    session_id = n.session_id, lock_token = NULL, locked_at = NULL, locked_by = NULL,
    deliveries = n.deliveries, failures = n.failures, worker_deaths = n.worker_deaths,
    lock_expiries = n.lock_expiries, delivery_count = n.delivery_count, cycle_attempts = n.cycle_attempts,
    cycle = n.cycle, moves = n.moves, generation = n.generation, deferred = n.deferred,
    enqueued_sequence_number = n.enqueued_sequence_number, resubmitted_from = n.resubmitted_from,
    suspect = n.suspect, headers = n.headers
FROM new n WHERE m.key = n.key AND m.key = ANY(ARRAY(SELECT key FROM new))

-- name: update_counters
-- The counters of one message, its lock kept.
UPDATE lazaretto_messages
SET deliveries = %(deliveries)s, failures = %(failures)s, worker_deaths = %(worker_deaths)s,
    lock_expiries = %(lock_expiries)s, delivery_count = %(delivery_count)s, cycle_attempts = %(cycle_attempts)s,
    cycle = %(cycle)s, moves = %(moves)s
WHERE key = %(key)s

-- name: renew_lock
-- Prolong the lock on a message.
UPDATE lazaretto_messages SET due = %(until)s
WHERE key = %(key)s AND state = 2 AND lock_token = %(token)s AND due > %(now)s

-- name: renew_locks
-- Prolong the locks on messages.
UPDATE lazaretto_messages SET due = %(until)s
WHERE key = ANY(%(keys)s) AND state = 2 AND lock_token = %(token)s AND due > %(now)s

-- name: select_body
-- The body of one message.
SELECT coalesce(body, (SELECT b.body FROM lazaretto_bodies b WHERE b.body_id = m.body_id))
FROM lazaretto_messages m WHERE key = %s

-- part: as_it_stands
-- Messages as they stand.
SELECT m.key, coalesce(body, (SELECT b.body FROM lazaretto_bodies b WHERE b.body_id = m.body_id)),
       m.message_id, m.enqueued, expires, headers, body_id, deliveries + (r.until IS NOT NULL)::int,
       delivery_count, cycle, m.generation, enqueued_sequence_number, d.reason, d.description,
       CASE WHEN r.until IS NULL THEN state ELSE 2 END, CASE WHEN state = 2 THEN due ELSE r.until END
FROM lazaretto_messages m
LEFT JOIN LATERAL (
    SELECT first, until, locked_at FROM lazaretto_range_locks WHERE last >= m.key ORDER BY last LIMIT 1) r
    ON state = 0 AND r.first <= m.key AND (expires IS NULL OR expires > r.locked_at)
LEFT JOIN lazaretto_dead_letters d ON d.key = m.key & ~(3::bigint << 42) AND (m.key >> 42 & 3) <> 0

-- name: peek
-- Messages of a subqueue as they stand, from a sequence number on.
[as_it_stands]
WHERE m.key > %s AND m.key <= %s ORDER BY m.key LIMIT %s

-- name: peek_keys
-- Messages by key as they stand, whatever their order.
[as_it_stands]
WHERE m.key = ANY(%s)

-- name: peek_delayed
-- The same of the messages that wait for a retry.
SELECT m.key, coalesce(body, (SELECT b.body FROM lazaretto_bodies b WHERE b.body_id = m.body_id)),
       m.message_id, m.enqueued, expires, headers, body_id, deliveries, delivery_count, cycle, m.generation,
       enqueued_sequence_number, NULL, NULL, state, NULL
FROM lazaretto_messages m
WHERE m.key > %s AND m.key <= %s AND state = 5 ORDER BY m.key LIMIT %s

-- name: select_suspect
-- The first message of a subqueue that must be handed out alone.
SELECT m.key, coalesce(body, (SELECT b.body FROM lazaretto_bodies b WHERE b.body_id = m.body_id)),
       m.message_id, m.enqueued, expires, headers, body_id, deliveries + 1, delivery_count, cycle,
       m.generation, enqueued_sequence_number, d.reason, d.description, NULL
FROM lazaretto_messages m
LEFT JOIN lazaretto_dead_letters d ON d.key = m.key & ~(3::bigint << 42) AND (m.key >> 42 & 3) <> 0
WHERE m.key > %s AND m.key <= %s AND state = 6 AND (expires IS NULL OR expires > %s)
ORDER BY m.key LIMIT 1

-- == workers ==

-- name: register_worker
-- A process that is about to hold messages.
INSERT INTO lazaretto_workers (worker, machine, pid, born, seen)
VALUES (%(worker)s, %(machine)s, %(pid)s, %(born)s, %(now)s)
ON CONFLICT (worker) DO UPDATE SET seen = %(now)s

-- name: select_living_workers
-- The processes not known to be dead.
SELECT worker, machine, pid, born, seen FROM lazaretto_workers WHERE died IS NULL

-- name: select_worker
-- One process that holds or held messages.
SELECT machine, pid, born, seen, died FROM lazaretto_workers WHERE worker = %s

-- name: bury_worker
-- A process found dead.
UPDATE lazaretto_workers SET died = %(now)s WHERE worker = %(worker)s

-- name: beat
-- A process's sign of life.
UPDATE lazaretto_workers SET seen = %(now)s WHERE worker = %(worker)s

-- name: delete_worker
-- A process that has given up what it held.
DELETE FROM lazaretto_workers WHERE worker = %s

-- name: delete_old_workers
-- Forget processes that died so long ago that none of their locks can be left.
DELETE FROM lazaretto_workers WHERE died < %s

-- name: select_locked_by
-- The messages that a process holds, among those whose lock runs out until then.
SELECT key, state, due, expires, enqueued, message_id, session_id, lock_token, locked_at, locked_by,
       deliveries, failures, worker_deaths, lock_expiries, delivery_count, cycle_attempts, cycle, moves,
       generation, deferred, enqueued_sequence_number, resubmitted_from, headers, body_id, suspect
FROM lazaretto_messages
WHERE due <= %(until)s AND state = 2 AND locked_by = %(worker)s AND key > %(first)s AND key < %(end)s ORDER BY key

-- name: insert_lease
-- A hand-over to a service host.
INSERT INTO lazaretto_leases (token, worker, queue_id, session_id, keys, started)
VALUES (%(token)s, %(worker)s, %(queue_id)s, %(session_id)s, %(keys)s, %(started)s)
ON CONFLICT (token) DO UPDATE SET worker = excluded.worker, queue_id = excluded.queue_id, session_id =
    excluded.session_id, keys = excluded.keys, started = excluded.started

-- name: start_lease
-- The handlers of a hand-over are started.
UPDATE lazaretto_leases SET started = true WHERE token = %s

-- name: select_leases
-- What a process was handed and has not finished with.
SELECT token, worker, queue_id, session_id, keys, started FROM lazaretto_leases WHERE worker = %s

-- name: delete_lease
-- A hand-over that is finished.
DELETE FROM lazaretto_leases WHERE token = %s

-- == sessions ==

-- name: next_session_id
-- The next session after this one that has messages in the queue and is not held back.
SELECT session_id FROM lazaretto_messages m
WHERE key >> 44 = %(queue_id)s AND session_id > %(after)s AND session_id IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM lazaretto_sessions s
                  WHERE s.queue_id = %(queue_id)s AND s.session_id = m.session_id AND s.held_key IS NOT NULL)
ORDER BY session_id LIMIT 1

-- name: first_receivable_key
-- The first receivable message of a session.
SELECT min(key) FROM lazaretto_messages
WHERE key >> 44 = %s AND session_id = %s AND state IN (0, 1, 6) AND (expires IS NULL OR expires > %s)

-- name: first_delayed_key
-- The first message of a session that waits for a retry: later ones wait behind it.
SELECT min(key) FROM lazaretto_messages WHERE key >> 44 = %s AND session_id = %s AND state = 5

-- name: select_session
-- A session's lock and state.
SELECT lock_token, locked_until, locked_by, state, held_by FROM lazaretto_sessions
WHERE queue_id = %s AND session_id = %s

-- name: lock_session
-- Lock a session.
INSERT INTO lazaretto_sessions (queue_id, session_id, lock_token, locked_until, locked_by)
VALUES (%(queue_id)s, %(session_id)s, %(token)s, %(until)s, %(worker)s)
ON CONFLICT (queue_id, session_id) DO UPDATE
SET lock_token = %(token)s, locked_until = %(until)s, locked_by = %(worker)s

-- name: renew_session
-- Prolong the lock on a session.
UPDATE lazaretto_sessions SET locked_until = %(until)s WHERE queue_id = %(queue_id)s AND session_id = %(session_id)s

-- name: unlock_session
-- Give a session up.
UPDATE lazaretto_sessions SET lock_token = NULL, locked_until = NULL, locked_by = NULL
WHERE queue_id = %(queue_id)s AND session_id = %(session_id)s

-- name: delete_idle_session
-- Forget a session that is not locked and has no state.
DELETE FROM lazaretto_sessions
WHERE queue_id = %(queue_id)s AND session_id = %(session_id)s AND lock_token IS NULL AND state IS NULL
  AND held_key IS NULL

-- name: hold_session
-- Hold a session back until its poison message is decided on: of several, the first.
INSERT INTO lazaretto_sessions (queue_id, session_id, held_by, held_key)
VALUES (%(queue_id)s, %(session_id)s, %(held_by)s, %(key)s)
ON CONFLICT (queue_id, session_id) DO UPDATE
SET held_by = CASE WHEN lazaretto_sessions.held_key <= excluded.held_key
                   THEN lazaretto_sessions.held_by ELSE excluded.held_by END,
    held_key = CASE WHEN lazaretto_sessions.held_key <= excluded.held_key
                    THEN lazaretto_sessions.held_key ELSE excluded.held_key END

-- name: release_sessions
-- Let sessions go on that were held back by these messages.
UPDATE lazaretto_sessions SET held_by = NULL, held_key = NULL
WHERE held_key = ANY(%s) RETURNING queue_id, session_id

-- name: select_sessions_held_by
-- The sessions that messages hold back.
SELECT held_key, session_id FROM lazaretto_sessions WHERE held_key = ANY(%s)

-- name: select_held_sessions
-- The sessions of a queue that are held back, by the place of their poison message.
SELECT session_id, held_by FROM lazaretto_sessions
WHERE held_key > %(first)s AND held_key <= %(last)s ORDER BY held_key LIMIT %(limit)s

-- name: select_session_keys
-- Every message of a session.
SELECT key, state FROM lazaretto_messages WHERE key >> 44 = %s AND session_id = %s ORDER BY key

-- name: set_session_state
-- The state of a session.
UPDATE lazaretto_sessions SET state = %(state)s WHERE queue_id = %(queue_id)s AND session_id = %(session_id)s

-- name: select_due_sessions
-- The sessions whose lock has run out.
SELECT queue_id, session_id, lock_token FROM lazaretto_sessions
WHERE locked_until > %(since)s AND locked_until <= %(now)s ORDER BY locked_until LIMIT %(limit)s

-- name: next_due_session
-- When the store must look at a session again.
SELECT min(locked_until) FROM lazaretto_sessions WHERE locked_until > %(since)s AND locked_until <= %(ahead)s

-- name: select_sessions
-- The sessions of a queue that have messages, a lock or a state.
SELECT session_id FROM lazaretto_sessions WHERE queue_id = %(queue_id)s
UNION SELECT DISTINCT session_id FROM lazaretto_messages
WHERE key >> 44 = %(queue_id)s AND session_id IS NOT NULL ORDER BY 1

-- == duplicate detection ==

-- name: select_message_id
-- The sequence number under which a message id was sent before.
SELECT sequence_number FROM lazaretto_message_ids
WHERE queue_id = %s AND message_id = %s AND partition_key = %s AND forget_after > %s

-- name: insert_message_id
-- Remember a message id.
INSERT INTO lazaretto_message_ids
    (queue_id, message_id, partition_key, forget_after, sequence_number) VALUES (%s, %s, %s, %s, %s)
ON CONFLICT (queue_id, message_id, partition_key) DO UPDATE SET forget_after = excluded.forget_after,
    sequence_number = excluded.sequence_number

-- name: delete_message_id
-- Forget a message id, if it was sent under this number.
DELETE FROM lazaretto_message_ids
WHERE queue_id = %s AND message_id = %s AND partition_key = %s AND sequence_number = %s

-- name: delete_old_message_ids
-- Forget ids whose time is over, a chunk at a time.
DELETE FROM lazaretto_message_ids WHERE (queue_id, message_id, partition_key) IN
    (SELECT queue_id, message_id, partition_key FROM lazaretto_message_ids
     WHERE forget_after <= %s LIMIT %s)

-- == attempts and dead letters ==

-- name: insert_attempt
-- An attempt that did not complete.
INSERT INTO lazaretto_attempts
    (key, number, started, ended, worker, outcome, error_type, error_message, stack)
VALUES (%(key)s, %(number)s, %(started)s, %(ended)s, %(worker)s, %(outcome)s, %(error_type)s, %(error_message)s, %(stack)s)

-- name: select_attempts
-- The history of a message.
SELECT number, started, ended, worker, outcome, error_type, error_message, stack
FROM lazaretto_attempts WHERE key = %s ORDER BY number, id

-- name: select_last_error
-- The latest attempt of a message that had an error.
SELECT error_type, error_message, stack FROM lazaretto_attempts
WHERE key = %s AND error_type IS NOT NULL ORDER BY number DESC, id DESC LIMIT 1

-- name: trim_attempts
-- The oldest part of a history that is too long.
DELETE FROM lazaretto_attempts WHERE key = %s AND number <= %s

-- name: move_attempts
-- The history of a message that goes on under another key.
UPDATE lazaretto_attempts SET key = %s WHERE key = %s

-- name: delete_attempts
-- The history of messages that completed.
DELETE FROM lazaretto_attempts WHERE key = ANY(%s)

-- name: insert_dead_letter
-- Why a message was set aside.
INSERT INTO lazaretto_dead_letters
    (key, message_id, reason, description, error_type, error_message, dead_lettered, enqueued, generation,
     counters, resubmitted_from, subqueue)
VALUES (%(key)s, %(message_id)s, %(reason)s, %(description)s, %(error_type)s, %(error_message)s, %(now)s, %(enqueued)s, %(generation)s,
        %(counters)s, %(resubmitted_from)s, %(subqueue)s)
ON CONFLICT (key) DO UPDATE SET message_id = excluded.message_id, reason = excluded.reason, description =
    excluded.description, error_type = excluded.error_type, error_message = excluded.error_message,
    dead_lettered = excluded.dead_lettered, enqueued = excluded.enqueued, generation = excluded.generation,
    counters = excluded.counters, resubmitted_from = excluded.resubmitted_from, subqueue = excluded.subqueue,
    resolution = NULL, resolved = NULL, resubmitted_as = NULL

-- name: resolve_dead_letters
-- Dead letters that were dealt with.
UPDATE lazaretto_dead_letters SET resolution = %(resolution)s, resolved = %(now)s WHERE key = ANY(%(keys)s)

-- name: send_dead_letters
-- Dead letters that were sent back or elsewhere, and as what.
WITH sent (key, resubmitted_as, now, resolution) AS (
    VALUES [rows] (%s::bigint, %s::bigint, %s::bigint, %s::text))
UPDATE lazaretto_dead_letters AS d
SET resolution = s.resolution, resolved = s.now, resubmitted_as = s.resubmitted_as
FROM sent s WHERE d.key = s.key AND d.key = ANY(ARRAY(SELECT key FROM sent))

-- name: select_dead_letter
-- One dead letter, or what became of it.
SELECT key, message_id, reason, description, error_type, error_message, dead_lettered, enqueued, counters,
       generation, resubmitted_from, resolution, resolved, resubmitted_as, subqueue
FROM lazaretto_dead_letters WHERE key = %s

-- name: select_some_dead_letters
-- Several dead letters, or what became of them.
SELECT key, message_id, reason, description, error_type, error_message, dead_lettered, enqueued, counters,
       generation, resubmitted_from, resolution, resolved, resubmitted_as, subqueue
FROM lazaretto_dead_letters WHERE key = ANY(%s)

-- part: that_wait
-- Dead letters that wait, by a filter whose parts are null when not asked for.
FROM lazaretto_dead_letters d
WHERE d.key > %(first)s AND d.key <= %(last)s AND d.resolution IS NULL AND d.subqueue = %(subqueue)s
  AND (%(reason)s::text IS NULL OR d.reason = %(reason)s)
  AND (%(error_type)s::text IS NULL OR d.error_type = %(error_type)s)
  AND (%(since)s::bigint IS NULL OR d.dead_lettered >= %(since)s)
  AND (%(until)s::bigint IS NULL OR d.dead_lettered < %(until)s)
  AND (%(keys)s::bigint[] IS NULL OR d.key = ANY(%(keys)s))
  AND (%(text)s::text IS NULL OR strpos(d.description, %(text)s) > 0 OR strpos(d.error_message, %(text)s) > 0
       OR position(convert_to(%(text)s, 'UTF8') IN (
           SELECT coalesce(m.body, (SELECT b.body FROM lazaretto_bodies b WHERE b.body_id = m.body_id))
           FROM lazaretto_messages m WHERE m.key = d.key | (d.subqueue << 42))) > 0)
ORDER BY d.key LIMIT nullif(%(limit)s::bigint, -1)

-- name: select_dead_letters
-- What is known of such dead letters.
SELECT d.key, d.message_id, d.reason, d.description, d.error_type, d.error_message, d.dead_lettered,
       d.enqueued, d.counters, d.generation, d.resubmitted_from, d.resolution, d.resolved, d.resubmitted_as,
       d.subqueue
[that_wait]

-- name: select_dead_letter_keys
-- Which these are.
SELECT d.key
[that_wait]

-- name: group_dead_letters
-- Dead letters that wait, counted by reason and error type.
SELECT reason, error_type, count(*), min(dead_lettered), max(dead_lettered), min(key)
FROM lazaretto_dead_letters
WHERE key > %s AND key <= %s AND resolution IS NULL AND subqueue = %s
GROUP BY reason, error_type ORDER BY count(*) DESC, reason NULLS FIRST, error_type NULLS FIRST

-- name: select_resolved
-- Dead letters that were dealt with long ago.
SELECT key FROM lazaretto_dead_letters WHERE resolved < %s ORDER BY resolved LIMIT %s

-- name: delete_dead_letters
-- Records of dead letters that are no longer kept.
DELETE FROM lazaretto_dead_letters WHERE key = ANY(%s)

-- == events and audit ==

-- name: insert_events
-- What programs may follow.
INSERT INTO lazaretto_events (time, kind, queue, sequence_number, detail) VALUES [rows] (%s, %s, %s, %s, %s)

-- name: copy_events
-- Much of it.
COPY lazaretto_events (time, kind, queue, sequence_number, detail) FROM STDIN (FORMAT BINARY)

-- name: select_events
-- Events after a position.
SELECT position, time, kind, queue, sequence_number, detail FROM lazaretto_events
WHERE position > %(after)s AND (%(kind)s::text IS NULL OR kind = %(kind)s)
  AND (%(queue)s::text IS NULL OR lower(queue) = %(queue)s)
ORDER BY position LIMIT %(limit)s

-- name: last_event
-- The position of the latest event.
SELECT coalesce(max(position), 0) FROM lazaretto_events

-- name: delete_old_events
-- Forget old events, a chunk at a time.
DELETE FROM lazaretto_events WHERE position IN
    (SELECT position FROM lazaretto_events WHERE time < %s ORDER BY time LIMIT %s)

-- name: insert_audit
-- What an operator did.
INSERT INTO lazaretto_audit (time, actor, action, queue, detail)
VALUES (%(time)s, %(actor)s, %(action)s, %(queue)s, %(detail)s)

-- name: select_audit
-- What operators did, the latest first.
SELECT position, time, actor, action, queue, detail FROM lazaretto_audit
WHERE (%(queue)s::text IS NULL OR lower(queue) = %(queue)s) ORDER BY position DESC LIMIT %(limit)s

-- == claims ==

-- name: select_consumer
-- A consumer of claims.
SELECT queue_id, consumer, epoch, last_claim, settled, driver, attached, narrow, narrow_left, identity
FROM lazaretto_consumers WHERE queue_id = %s AND consumer = %s

-- name: save_consumer
-- How a consumer of claims stands.
INSERT INTO lazaretto_consumers
    (queue_id, consumer, epoch, last_claim, settled, driver, attached, narrow, narrow_left, identity)
VALUES (%(queue_id)s, %(consumer)s, %(epoch)s, %(last_claim)s, %(settled)s, %(driver)s, %(attached)s, %(narrow)s, %(narrow_left)s, %(identity)s)
ON CONFLICT (queue_id, consumer) DO UPDATE SET epoch = excluded.epoch, last_claim = excluded.last_claim,
    settled = excluded.settled, driver = excluded.driver, attached = excluded.attached, narrow =
    excluded.narrow, narrow_left = excluded.narrow_left, identity = excluded.identity

-- name: select_claims
-- A consumer's claims between two numbers.
SELECT queue_id, consumer, number, state, token, created, lease_until, rows, bytes, ended, summary
FROM lazaretto_claims WHERE queue_id = %s AND consumer = %s AND number > %s AND number <= %s ORDER BY number

-- name: select_all_claims
-- A queue's claims, the latest first.
SELECT queue_id, consumer, number, state, token, created, lease_until, rows, bytes, ended, summary
FROM lazaretto_claims WHERE queue_id = %s ORDER BY created DESC, number DESC LIMIT %s

-- name: select_due_claims
-- The claims whose lease has run out, and those that are being revoked.
SELECT queue_id, consumer, number, state, token, created, lease_until, rows, bytes, ended, summary
FROM lazaretto_claims WHERE lease_until <= %s ORDER BY lease_until LIMIT %s

-- name: save_claim
-- How a claim stands.
INSERT INTO lazaretto_claims
    (queue_id, consumer, number, state, token, created, lease_until, rows, bytes, ended, summary)
VALUES (%(queue_id)s, %(consumer)s, %(number)s, %(state)s, %(token)s, %(created)s, %(lease_until)s, %(rows)s, %(bytes)s, %(ended)s, %(summary)s)
ON CONFLICT (queue_id, consumer, number) DO UPDATE SET state = excluded.state,
    lease_until = excluded.lease_until, rows = excluded.rows, bytes = excluded.bytes,
    ended = excluded.ended, summary = excluded.summary

-- name: renew_claims
-- A longer lease for a consumer's open claims.
UPDATE lazaretto_claims SET lease_until = %(until)s
WHERE queue_id = %(queue_id)s AND consumer = %(consumer)s AND state = 'open' AND lease_until > %(now)s

-- name: delete_claims
-- A consumer's claims up to a number, which have ended.
DELETE FROM lazaretto_claims
WHERE queue_id = %s AND consumer = %s AND number <= %s AND lease_until IS NULL AND state <> 'open'

-- name: next_due_claim
-- When the store must look at a claim.
SELECT min(lease_until) FROM lazaretto_claims WHERE lease_until IS NOT NULL

-- name: select_shards
-- The shards of a claim.
SELECT token, claim_token, first, last, rows, reads, read_epoch, started, careful
FROM lazaretto_shards WHERE claim_token = %s ORDER BY token

-- name: select_shard
-- One shard.
SELECT token, claim_token, first, last, rows, reads, read_epoch, started, careful
FROM lazaretto_shards WHERE token = %s

-- name: save_shard
-- How a shard stands.
INSERT INTO lazaretto_shards (token, claim_token, first, last, rows, reads, read_epoch, started, careful)
VALUES (%(token)s, %(claim_token)s, %(first)s, %(last)s, %(rows)s, %(reads)s, %(read_epoch)s, %(started)s, %(careful)s)
ON CONFLICT (token) DO UPDATE SET claim_token = excluded.claim_token, first = excluded.first, last =
    excluded.last, rows = excluded.rows, reads = excluded.reads, read_epoch = excluded.read_epoch, started =
    excluded.started, careful = excluded.careful

-- name: delete_shards
-- The shards of a claim that has ended.
DELETE FROM lazaretto_shards WHERE claim_token = %s

-- name: delete_consumers_staged
-- What was staged for claims of a queue that is deleted.
DELETE FROM lazaretto_staged
WHERE claim_token IN (SELECT token FROM lazaretto_claims WHERE queue_id = %s)

-- name: delete_consumers_shards
-- The shards of claims of a queue that is deleted.
DELETE FROM lazaretto_shards
WHERE claim_token IN (SELECT token FROM lazaretto_claims WHERE queue_id = %s)

-- name: delete_consumers_claims
-- The claims of a queue that is deleted.
DELETE FROM lazaretto_claims WHERE queue_id = %s

-- name: delete_consumers
-- The consumers of a queue that is deleted.
DELETE FROM lazaretto_consumers WHERE queue_id = %s

-- name: insert_staged
-- What a task has done.
INSERT INTO lazaretto_staged (claim_token, stage, outcomes) VALUES (%s, %s, %s)

-- name: select_staged
-- What a task has done.
SELECT outcomes FROM lazaretto_staged WHERE claim_token = %s AND stage = %s ORDER BY id

-- name: delete_staged
-- What tasks have done, of a claim that has ended.
DELETE FROM lazaretto_staged WHERE claim_token = %s

-- name: select_claimable_fresh
-- The next messages that were never handed out: key and size, no bodies.
SELECT key, coalesce(length(body), (SELECT length(b.body) FROM lazaretto_bodies b WHERE b.body_id = m.body_id))
    + coalesce(length(headers), 0)
FROM lazaretto_messages m
WHERE key > %s AND key <= %s AND state = 0 AND (expires IS NULL OR expires > %s) ORDER BY key LIMIT %s

-- name: select_claimable_ready
-- The first messages that were handed out before and are receivable again: key and size, no bodies.
SELECT key, coalesce(length(body), (SELECT length(b.body) FROM lazaretto_bodies b WHERE b.body_id = m.body_id))
    + coalesce(length(headers), 0)
FROM lazaretto_messages m
WHERE key > %s AND key <= %s AND state = 1 AND (expires IS NULL OR expires > %s) ORDER BY key LIMIT %s

-- name: select_claimable_session
-- The first receivable messages of a session: key and size, no bodies.
SELECT key, coalesce(length(body), (SELECT length(b.body) FROM lazaretto_bodies b WHERE b.body_id = m.body_id))
    + coalesce(length(headers), 0)
FROM lazaretto_messages m
WHERE key >> 44 = %s AND session_id = %s AND state IN (0, 1) AND (expires IS NULL OR expires > %s) AND key < %s
ORDER BY key LIMIT %s

-- name: select_shard_keys
-- The messages that a shard still holds.
SELECT key FROM lazaretto_messages
WHERE key >= %(first)s AND key <= %(last)s AND state = 2 AND lock_token = %(token)s ORDER BY key LIMIT %(limit)s

-- name: select_shard_bodies
-- The large bodies of what a shard holds.
SELECT body_id FROM lazaretto_messages
WHERE key >= %(first)s AND key <= %(last)s AND state = 2 AND lock_token = %(token)s AND body_id IS NOT NULL

-- name: delete_shard_attempts
-- The history of what a shard holds, of those messages that were tried before.
DELETE FROM lazaretto_attempts WHERE key IN (
    SELECT key FROM lazaretto_messages
    WHERE key >= %(first)s AND key <= %(last)s AND state = 2 AND lock_token = %(token)s AND deliveries > 1)

-- name: delete_shard
-- All that a shard holds.
DELETE FROM lazaretto_messages WHERE key >= %(first)s AND key <= %(last)s AND state = 2 AND lock_token = %(token)s

-- name: release_shard
-- Give back all that a shard holds, as if it had never been handed out; suspects need a closer look.
UPDATE lazaretto_messages
SET state = 1, due = expires, deliveries = deliveries - 1, lock_token = NULL, locked_at = NULL, locked_by = NULL
WHERE key >= %(first)s AND key <= %(last)s AND state = 2 AND lock_token = %(token)s AND suspect = 0 AND deferred = 0

-- name: unlock_claimed_sessions
-- The sessions that a claim holds.
UPDATE lazaretto_sessions SET lock_token = NULL, locked_until = NULL, locked_by = NULL
WHERE locked_until IS NOT NULL AND queue_id = %s AND lock_token >= %s AND lock_token < %s RETURNING session_id

-- == the outbox ==

-- name: insert_outbox
-- Messages that a task has prepared.
INSERT INTO lazaretto_outbox (stage, messages, staged) VALUES (%s, %s, %s)

-- name: select_outbox
-- Messages that a task has prepared, in their order.
SELECT messages FROM lazaretto_outbox WHERE stage = %s ORDER BY id

-- name: delete_outbox
-- What a task has prepared and was sent, or will not be.
DELETE FROM lazaretto_outbox WHERE stage = %s

-- name: delete_old_outbox
-- What tasks have prepared that were never heard of again.
DELETE FROM lazaretto_outbox WHERE staged < %s

-- name: select_writer
-- The last batch of a writer that was sent.
SELECT batch FROM lazaretto_writers WHERE writer = %s

-- name: save_writer
-- The last batch of a writer that was sent.
INSERT INTO lazaretto_writers (writer, batch, seen) VALUES (%s, %s, %s)
ON CONFLICT (writer) DO UPDATE SET batch = excluded.batch, seen = excluded.seen
-- == the store ==

-- name: select_problems
-- What cannot be: messages without their body, dead letters without a message, messages that lie in a topic.
SELECT what, count FROM (
    SELECT 'messages whose body is missing' AS what, count(*) AS count FROM lazaretto_messages m
    WHERE m.body_id IS NOT NULL
      AND NOT EXISTS (SELECT 1 FROM lazaretto_bodies b WHERE b.body_id = m.body_id)
    UNION ALL
    SELECT 'dead letters whose message is missing', count(*) FROM lazaretto_dead_letters d
    WHERE d.resolution IS NULL
      AND NOT EXISTS (SELECT 1 FROM lazaretto_messages m WHERE m.key = d.key | (d.subqueue << 42))
      AND EXISTS (SELECT 1 FROM lazaretto_queues q WHERE q.queue_id = d.key >> 44)
    UNION ALL
    SELECT 'ranges that lock another number of messages', count(*) FROM lazaretto_range_locks r
    WHERE amount <> (SELECT count(*) FROM lazaretto_messages m
                     WHERE m.key >= r.first AND m.key <= r.last AND m.state = 0
                       AND (m.expires IS NULL OR m.expires > r.locked_at))
    UNION ALL
    SELECT 'messages in the topic ' || q.path || ', where nobody can receive them', count(*)
    FROM lazaretto_queues q
    JOIN lazaretto_messages m ON m.key > q.queue_id << 44 AND m.key < (q.queue_id + 1) << 44 AND m.state <> 4
    WHERE q.kind = 'topic' GROUP BY q.path
) AS problems WHERE count > 0

-- name: select_now
-- The version of what is stored, and the server's time.
SELECT last_value, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint FROM lazaretto_version

-- name: begin_as_expected
-- Wait to be the only writer. Fails if others have written since; else the server's time.
SELECT pg_advisory_xact_lock(%s, %s), 1 / (pg_sequence_last_value('lazaretto_version'::regclass) = %s)::int,
       CASE WHEN %s THEN set_config('synchronous_commit', 'off', true) END,
       (extract(epoch FROM clock_timestamp()) * 1000000)::bigint

-- name: move_on
-- The next version of what is stored, if anything was changed.
SELECT nextval('lazaretto_version'::regclass) WHERE pg_current_xact_id_if_assigned() IS NOT NULL

-- name: tell
-- The same, told to all who listen.
SELECT nextval('lazaretto_version'::regclass), pg_notify(%s, '') WHERE pg_current_xact_id_if_assigned() IS NOT NULL

-- name: flush
-- Wait until all that was committed before is as safe as the server's synchronous_commit makes it.
SELECT pg_logical_emit_message(true, 'lazaretto', '')

-- name: select_crowded
-- Tables that hold many rows which are gone, if nobody else looks after them at the moment.
SELECT relname::text FROM pg_stat_user_tables
WHERE schemaname = %s AND n_dead_tup > 20000 + n_live_tup / 10 AND pg_try_advisory_lock(%s, %s)

-- name: select_meta
-- What is known of the store itself.
SELECT name, value FROM lazaretto_meta

-- name: select_facts
-- The server's version, the bytes of a schema's tables, and how commits are synced.
SELECT current_setting('server_version'),
       (SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = %s AND c.relkind = 'r'),
       current_setting('synchronous_commit')
