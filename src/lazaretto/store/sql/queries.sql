-- The queries that both databases run.
--
-- :name is a parameter. Values without names are given in the order in which the text first uses them.
-- [name] is a part, [name argument] a word: each database's module `dialect` has its own words, and the module
-- `words` has those of all. {NAME} is a state of a message or a number of a subqueue.
-- [rows] after VALUES stands for as many copies of the row as there are rows.
-- `locks: written first`: the locks on ranges of messages are written into the messages before the query runs;
-- `locks: its own written first`: only into those that it names by :key, by :keys, or as the key of each row.
-- `locks: not looked at`: the query looks at nobody's lock, or only at messages that no range locks.
-- `claims: written first`: the locks that claims have on ranges are written into the messages that the query names,
-- by :key, by :keys, or as all behind :first up to :last, before it runs.
-- `claims: not looked at`: the query looks at nobody's lock, or only at messages that no claim locks by a range.
-- A commit that holds single queues runs what writes rows of the queues that a parameter names. `confined: in queues
-- that are held`: the query names none, and its rows belong to these; without that, no rows are inserted then.
-- `confined: changes how a queue is set`: others go by that without holding the queue, so the store's lock is taken.

-- == parts of several queries ==

-- part: queue_columns
-- What is known of a queue, in the order of queue_record.
queue_id, path, options, status, halted_by, dead_letter_halted_by, breaker, created, updated,
       kind, topic_id, rules, redacted

-- part: dead_letter_columns
-- A dead letter, in the order of DeadLetterRecord.
key, message_id, reason, description, error_type, error_message, dead_lettered, enqueued, counters,
       generation, resubmitted_from, resolution, resolved, resubmitted_as, subqueue, fingerprint

-- part: letter_columns
-- The same where other tables may be asked, too.
d.key, d.message_id, d.reason, d.description, d.error_type, d.error_message, d.dead_lettered, d.enqueued,
       d.counters, d.generation, d.resubmitted_from, d.resolution, d.resolved, d.resubmitted_as, d.subqueue,
       d.fingerprint

-- part: claim_columns
-- A claim, in the order of ClaimRecord.
queue_id, consumer, number, state, token, created, lease_until, rows, bytes, ended, summary

-- part: shard_columns
-- A shard, in the order of ShardRecord.
token, claim_token, first, last, rows, reads, read_epoch, started, task, careful

-- part: body
-- The body of a message, which is in its row or stands by itself.
coalesce(body, (SELECT b.body FROM lazaretto_bodies b WHERE b.body_id = m.body_id))

-- part: bytes
-- The bytes of a message.
coalesce(length(body), (SELECT length(b.body) FROM lazaretto_bodies b WHERE b.body_id = m.body_id), 0)
    + coalesce(length(headers), 0)

-- part: lives
-- Whether a message has not expired.
(expires IS NULL OR expires > :now)

-- part: held
-- Whether a message is held under a lock that has not run out.
state = {LOCKED} AND lock_token = :token AND (due IS NULL OR due > :now)

-- part: is_active
-- Whether a message is active.
state IN ({FRESH}, {READY}, {SUSPECT})

-- part: is_ranged
-- Whether a message between the ends of a claim's range is locked by it.
state = {FRESH} AND due IS NULL

-- part: is_claimed
-- Whether a claim locks a message by a range.
(m.state = {FRESH} AND m.due IS NULL AND (
    SELECT c.first FROM lazaretto_claimed_ranges c WHERE c.last >= m.key ORDER BY c.last LIMIT 1) <= m.key) IS TRUE

-- part: write_claimed
-- Write the locks that claims have on ranges into some of their messages.
UPDATE lazaretto_messages AS m
SET state = {LOCKED}, deliveries = deliveries + 1,
    lock_token = (SELECT c.token FROM lazaretto_claimed_ranges c WHERE c.last >= m.key ORDER BY c.last LIMIT 1),
    locked_at = (SELECT c.locked_at FROM lazaretto_claimed_ranges c WHERE c.last >= m.key ORDER BY c.last LIMIT 1),
    locked_by = (SELECT c.locked_by FROM lazaretto_claimed_ranges c WHERE c.last >= m.key ORDER BY c.last LIMIT 1)

-- part: in_shard
-- Whether a message is held by a shard, in a part of it that one range locks, or none.
key >= :first AND key <= :last
    AND (state = {LOCKED} AND lock_token = :token OR CAST(:ranged AS BOOLEAN) AND [is_ranged])

-- part: lock
-- Lock messages.
UPDATE lazaretto_messages
SET state = {LOCKED}, due = :until, lock_token = :token, locked_at = :now, locked_by = :worker,
    deliveries = deliveries + 1

-- part: received
-- A message as it is handed over, in the order of ReceivedMessage, but for what is behind.
m.key, [body], m.message_id, m.enqueued, m.expires, m.headers, m.body_id,
       m.deliveries + 1, m.delivery_count, m.cycle, m.generation, m.enqueued_sequence_number

-- part: dead_letter
-- A message's record as a dead letter, if it is one.
LEFT JOIN lazaretto_dead_letters d ON d.key = [main_key m.key] AND [place_of m.key] <> 0

-- part: standing
-- How a queue stands, in the order of Standing. Dead letters are counted by what counts them by fingerprint: those of
-- an older version have none.
q.queue_id, expired, dropped, size,
       (SELECT count(*) FROM lazaretto_queues s WHERE s.topic_id = q.queue_id),
       (SELECT count(*) FROM lazaretto_sessions s
        WHERE s.held_key > [lower_bound q.queue_id] AND s.held_key < [lower_bound q.queue_id + 1]),
       (SELECT max(coalesce(
            (SELECT max(r.start) FROM lazaretto_rates r WHERE r.queue_id = s.queue_id AND r.span = 1),
            (SELECT max(r.start) FROM lazaretto_rates r WHERE r.queue_id = s.queue_id AND r.span = 60)))
        FROM lazaretto_queues s WHERE s.queue_id = q.queue_id OR s.topic_id = q.queue_id),
       (SELECT coalesce(CAST(sum(f.waiting) AS BIGINT), 0) FROM lazaretto_fingerprints f
        WHERE f.place = [place_in q.queue_id, {DEAD_LETTER}])
       + (SELECT count(*) FROM lazaretto_dead_letters d
          WHERE d.fingerprint IS NULL AND d.resolution IS NULL AND d.subqueue = {DEAD_LETTER}
              AND d.key > [lower_bound q.queue_id] AND d.key < [lower_bound q.queue_id + 1]),
       (SELECT coalesce(CAST(sum(f.waiting) AS BIGINT), 0) FROM lazaretto_fingerprints f
        WHERE f.place = [place_in q.queue_id, {TRANSFER_DEAD_LETTER}])
       + (SELECT count(*) FROM lazaretto_dead_letters d
          WHERE d.fingerprint IS NULL AND d.resolution IS NULL AND d.subqueue = {TRANSFER_DEAD_LETTER}
              AND d.key > [lower_bound q.queue_id] AND d.key < [lower_bound q.queue_id + 1])

-- part: misclaimed
-- Ranges that no shard of an open claim locks and no settled claim keeps, or that reach into each other.
SELECT 'ranges of no claim', count(*) FROM lazaretto_claimed_ranges r
WHERE NOT EXISTS (SELECT 1 FROM lazaretto_shards s WHERE s.token = r.token AND s.first <= r.first AND s.last >= r.last)
    AND NOT EXISTS (SELECT 1 FROM lazaretto_claims c WHERE c.state = 'settled' AND c.lease_until IS NOT NULL
        AND r.token >= c.token AND r.token < c.token + {MOST_SHARDS})
GROUP BY 1
UNION ALL
SELECT 'ranges of claims that overlap', count(*) FROM lazaretto_claimed_ranges r
WHERE EXISTS (SELECT 1 FROM lazaretto_claimed_ranges o WHERE o.last > r.last AND o.first <= r.last)
GROUP BY 1

-- part: misplaced
-- Messages that lie in a topic and do not wait for their time.
SELECT 'messages in the topic ' || q.path || ', where nobody can receive them', count(*)
FROM lazaretto_queues q
JOIN lazaretto_messages m ON m.key > [lower_bound q.queue_id]
    AND m.key < [lower_bound q.queue_id + 1] AND m.state <> {SCHEDULED}
WHERE q.kind = 'topic' GROUP BY q.path

-- == queues ==

-- name: insert_queue
-- A new queue; its id.
INSERT INTO lazaretto_queues (path, path_key, options, created, updated, kind, topic_id, rules, redacted)
VALUES (:path, :path_key, :options, :created, :updated, :kind, :topic_id, :rules, :redacted)
RETURNING queue_id

-- name: insert_queues
-- New queues at those of these paths at which nothing is.
INSERT INTO lazaretto_queues (path, path_key, options, created, updated, kind, topic_id, rules, redacted)
VALUES [rows] (:path, :path_key, :options, :created, :updated, :kind, :topic_id, :rules, :redacted)
ON CONFLICT (path_key) DO NOTHING

-- name: last_queue
-- The highest id of a queue.
SELECT coalesce(max(queue_id), 0) FROM lazaretto_queues

-- name: select_queues_after
-- The queues behind an id, in the order in which they came.
SELECT [queue_columns] FROM lazaretto_queues WHERE queue_id > :after ORDER BY queue_id

-- name: select_queue
-- One queue by path.
SELECT [queue_columns] FROM lazaretto_queues WHERE path_key = :path_key

-- name: select_queue_by_id
-- One queue by the id in its messages' keys.
SELECT [queue_columns] FROM lazaretto_queues WHERE queue_id = :queue_id

-- name: select_near
-- What stands before and behind a path in order: for whoever names one that is not there.
SELECT path, kind FROM (
    SELECT path, kind FROM lazaretto_queues WHERE path_key < :path_key ORDER BY path_key DESC LIMIT :limit
) AS before
UNION ALL
SELECT path, kind FROM (
    SELECT path, kind FROM lazaretto_queues WHERE path_key >= :path_key ORDER BY path_key LIMIT :limit
) AS behind

-- name: select_queues
-- All queues by path.
SELECT [queue_columns] FROM lazaretto_queues ORDER BY path_key

-- name: select_queues_page
-- Queues or topics by path, behind one, with a text in their path.
SELECT [queue_columns] FROM lazaretto_queues
WHERE kind = :kind AND path_key > :after AND path_key LIKE :part ESCAPE '!'
ORDER BY path_key LIMIT :limit OFFSET :skip

-- name: select_subscriptions
-- The subscriptions of a topic by path.
SELECT [queue_columns] FROM lazaretto_queues WHERE topic_id = :topic_id ORDER BY path_key

-- name: update_queue
-- The options and status of a queue.
-- confined: changes how a queue is set
UPDATE lazaretto_queues
SET options = :options, status = :status, halted_by = :halted_by,
    dead_letter_halted_by = :dead_letter_halted_by, breaker = :breaker, updated = :now,
    rules = :rules
WHERE queue_id = :queue_id

-- name: mark_redacted
-- Whether there are rules for fields of an entity's messages that people may not read.
-- confined: changes how a queue is set
UPDATE lazaretto_queues SET redacted = :redacted WHERE queue_id = :queue_id

-- name: select_size
-- The bytes that an entity with a largest size holds.
SELECT size FROM lazaretto_queues WHERE queue_id = :queue_id

-- name: grow
-- Add to the bytes that an entity with a largest size holds.
UPDATE lazaretto_queues SET size = size + :size WHERE queue_id = :queue_id

-- name: set_size
-- The bytes of all messages of an entity, counted one by one.
-- locks: written first
-- claims: not looked at
UPDATE lazaretto_queues SET size = (
    SELECT coalesce(sum([bytes]), 0)
    FROM lazaretto_messages m JOIN lazaretto_queues q ON q.queue_id = :queue_id OR q.topic_id = :queue_id
    WHERE m.key > [lower_bound q.queue_id] AND m.key < [subqueue_bound q.queue_id, {SET_ASIDE}])
WHERE queue_id = :queue_id

-- name: grow_by
-- Add the bytes of some messages to those that an entity holds, or take them away.
-- locks: not looked at
-- claims: not looked at
UPDATE lazaretto_queues SET size = size + :sign * (
    SELECT coalesce(sum([bytes]), 0) FROM lazaretto_messages m
    WHERE key [among keys] AND [place_of key] <> {SET_ASIDE})
WHERE queue_id = :queue_id

-- name: sum_range
-- The bytes of all messages between two keys.
-- locks: written first
-- claims: not looked at
SELECT coalesce(sum([bytes]), 0)
FROM lazaretto_messages m
WHERE key >= :first AND key <= :last

-- name: sum_shard
-- The bytes of all that a shard holds.
-- locks: written first
-- claims: not looked at
SELECT coalesce(sum([bytes]), 0) FROM lazaretto_messages m WHERE [in_shard]

-- name: set_idle_at
-- When an entity is deleted, unless it is used before.
UPDATE lazaretto_queues SET idle_at = :idle_at WHERE queue_id = :queue_id

-- name: select_idle
-- Entities that were not used for as long as they may be.
SELECT queue_id FROM lazaretto_queues WHERE idle_at <= :now ORDER BY idle_at LIMIT :limit

-- name: next_idle
-- When an entity will have been unused for too long.
SELECT min(idle_at) FROM lazaretto_queues WHERE idle_at IS NOT NULL

-- name: make_due
-- Let the first active message of a queue be looked at now.
-- locks: written first
-- claims: written first
UPDATE lazaretto_messages SET due = :now WHERE key = (
    SELECT key FROM lazaretto_messages WHERE key > :first AND key <= :last AND [is_active]
    ORDER BY key LIMIT 1)

-- name: count_discarded
-- Add to the numbers of messages discarded.
UPDATE lazaretto_queues SET expired = expired + :expired, dropped = dropped + :dropped
WHERE queue_id = :queue_id

-- name: select_rollbacks
-- How many receives from the queue were rolled back in a row.
SELECT rollbacks FROM lazaretto_queues WHERE queue_id = :queue_id

-- name: set_rollbacks
-- Note how many receives from the queue were rolled back in a row.
UPDATE lazaretto_queues SET rollbacks = :rollbacks WHERE queue_id = :queue_id

-- name: select_last_key
-- The highest key within a subqueue.
-- locks: not looked at
-- claims: not looked at
SELECT key FROM lazaretto_messages WHERE key > :first AND key <= :last ORDER BY key DESC LIMIT 1

-- name: select_last_keys
-- The highest keys within a lane's three subqueues that count with its numbers.
-- locks: not looked at
-- claims: not looked at
SELECT
    (SELECT key FROM lazaretto_messages WHERE key > :first AND key <= :last ORDER BY key DESC LIMIT 1),
    (SELECT key FROM lazaretto_messages WHERE key > :first_dead AND key <= :last_dead ORDER BY key DESC LIMIT 1),
    (SELECT key FROM lazaretto_messages WHERE key > :first_transfer AND key <= :last_transfer
        ORDER BY key DESC LIMIT 1)

-- name: count_purged
-- How many purged dead letters a queue holds.
-- locks: not looked at
-- claims: not looked at
SELECT count(*) FROM lazaretto_messages WHERE key > :first AND key < :last

-- name: insert_deleted_queue
-- Note that a queue's messages are to be removed.
INSERT INTO lazaretto_deleted_queues (queue_id) VALUES (:queue_id)

-- name: select_deleted_queue
-- A queue whose messages are to be removed.
SELECT queue_id FROM lazaretto_deleted_queues LIMIT 1

-- name: delete_deleted_queue
-- All of a queue's messages are removed.
DELETE FROM lazaretto_deleted_queues WHERE queue_id = :queue_id

-- name: select_some_keys
-- Some messages of a range, to remove them.
-- locks: written first
-- claims: not looked at
SELECT key, body_id FROM lazaretto_messages WHERE key > :first AND key <= :last LIMIT :limit

-- name: delete_attempts_range
-- The history of a deleted queue.
DELETE FROM lazaretto_attempts WHERE key > :first AND key <= :last

-- name: delete_dead_letters_range
-- The dead-letter records of a deleted queue.
DELETE FROM lazaretto_dead_letters WHERE key > :first AND key <= :last

-- name: delete_sessions_of
-- The sessions of a deleted queue.
DELETE FROM lazaretto_sessions WHERE queue_id = :queue_id

-- name: delete_message_ids_of
-- The duplicate history of a deleted queue.
DELETE FROM lazaretto_message_ids WHERE queue_id = :queue_id

-- == messages ==

-- name: insert_messages
-- New messages.
-- locks: not looked at
-- claims: not looked at
-- confined: in queues that are held
INSERT INTO lazaretto_messages (key, enqueued, [new_columns]) VALUES [rows] (:key, :enqueued, [new_values])

-- name: insert_routed
-- Messages that come to rest in a queue, from a topic or another queue.
-- locks: not looked at
-- claims: not looked at
INSERT INTO lazaretto_messages
    (key, enqueued, enqueued_sequence_number, generation, resubmitted_from, [new_columns])
VALUES [rows] (:key, :enqueued, :enqueued_sequence_number, :generation, :resubmitted_from, [new_values])

-- name: repeat_routed
-- The messages that one subscription has just got, for another one.
-- locks: not looked at
-- claims: not looked at
INSERT INTO lazaretto_messages
    (key, enqueued, enqueued_sequence_number, generation, resubmitted_from, [new_columns])
SELECT key + :shift, enqueued, enqueued_sequence_number, generation, resubmitted_from, [new_columns]
FROM lazaretto_messages WHERE key >= :first AND key <= :last

-- name: insert_bodies
-- Bodies too large to stand with their message, or of several messages.
-- confined: in queues that are held
INSERT INTO lazaretto_bodies (body_id, body) VALUES [rows] (:body_id, :body)

-- name: add_uses
-- Say how many messages have a body. One that is shared already has so many more, less the first.
INSERT INTO lazaretto_shared_bodies (body_id, uses) VALUES [rows] (:body_id, :uses)
ON CONFLICT (body_id) DO UPDATE SET uses = lazaretto_shared_bodies.uses + excluded.uses - 1

-- name: insert_full_message
-- A message with a past: resubmitted, activated, or returned to its sender.
-- locks: written first
-- claims: not looked at
INSERT INTO lazaretto_messages ([past_columns], body_id, body) VALUES ([past_values], :body_id, :body)

-- name: insert_full_messages
-- Several messages with a past: dead letters that were edited, or are as they were again.
-- locks: written first
-- claims: not looked at
-- confined: in queues that are held
INSERT INTO lazaretto_messages ([past_columns], body_id, body)
VALUES [rows] ([past_values], :body_id, :body)

-- name: select_fresh
-- The next messages of a subqueue that were never handed out.
-- locks: written first
-- claims: not looked at
SELECT [received], NULL, NULL, cycle_attempts
FROM lazaretto_messages m
WHERE key > :first AND key <= :last AND state = {FRESH} AND [lives]
ORDER BY key LIMIT :limit

-- name: anything_due
-- Whether the time of anything has come.
-- claims: not looked at
SELECT [timers_due]

-- name: anything_ahead
-- Whether something comes before the fresh messages of a lane: what is due, a suspect, or one that is ready again.
-- claims: not looked at
SELECT [timers_due]
    OR EXISTS (
        SELECT 1 FROM lazaretto_messages [index lazaretto_messages_suspect]
        WHERE key > :first AND key <= :last AND state = {SUSPECT} AND [lives])
    OR EXISTS (
        SELECT 1 FROM lazaretto_messages [index lazaretto_messages_ready]
        WHERE key > :first AND key <= :last AND state = {READY} AND [lives])

-- name: select_ready
-- The first messages of a subqueue that were handed out before and are receivable again.
-- locks: not looked at
-- claims: not looked at
SELECT [received], d.reason, d.description, cycle_attempts
FROM lazaretto_messages m [index lazaretto_messages_ready]
[dead_letter]
WHERE m.key > :first AND m.key <= :last AND state = {READY} AND [lives]
ORDER BY m.key LIMIT :limit

-- name: select_head
-- When the first message of a lane came that can be handed out.
-- locks: not looked at
-- claims: not looked at
SELECT min(enqueued) FROM (
    SELECT * FROM (
        SELECT enqueued FROM lazaretto_messages
        WHERE key > [fresh_start] AND key <= :last AND state = {FRESH} AND [lives]
        ORDER BY key LIMIT 1) AS fresh
    UNION ALL
    SELECT * FROM (
        SELECT enqueued FROM lazaretto_messages [index lazaretto_messages_ready]
        WHERE key > :first AND key <= :last AND state = {READY} AND [lives]
        ORDER BY key LIMIT 1) AS ready
    UNION ALL
    SELECT * FROM (
        SELECT enqueued FROM lazaretto_messages [index lazaretto_messages_suspect]
        WHERE key > :first AND key <= :last AND state = {SUSPECT} AND [lives]
        ORDER BY key LIMIT 1) AS suspect
) AS waiting

-- name: select_session_messages
-- The first receivable messages of a session, those handed out before first.
-- locks: not looked at
-- claims: not looked at
SELECT [received], NULL, NULL, cycle_attempts
FROM lazaretto_messages m
WHERE [queue_of m.key] = :queue_id AND session_id = :session_id AND state = CAST(:state AS INTEGER)
    AND [lives] AND m.key < :before
ORDER BY m.key LIMIT :limit

-- name: select_sizes
-- The bytes of the next messages of a subqueue in the order in which they are handed out: those that were before first.
-- claims: not looked at
SELECT size FROM (
    SELECT * FROM (
        SELECT 0 AS part, key, [bytes] AS size
        FROM lazaretto_messages m [index lazaretto_messages_ready]
        WHERE key > :first AND key <= :last AND state = {READY} AND [lives]
        ORDER BY key LIMIT :limit) AS ready
    UNION ALL
    SELECT * FROM (
        SELECT 1 AS part, key, [bytes] AS size
        FROM lazaretto_messages m
        WHERE key > [fresh_start] AND key <= :last AND state = {FRESH} AND [lives]
        ORDER BY key LIMIT :limit) AS fresh
) AS next ORDER BY part, key LIMIT :limit

-- name: select_session_sizes
-- The same of a session.
-- locks: not looked at
-- claims: not looked at
SELECT size FROM (
    SELECT * FROM (
        SELECT 0 AS part, key, [bytes] AS size
        FROM lazaretto_messages m
        WHERE [queue_of key] = :queue_id AND session_id = :session_id AND state = {READY}
            AND [lives]
        ORDER BY key LIMIT :limit) AS ready
    UNION ALL
    SELECT * FROM (
        SELECT 1 AS part, key, [bytes] AS size
        FROM lazaretto_messages m
        WHERE [queue_of key] = :queue_id AND session_id = :session_id AND state = {FRESH}
            AND [lives]
        ORDER BY key LIMIT :limit) AS fresh
) AS next ORDER BY part, key LIMIT :limit

-- name: select_messages
-- Messages by key, in a given state, whatever their order.
-- claims: written first
SELECT [received], d.reason, d.description, cycle_attempts
FROM [as_locked]
[dead_letter]
WHERE m.key [among keys] AND state = CAST(:state AS INTEGER)
ORDER BY m.key

-- name: lock_range
-- Lock all receivable messages of one state between two keys.
-- locks: written first
-- claims: not looked at
[lock]
WHERE key >= :first AND key <= :last AND state = CAST(:state AS INTEGER) AND [lives]

-- name: lock_one
-- Lock one message. SQLite needs no list of the rows it is to change then, which is most of the cost.
-- locks: not looked at
-- claims: not looked at
[lock]
WHERE key = :key

-- name: lock_keys
-- Lock messages by key.
-- locks: not looked at
-- claims: not looked at
[lock]
WHERE key [among keys]

-- name: delete_locked
-- Remove messages that are held under a lock, if it is still held.
-- locks: its own written first
-- claims: not looked at
DELETE FROM lazaretto_messages
WHERE key [among keys] AND [held]

-- name: delete_one_locked
-- Remove a message that is held under a lock, if it is still held.
-- locks: its own written first
-- claims: not looked at
DELETE FROM lazaretto_messages
WHERE key = :key AND [held]

-- name: select_held
-- The messages of these that are held under this lock.
-- claims: written first
SELECT [row_columns] FROM [as_locked]
WHERE key [among keys] AND [held]

-- name: select_locked
-- Which of these messages are held under this lock.
-- claims: written first
SELECT key FROM [as_locked]
WHERE key [among keys] AND [held]

-- name: delete_messages
-- Remove messages by key.
-- locks: its own written first
-- claims: not looked at
DELETE FROM lazaretto_messages WHERE key [among keys]

-- name: delete_bodies
-- Remove the bodies of messages that are gone.
-- confined: in queues that are held
DELETE FROM lazaretto_bodies WHERE body_id [among body_ids]

-- name: delete_unused_bodies
-- Remove the bodies of messages that are gone, but those that others have too.
-- confined: in queues that are held
DELETE FROM lazaretto_bodies AS b WHERE body_id [among body_ids]
    AND coalesce((SELECT s.uses FROM lazaretto_shared_bodies s WHERE s.body_id = b.body_id), 0) < 1

-- name: delete_uses
-- Bodies that nobody has any more are not shared.
-- confined: in queues that are held
DELETE FROM lazaretto_shared_bodies WHERE body_id [among body_ids] AND uses < 1

-- name: select_row
-- All that the engine decides by of one message; not its body.
-- claims: written first
SELECT [row_columns] FROM [as_locked] WHERE key = :key

-- name: select_rows
-- The same of several messages.
-- claims: written first
SELECT [row_columns] FROM [as_locked] WHERE key [among keys]

-- name: select_active
-- The first active messages of a queue, as the engine decides by them.
-- locks: written first
-- claims: written first
SELECT [row_columns] FROM lazaretto_messages
WHERE key > :first AND key <= :last AND [is_active] ORDER BY key LIMIT :limit

-- name: select_due
-- The messages whose time has come, the longest due first.
-- locks: written first
-- claims: not looked at
SELECT [row_columns] FROM lazaretto_messages [index lazaretto_messages_due] WHERE [is_due due] ORDER BY due LIMIT :limit

-- name: select_session_locked
-- The messages a session's receiver holds.
-- locks: written first
-- claims: not looked at
SELECT [row_columns] FROM lazaretto_messages
WHERE [queue_of key] = :queue_id AND session_id = :session_id AND state = {LOCKED}

-- name: update_row
-- The new standing of one message, its lock gone.
-- locks: its own written first
-- claims: not looked at
UPDATE lazaretto_messages
SET key = :new_key, [set_standing], [no_lock]
WHERE key = :key

-- name: update_rows
-- The new standing of several messages, their locks gone.
-- locks: its own written first
-- claims: not looked at
-- confined: in queues that are held
WITH new (key, new_key, [standing_columns]) AS (VALUES [rows]
    ([as_type key, bigint], [as_type new_key, bigint], [standing_values]))
UPDATE lazaretto_messages AS m
SET key = n.new_key, [set_new_standing], [no_lock]
FROM new n WHERE m.key = n.key [listed m.key, new]

-- name: update_counters
-- The counters of one message, its lock kept.
-- locks: its own written first
-- claims: not looked at
UPDATE lazaretto_messages
SET deliveries = :deliveries, failures = :failures, worker_deaths = :worker_deaths,
    lock_expiries = :lock_expiries, delivery_count = :delivery_count, cycle_attempts = :cycle_attempts,
    cycle = :cycle, moves = :moves
WHERE key = :key

-- name: renew_lock
-- Prolong the lock on a message.
-- locks: its own written first
-- claims: not looked at
UPDATE lazaretto_messages SET due = :until
WHERE key = :key AND state = {LOCKED} AND lock_token = :token AND due > :now

-- name: renew_locks
-- Prolong the locks on messages.
-- locks: its own written first
-- claims: not looked at
UPDATE lazaretto_messages SET due = :until
WHERE key [among keys] AND state = {LOCKED} AND lock_token = :token AND due > :now

-- name: note_lost
-- The client that holds these messages is lost.
-- locks: its own written first
-- claims: not looked at
UPDATE lazaretto_messages SET locked_by = :holder WHERE key [among keys] AND state = {LOCKED}

-- name: select_body
-- The body of one message.
-- locks: not looked at
-- claims: not looked at
SELECT [body]
FROM lazaretto_messages m WHERE key = :key

-- name: select_body_by_id
-- A body that stands by itself.
SELECT body FROM lazaretto_bodies WHERE body_id = :body_id

-- name: keep_samples
-- Keep messages that are about to go as examples of good ones, unless their body is long.
-- locks: not looked at
-- claims: written first
INSERT INTO lazaretto_samples (key, kept, message_id, enqueued, headers, body, worker)
SELECT x.key, :now, x.message_id, x.enqueued, x.headers, x.body, coalesce(x.locked_by, :worker)
FROM (SELECT m.key, m.message_id, m.enqueued, m.headers, [body] AS body, m.locked_by
      FROM lazaretto_messages m WHERE m.key [among keys]) x
WHERE length(x.body) <= :longest
ON CONFLICT (key) DO NOTHING

-- name: insert_samples
-- Keep messages in the form given as examples of good ones.
-- confined: in queues that are held
INSERT INTO lazaretto_samples (key, kept, message_id, enqueued, headers, body, worker)
VALUES [rows] (:key, :kept, :message_id, :enqueued, :headers, :body, :worker)
ON CONFLICT (key) DO NOTHING

-- name: select_sample_sizes
-- What is known of a queue's kept messages without reading them.
SELECT key, kept, coalesce(length(headers), 0) + length(body)
FROM lazaretto_samples WHERE key > :first AND key <= :last ORDER BY key

-- name: select_samples
-- A queue's kept messages.
SELECT key, message_id, enqueued, headers, body, worker, kept
FROM lazaretto_samples WHERE key > :first AND key <= :last ORDER BY key

-- name: delete_samples
-- Keep some no longer.
DELETE FROM lazaretto_samples WHERE key [among keys]

-- name: delete_samples_of
-- Keep none of a queue.
DELETE FROM lazaretto_samples WHERE key > :first AND key <= :last

-- name: peek
-- Messages of a subqueue as they stand, from a sequence number on.
[as_it_stands]
WHERE m.key > :first AND m.key <= :last ORDER BY m.key LIMIT :limit

-- name: select_peeked_sizes
-- The bytes of messages of a subqueue from a sequence number on, in any state or in one.
-- locks: not looked at
-- claims: not looked at
SELECT key, [bytes] FROM lazaretto_messages m
WHERE key > :first AND key <= :last AND (CAST(:state AS BIGINT) IS NULL OR state = :state)
ORDER BY key LIMIT :limit

-- name: select_peeked_sizes_of
-- The bytes of messages by key.
-- locks: not looked at
-- claims: not looked at
SELECT key, [bytes] FROM lazaretto_messages m WHERE key [among keys]

-- name: peek_keys
-- Messages by key as they stand, whatever their order.
[as_it_stands]
WHERE m.key [among keys]

-- name: select_peeked_keys
-- Messages of a session from a sequence number on, in any state or in one.
-- locks: not looked at
-- claims: not looked at
SELECT key FROM lazaretto_messages m [index lazaretto_messages_session]
WHERE [queue_of key] = :queue_id AND session_id = :session_id AND key > :first AND key <= :last
    AND (CAST(:state AS BIGINT) IS NULL OR state = :state)
ORDER BY key LIMIT :limit

-- name: peek_delayed
-- The same of the messages that wait for a retry.
-- locks: not looked at
-- claims: not looked at
[as_it_stands]
WHERE m.key > :first AND m.key <= :last AND m.state = {DELAYED} ORDER BY m.key LIMIT :limit

-- name: select_suspect
-- The first message of a subqueue that must be handed out alone.
-- locks: not looked at
-- claims: not looked at
SELECT [received], d.reason, d.description, NULL
FROM lazaretto_messages m [index lazaretto_messages_suspect]
[dead_letter]
WHERE m.key > :first AND m.key <= :last AND state = {SUSPECT} AND [lives]
ORDER BY m.key LIMIT 1

-- == workers ==

-- name: register_worker
-- A process that is about to hold messages.
INSERT INTO lazaretto_workers (worker, machine, pid, born, seen)
VALUES (:worker, :machine, :pid, :born, :now)
ON CONFLICT (worker) DO UPDATE SET seen = :now

-- name: select_living_workers
-- The processes not known to be dead.
SELECT worker, machine, pid, born, seen FROM lazaretto_workers WHERE died IS NULL

-- name: select_takers
-- Who takes messages in processes that are not known to be dead.
SELECT takers, machine, pid, born, seen FROM lazaretto_workers WHERE died IS NULL AND takers IS NOT NULL

-- name: select_workers
-- All processes that hold or held messages.
SELECT worker, machine, pid, seen, died, takers FROM lazaretto_workers ORDER BY worker

-- name: select_worker
-- One process that holds or held messages.
SELECT machine, pid, born, seen, died FROM lazaretto_workers WHERE worker = :worker

-- name: bury_worker
-- A process found dead.
UPDATE lazaretto_workers SET died = :now WHERE worker = :worker

-- name: beat
-- A process's sign of life, and who takes messages in it.
INSERT INTO lazaretto_workers (worker, machine, pid, born, seen, takers)
VALUES (:worker, :machine, :pid, :born, :now, :takers)
ON CONFLICT (worker) DO UPDATE SET seen = :now, takers = :takers

-- name: delete_worker
-- A process that has given up what it held.
DELETE FROM lazaretto_workers WHERE worker = :worker

-- name: delete_old_workers
-- Forget processes that died so long ago that none of their locks can be left.
DELETE FROM lazaretto_workers WHERE died < :before

-- name: select_locked_by
-- The messages that a process holds, among those whose lock runs out until then.
-- locks: written first
-- claims: not looked at
SELECT [row_columns] FROM lazaretto_messages [index lazaretto_messages_due]
WHERE due <= :until AND state = {LOCKED} AND locked_by = :worker AND key > :first AND key < :end ORDER BY key

-- part: dues
-- What has a time to come, the earliest first: messages under locks of their own, and others, whose holder is null.
SELECT CASE WHEN state = {LOCKED} THEN locked_by END AS locked_by, key
FROM (SELECT state, locked_by, key FROM lazaretto_messages [index lazaretto_messages_due]
      WHERE due > :now ORDER BY due LIMIT :limit) AS dues

-- name: select_session_holders
-- Who holds sessions, with the messages that were handed out of each; no key: none was.
-- locks: not looked at
-- claims: not looked at
SELECT s.locked_by, m.key, s.queue_id, s.session_id
FROM (SELECT * FROM lazaretto_sessions WHERE locked_until > :now ORDER BY locked_until LIMIT :limit) AS s
LEFT JOIN lazaretto_messages m
    ON [queue_of m.key] = s.queue_id AND m.session_id = s.session_id AND m.state = {LOCKED}
LIMIT :limit

-- name: insert_lease
-- A hand-over to a service host.
INSERT INTO lazaretto_leases (token, worker, queue_id, session_id, keys, started)
VALUES (:token, :worker, :queue_id, :session_id, :keys, :started)
ON CONFLICT (token) DO UPDATE SET worker = excluded.worker, queue_id = excluded.queue_id, session_id =
    excluded.session_id, keys = excluded.keys, started = excluded.started

-- name: start_lease
-- The handlers of a hand-over are started.
UPDATE lazaretto_leases SET started = true WHERE token = :token

-- name: select_leases
-- What a process was handed and has not finished with.
SELECT token, worker, queue_id, session_id, keys, started FROM lazaretto_leases WHERE worker = :worker

-- name: select_leased
-- The keys of a hand-over's messages.
SELECT keys FROM lazaretto_leases WHERE token = :token

-- name: delete_lease
-- A hand-over that is finished.
DELETE FROM lazaretto_leases WHERE token = :token

-- == sessions ==

-- name: first_session_id
-- The first session, which may have an empty name, that has messages in the queue and is not held back.
-- locks: not looked at
-- claims: not looked at
SELECT session_id FROM lazaretto_messages m
WHERE [queue_of key] = :queue_id AND session_id IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM lazaretto_sessions s
                  WHERE s.queue_id = :queue_id AND s.session_id = m.session_id AND s.held_key IS NOT NULL)
ORDER BY session_id LIMIT 1

-- name: next_session_id
-- The same after this one.
-- locks: not looked at
-- claims: not looked at
SELECT session_id FROM lazaretto_messages m
WHERE [queue_of key] = :queue_id AND session_id > :after AND session_id IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM lazaretto_sessions s
                  WHERE s.queue_id = :queue_id AND s.session_id = m.session_id AND s.held_key IS NOT NULL)
ORDER BY session_id LIMIT 1

-- name: first_receivable_key
-- The first receivable message of a session.
-- locks: not looked at
-- claims: not looked at
SELECT min(key) FROM lazaretto_messages
WHERE [queue_of key] = :queue_id AND session_id = :session_id AND [is_active] AND [lives]

-- name: first_delayed_key
-- The first message of a session that waits for a retry: later ones wait behind it.
-- locks: not looked at
-- claims: not looked at
SELECT min(key) FROM lazaretto_messages
WHERE [queue_of key] = :queue_id AND session_id = :session_id AND state = {DELAYED}

-- name: select_session_waits
-- Whether a session has messages in its turn, or is held back.
-- locks: not looked at
-- claims: not looked at
SELECT EXISTS (SELECT 1 FROM lazaretto_messages
               WHERE [queue_of key] = :queue_id AND session_id = :session_id
                   AND state IN ({FRESH}, {READY}, {SUSPECT}, {DELAYED}, {LOCKED}))
    OR EXISTS (SELECT 1 FROM lazaretto_sessions
               WHERE queue_id = :queue_id AND session_id = :session_id AND held_key IS NOT NULL)

-- name: select_session
-- A session's lock and state.
SELECT lock_token, locked_until, locked_by, state, held_by, locked_as FROM lazaretto_sessions
WHERE queue_id = :queue_id AND session_id = :session_id

-- name: lock_session
-- Lock a session.
INSERT INTO lazaretto_sessions (queue_id, session_id, lock_token, locked_until, locked_by, locked_as)
VALUES (:queue_id, :session_id, :token, :until, :worker, :name)
ON CONFLICT (queue_id, session_id) DO UPDATE
SET lock_token = :token, locked_until = :until, locked_by = :worker, locked_as = :name

-- name: renew_session
-- Prolong the lock on a session.
UPDATE lazaretto_sessions SET locked_until = :until WHERE queue_id = :queue_id AND session_id = :session_id

-- name: unlock_session
-- Give a session up.
UPDATE lazaretto_sessions SET lock_token = NULL, locked_until = NULL, locked_by = NULL
WHERE queue_id = :queue_id AND session_id = :session_id

-- name: delete_idle_session
-- Forget a session that is not locked and has no state.
DELETE FROM lazaretto_sessions
WHERE queue_id = :queue_id AND session_id = :session_id AND lock_token IS NULL AND state IS NULL
  AND held_key IS NULL

-- name: hold_session
-- Hold a session back until its poison messages are decided on. The key is that of the first.
INSERT INTO lazaretto_sessions (queue_id, session_id, held_by, held_key)
VALUES (:queue_id, :session_id, :held_by, :key)
ON CONFLICT (queue_id, session_id) DO UPDATE
SET held_by = excluded.held_by, held_key = excluded.held_key

-- name: release_sessions
-- Let sessions go on that were held back by these messages.
UPDATE lazaretto_sessions SET held_by = NULL, held_key = NULL WHERE held_key [among keys]

-- name: select_sessions_held_by
-- The sessions that messages hold back.
SELECT queue_id, session_id, held_by FROM lazaretto_sessions WHERE held_key [among keys]

-- name: select_held_sessions
-- The sessions of a queue that are held back, by the place of their poison message.
SELECT queue_id, session_id, held_by FROM lazaretto_sessions
WHERE held_key > :first AND held_key <= :last ORDER BY held_key LIMIT :limit

-- name: select_session_keys
-- Every message of a session.
-- locks: written first
-- claims: not looked at
SELECT key, state FROM lazaretto_messages WHERE [queue_of key] = :queue_id AND session_id = :session_id ORDER BY key

-- name: set_session_state
-- The state of a session.
UPDATE lazaretto_sessions SET state = :state, state_set = :now
WHERE queue_id = :queue_id AND session_id = :session_id

-- name: select_due_sessions
-- The sessions whose lock has run out.
SELECT queue_id, session_id, lock_token FROM lazaretto_sessions
WHERE [is_due locked_until] ORDER BY locked_until LIMIT :limit

-- name: next_due_session
-- When the store must look at a session again.
SELECT min(locked_until) FROM lazaretto_sessions WHERE [comes_due locked_until]

-- name: select_sessions
-- The first sessions of a queue from one on that have messages, a lock or a state.
-- locks: written first
-- claims: not looked at
SELECT * FROM (SELECT session_id FROM lazaretto_sessions
               WHERE queue_id = :queue_id AND session_id >= :first ORDER BY 1 LIMIT :limit) AS s
UNION SELECT * FROM (SELECT DISTINCT session_id FROM lazaretto_messages
                     WHERE [queue_of key] = :queue_id AND session_id IS NOT NULL AND session_id >= :first
                     ORDER BY 1 LIMIT :limit) AS m
ORDER BY 1 LIMIT :limit

-- name: select_active_sessions
-- The first sessions of a queue from one on that have active messages or a state.
-- locks: written first
-- claims: not looked at
SELECT * FROM (SELECT session_id FROM lazaretto_sessions
               WHERE queue_id = :queue_id AND session_id >= :first AND state IS NOT NULL
               ORDER BY 1 LIMIT :limit) AS s
UNION SELECT * FROM (SELECT DISTINCT session_id FROM lazaretto_messages
                     WHERE [queue_of key] = :queue_id AND session_id IS NOT NULL AND session_id >= :first
                         AND state NOT IN ({DEFERRED}, {SCHEDULED})
                     ORDER BY 1 LIMIT :limit) AS m
ORDER BY 1 LIMIT :limit

-- name: select_sessions_set
-- The first sessions of a queue from one on whose state was set after a time.
SELECT session_id FROM lazaretto_sessions
WHERE queue_id = :queue_id AND session_id >= :first AND state IS NOT NULL AND state_set > :after
ORDER BY 1 LIMIT :limit

-- == duplicate detection ==

-- name: select_message_id
-- The sequence number under which a message id was sent before.
SELECT sequence_number FROM lazaretto_message_ids
WHERE queue_id = :queue_id AND message_id = :message_id AND partition_key = :partition_key AND forget_after > :now

-- name: select_message_ids
-- The same of several ids of no partition.
SELECT message_id, sequence_number FROM lazaretto_message_ids
WHERE queue_id = :queue_id AND message_id [among message_ids] AND partition_key = '' AND forget_after > :now

-- name: select_sent_id
-- The same in the queue of a lane, which is named so that a commit knows what to hold.
SELECT sequence_number FROM lazaretto_message_ids
WHERE queue_id = [queue_of_lane :queue_id] AND message_id = :message_id AND partition_key = :partition_key
    AND forget_after > :now

-- name: insert_message_id
-- Remember a message id.
INSERT INTO lazaretto_message_ids
    (queue_id, message_id, partition_key, forget_after, sequence_number)
VALUES (:queue_id, :message_id, :partition_key, :forget_after, :sequence_number)
ON CONFLICT (queue_id, message_id, partition_key) DO UPDATE SET forget_after = excluded.forget_after,
    sequence_number = excluded.sequence_number

-- name: insert_message_ids
-- Remember message ids.
-- confined: in queues that are held
INSERT INTO lazaretto_message_ids
    (queue_id, message_id, partition_key, forget_after, sequence_number)
VALUES [rows] (:queue_id, :message_id, :partition_key, :forget_after, :sequence_number)
ON CONFLICT (queue_id, message_id, partition_key) DO UPDATE SET forget_after = excluded.forget_after,
    sequence_number = excluded.sequence_number

-- name: delete_message_id
-- Forget a message id, if it was sent under this number.
DELETE FROM lazaretto_message_ids
WHERE queue_id = :queue_id AND message_id = :message_id AND partition_key = :partition_key
    AND sequence_number = :sequence_number

-- name: delete_old_message_ids
-- Forget ids whose time is over, a chunk at a time.
DELETE FROM lazaretto_message_ids WHERE (queue_id, message_id, partition_key) IN
    (SELECT queue_id, message_id, partition_key FROM lazaretto_message_ids
     WHERE forget_after <= :now LIMIT :limit)

-- == attempts and dead letters ==

-- name: insert_attempts
-- Attempts that did not complete.
-- confined: in queues that are held
INSERT INTO lazaretto_attempts
    (key, number, started, ended, worker, outcome, error_type, error_message, stack, site)
VALUES [rows] (:key, :number, :started, :ended, :worker, :outcome, :error_type, :error_message, :stack, :site)

-- name: select_attempts
-- The history of a message.
SELECT number, started, ended, worker, outcome, error_type, error_message, stack, site
FROM lazaretto_attempts WHERE key = :key ORDER BY number, [rowid]

-- name: select_triers
-- Who tried messages, the latest attempt of each last.
SELECT key, worker FROM lazaretto_attempts
WHERE key [among keys] AND worker IS NOT NULL ORDER BY key, number, [rowid]

-- name: select_last_error
-- The latest attempt of a message that had an error.
SELECT error_type, error_message, stack, site FROM lazaretto_attempts
WHERE key = :key AND error_type IS NOT NULL ORDER BY number DESC, [rowid] DESC LIMIT 1

-- name: select_last_errors
-- The latest attempt of each of several messages that had an error.
SELECT key, error_type, error_message, stack, site FROM lazaretto_attempts AS a
WHERE key [among keys] AND error_type IS NOT NULL AND NOT EXISTS (
    SELECT 1 FROM lazaretto_attempts AS later
    WHERE later.key = a.key AND later.error_type IS NOT NULL
        AND (later.number > a.number OR later.number = a.number AND later.[rowid] > a.[rowid]))

-- name: select_refundable
-- How often messages between two keys were charged since a time for a failure that clients told. Those of
-- other queues since then are few, and those of this queue before it may be millions: `+` keeps away from them.
SELECT +key, count(*) FROM lazaretto_attempts
WHERE +key > :first AND +key <= :last AND ended >= :since
    AND outcome IN ('failed', 'expired') AND worker LIKE :clients
GROUP BY +key

-- name: refund_attempts
-- These attempts were not charged after all.
UPDATE lazaretto_attempts SET outcome = 'released'
WHERE key [among keys] AND ended >= :since AND outcome IN ('failed', 'expired') AND worker LIKE :clients

-- name: trim_attempts
-- The oldest part of a history that is too long.
DELETE FROM lazaretto_attempts WHERE key = :key AND number <= :number

-- name: move_attempts
-- The history of a message that goes on under another key.
UPDATE lazaretto_attempts SET key = :new_key WHERE key = :key

-- name: delete_attempts
-- The history of messages that completed.
DELETE FROM lazaretto_attempts WHERE key [among keys]

-- name: insert_dead_letters
-- Why messages were set aside.
-- confined: in queues that are held
INSERT INTO lazaretto_dead_letters
    (key, message_id, reason, description, error_type, error_message, dead_lettered, enqueued, generation,
     counters, resubmitted_from, subqueue, fingerprint)
VALUES [rows] (:key, :message_id, :reason, :description, :error_type, :error_message, :now, :enqueued, :generation,
               :counters, :resubmitted_from, :subqueue, :fingerprint)
ON CONFLICT (key) DO UPDATE SET message_id = excluded.message_id, reason = excluded.reason, description =
    excluded.description, error_type = excluded.error_type, error_message = excluded.error_message,
    dead_lettered = excluded.dead_lettered, enqueued = excluded.enqueued, generation = excluded.generation,
    counters = excluded.counters, resubmitted_from = excluded.resubmitted_from, subqueue = excluded.subqueue,
    fingerprint = excluded.fingerprint, resolution = NULL, resolved = NULL, resubmitted_as = NULL

-- name: resolve_dead_letters
-- Dead letters that were dealt with.
UPDATE lazaretto_dead_letters SET resolution = :resolution, resolved = :now
WHERE key [among keys]

-- name: send_dead_letters
-- Dead letters that were sent back or elsewhere, and as what.
WITH sent (key, resubmitted_as, now, resolution) AS (VALUES [rows]
    ([as_type key, bigint], [as_type resubmitted_as, bigint], [as_type now, bigint], [as_type resolution, text]))
UPDATE lazaretto_dead_letters AS d
SET resolution = s.resolution, resolved = s.now, resubmitted_as = s.resubmitted_as
FROM sent s WHERE d.key = s.key [listed d.key, sent]

-- name: select_dead_letter
-- One dead letter, or what became of it.
SELECT [dead_letter_columns]
FROM lazaretto_dead_letters WHERE key = :key

-- name: select_some_dead_letters
-- Several dead letters, or what became of them.
SELECT [dead_letter_columns]
FROM lazaretto_dead_letters WHERE key [among keys]

-- name: select_dead_letters
-- What is known of such dead letters.
-- locks: not looked at
-- claims: not looked at
SELECT [letter_columns] FROM lazaretto_dead_letters d WHERE [that_wait]

-- name: select_letter_keys
-- Which these are.
-- locks: not looked at
-- claims: not looked at
SELECT d.key FROM lazaretto_dead_letters d WHERE [that_wait]

-- name: select_dead_letters_alike
-- What is known of such dead letters with some fingerprints.
-- locks: not looked at
-- claims: not looked at
SELECT [letter_columns] FROM lazaretto_dead_letters d WHERE d.fingerprint [among fingerprints] AND [that_wait]

-- name: select_letter_keys_alike
-- Which these are.
-- locks: not looked at
-- claims: not looked at
SELECT d.key FROM lazaretto_dead_letters d WHERE d.fingerprint [among fingerprints] AND [that_wait]

-- name: select_dead_letters_named
-- What is known of such dead letters among some keys.
-- locks: not looked at
-- claims: not looked at
SELECT [letter_columns] FROM lazaretto_dead_letters d WHERE d.key [among keys] AND [among_alike] AND [that_wait]

-- name: select_letter_keys_named
-- Which these are.
-- locks: not looked at
-- claims: not looked at
SELECT d.key FROM lazaretto_dead_letters d WHERE d.key [among keys] AND [among_alike] AND [that_wait]

-- name: select_resolved
-- Dead letters that were dealt with long ago.
SELECT key FROM lazaretto_dead_letters
WHERE resolved < :before AND resolution <> 'purged' ORDER BY resolved LIMIT :limit

-- name: select_purged
-- Dead letters of a subqueue that are set aside.
-- locks: not looked at
-- claims: not looked at
SELECT d.key FROM lazaretto_dead_letters d
WHERE resolution = 'purged' AND d.key > :first AND d.key <= :last AND d.subqueue = :subqueue
    AND (SELECT m.key FROM lazaretto_messages m WHERE m.key = [dead_key d.key, CAST({SET_ASIDE} AS BIGINT)]) IS NOT NULL
ORDER BY d.key

-- name: select_purged_before
-- Those that were set aside before a time.
SELECT key FROM lazaretto_dead_letters
WHERE resolution = 'purged' AND resolved <= :before ORDER BY resolved LIMIT :limit

-- name: mark_deleted
-- They were deleted for good.
UPDATE lazaretto_dead_letters SET resolution = 'deleted' WHERE key [among keys]

-- name: delete_dead_letters
-- Records of dead letters that are no longer kept.
DELETE FROM lazaretto_dead_letters WHERE key [among keys]

-- == events and audit ==

-- name: insert_events
-- What programs may follow.
-- confined: in queues that are held
INSERT INTO lazaretto_events (time, kind, queue, sequence_number, detail)
VALUES [rows] (:time, :kind, :queue, :sequence_number, :detail)

-- name: select_events
-- Events after a position.
SELECT position, time, kind, queue, sequence_number, detail FROM lazaretto_events
WHERE position > :after AND (CAST(:kind AS TEXT) IS NULL OR kind = :kind)
  AND (CAST(:queue AS TEXT) IS NULL OR lower(queue) = :queue)
ORDER BY position LIMIT :limit

-- name: select_events_before
-- Events before a position, the newest first.
SELECT position, time, kind, queue, sequence_number, detail FROM lazaretto_events
WHERE position < :before AND (CAST(:kind AS TEXT) IS NULL OR kind = :kind)
  AND (CAST(:queue AS TEXT) IS NULL OR lower(queue) = :queue)
ORDER BY position DESC LIMIT :limit

-- name: select_end
-- The event that says how a message was discarded or returned, if it is among the latest of all.
SELECT position, time, kind, queue, sequence_number, detail
FROM (SELECT * FROM lazaretto_events ORDER BY position DESC LIMIT :limit) AS latest
WHERE sequence_number = :sequence_number AND queue = :queue AND kind IN ('dropped', 'rejected')
ORDER BY position DESC LIMIT 1

-- name: last_event
-- The position of the latest event.
SELECT coalesce(max(position), 0) FROM lazaretto_events

-- name: delete_old_events
-- Forget old events, a chunk at a time.
DELETE FROM lazaretto_events WHERE position IN
    (SELECT position FROM lazaretto_events WHERE time < :before ORDER BY time LIMIT :limit)

-- name: insert_audit
-- What an operator did.
INSERT INTO lazaretto_audit (time, actor, action, queue, detail)
VALUES [rows] (:time, :actor, :action, :queue, :detail)

-- name: select_audit
-- What operators did, the latest first.
SELECT position, time, actor, action, queue, detail FROM lazaretto_audit
WHERE position < :below AND time >= :since AND time < :until
  AND (CAST(:queue AS TEXT) IS NULL OR lower(queue) = :queue)
  AND (CAST(:actor AS TEXT) IS NULL OR actor = :actor) AND (CAST(:action AS TEXT) IS NULL OR action = :action)
  AND (CAST(:detail AS TEXT) IS NULL OR substr(detail, 1, length(CAST(:detail AS TEXT))) = :detail)
ORDER BY position DESC LIMIT :limit

-- == claims ==

-- name: select_consumer
-- A consumer of claims.
SELECT queue_id, consumer, epoch, last_claim, settled, driver, attached, narrow, narrow_left, identity
FROM lazaretto_consumers WHERE queue_id = :queue_id AND consumer = :consumer

-- name: select_consumers
-- All consumers of claims.
SELECT queue_id, consumer, epoch, last_claim, settled, driver, attached, narrow, narrow_left, identity
FROM lazaretto_consumers ORDER BY queue_id, consumer

-- name: save_consumer
-- How a consumer of claims stands.
INSERT INTO lazaretto_consumers
    (queue_id, consumer, epoch, last_claim, settled, driver, attached, narrow, narrow_left, identity)
VALUES (:queue_id, :consumer, :epoch, :last_claim, :settled, :driver, :attached, :narrow, :narrow_left, :identity)
ON CONFLICT (queue_id, consumer) DO UPDATE SET epoch = excluded.epoch, last_claim = excluded.last_claim,
    settled = excluded.settled, driver = excluded.driver, attached = excluded.attached, narrow =
    excluded.narrow, narrow_left = excluded.narrow_left, identity = excluded.identity

-- name: select_claims
-- A consumer's claims between two numbers.
SELECT [claim_columns]
FROM lazaretto_claims WHERE queue_id = :queue_id AND consumer = :consumer AND number > :after AND number <= :last
ORDER BY number

-- name: select_all_claims
-- A queue's claims, the latest first.
SELECT [claim_columns]
FROM lazaretto_claims WHERE queue_id = :queue_id ORDER BY created DESC, number DESC LIMIT :limit

-- name: select_due_claims
-- The claims whose lease has run out, those that are being revoked, and settled ones whose messages nobody removes.
SELECT [claim_columns]
FROM lazaretto_claims WHERE lease_until <= :now ORDER BY lease_until LIMIT :limit

-- name: select_keeping
-- Settled claims that keep messages which they have completed.
SELECT [claim_columns]
FROM lazaretto_claims WHERE lease_until IS NOT NULL AND state = 'settled' ORDER BY queue_id, consumer, number

-- name: save_claim
-- How a claim stands.
INSERT INTO lazaretto_claims
    ([claim_columns])
VALUES (:queue_id, :consumer, :number, :state, :token, :created, :lease_until, :rows, :bytes, :ended, :summary)
ON CONFLICT (queue_id, consumer, number) DO UPDATE SET state = excluded.state,
    lease_until = excluded.lease_until, rows = excluded.rows, bytes = excluded.bytes,
    ended = excluded.ended, summary = excluded.summary

-- name: renew_claims
-- A longer lease for a consumer's open claims.
UPDATE lazaretto_claims SET lease_until = :until
WHERE queue_id = :queue_id AND consumer = :consumer AND state = 'open' AND lease_until > :now

-- name: delete_claims
-- A consumer's claims up to a number, which have ended.
-- confined: in queues that are held
DELETE FROM lazaretto_claims
WHERE queue_id = :queue_id AND consumer = :consumer AND number <= :last AND lease_until IS NULL AND state <> 'open'

-- name: next_due_claim
-- When the store must look at a claim.
SELECT min(lease_until) FROM lazaretto_claims WHERE lease_until IS NOT NULL

-- name: select_shards
-- The shards of a claim.
SELECT [shard_columns]
FROM lazaretto_shards WHERE claim_token = :claim_token ORDER BY token

-- name: select_shard
-- One shard.
SELECT [shard_columns]
FROM lazaretto_shards WHERE token = :token

-- name: save_shard
-- How a shard stands.
INSERT INTO lazaretto_shards ([shard_columns])
VALUES (:token, :claim_token, :first, :last, :rows, :reads, :read_epoch, :started, :task, :careful)
ON CONFLICT (token) DO UPDATE SET claim_token = excluded.claim_token, first = excluded.first, last =
    excluded.last, rows = excluded.rows, reads = excluded.reads, read_epoch = excluded.read_epoch, started =
    excluded.started, task = excluded.task, careful = excluded.careful

-- name: delete_shards
-- The shards of a claim that has ended.
-- confined: in queues that are held
DELETE FROM lazaretto_shards WHERE claim_token = :claim_token

-- name: delete_consumers_staged
-- What was staged for claims of a queue that is deleted.
DELETE FROM lazaretto_staged
WHERE claim_token IN (SELECT token FROM lazaretto_claims WHERE queue_id = :queue_id)

-- name: delete_consumers_shards
-- The shards of claims of a queue that is deleted.
DELETE FROM lazaretto_shards
WHERE claim_token IN (SELECT token FROM lazaretto_claims WHERE queue_id = :queue_id)

-- name: delete_consumers_claims
-- The claims of a queue that is deleted.
DELETE FROM lazaretto_claims WHERE queue_id = :queue_id

-- name: delete_consumers
-- The consumers of a queue that is deleted.
DELETE FROM lazaretto_consumers WHERE queue_id = :queue_id

-- name: delete_consumers_ranges
-- The locks of claims on ranges of a queue that is deleted.
DELETE FROM lazaretto_claimed_ranges WHERE [queue_of last] = :queue_id

-- name: any_claimed
-- Whether a claim locks messages by ranges.
SELECT EXISTS (SELECT 1 FROM lazaretto_claimed_ranges)

-- name: insert_claimed
-- A lock of a claim on a range of fresh messages.
INSERT INTO lazaretto_claimed_ranges (last, first, token, locked_at, locked_by)
VALUES (:last, :first, :token, :now, :worker)

-- name: select_claimed
-- The ranges that shards of a claim lock, in order.
SELECT token, first, last FROM lazaretto_claimed_ranges
WHERE token >= :first_token AND token < :end_token ORDER BY last

-- name: shorten_claimed
-- The lock of a claim on a range holds no more what stands before a key.
UPDATE lazaretto_claimed_ranges SET first = :first WHERE last = :last

-- name: last_claimed
-- The last key of a lane that a claim locks by a range.
SELECT max(last) FROM lazaretto_claimed_ranges WHERE last > :first AND last <= :last

-- name: select_claim_on
-- The range around a message, if it is in one.
SELECT first, token, locked_at, locked_by FROM lazaretto_claimed_ranges WHERE last >= :key ORDER BY last LIMIT 1

-- name: delete_claimed
-- The ranges of a claim that has ended.
-- confined: in queues that are held
DELETE FROM lazaretto_claimed_ranges WHERE token >= :first_token AND token < :end_token

-- name: write_claimed_of
-- Write the locks that claims have on ranges into these messages.
-- locks: not looked at
[write_claimed]
WHERE m.key [among keys] AND [is_claimed]

-- name: write_claimed_between
-- Write the locks that claims have on ranges into all messages between two keys.
-- locks: not looked at
[write_claimed]
WHERE m.key > :first AND m.key <= :last AND [is_claimed]

-- name: insert_staged
-- What a task has done.
-- confined: in queues that are held
INSERT INTO lazaretto_staged (claim_token, stage, outcomes) VALUES (:claim_token, :stage, :outcomes)

-- name: select_staged
-- What a task has done.
SELECT outcomes FROM lazaretto_staged WHERE claim_token = :claim_token AND stage = :stage ORDER BY [rowid]

-- name: delete_staged
-- What tasks have done, of a claim that has ended.
-- confined: in queues that are held
DELETE FROM lazaretto_staged WHERE claim_token = :claim_token

-- name: select_claimable_fresh
-- The next messages that were never handed out: key, size, and whether they have a time to come; no bodies.
-- locks: written first
-- claims: not looked at
SELECT key, [bytes], due IS NOT NULL
FROM lazaretto_messages m
WHERE key > :first AND key <= :last AND state = {FRESH} AND [lives] ORDER BY key LIMIT :limit

-- name: select_fresh_run
-- The next messages that were never handed out: the first key and the last, how many, their size, and how many have
-- a time to come.
-- locks: written first
-- claims: not looked at
SELECT min(key), max(key), count(*), CAST(coalesce(sum(size), 0) AS BIGINT), count(due)
FROM (SELECT key, [bytes] AS size, due FROM lazaretto_messages m
      WHERE key > :first AND key <= :last AND state = {FRESH} AND [lives] ORDER BY key LIMIT :limit) AS r

-- name: select_claimable_ready
-- The first messages that were handed out before and are receivable again: key and size, no bodies.
-- locks: not looked at
-- claims: not looked at
SELECT key, [bytes]
FROM lazaretto_messages m [index lazaretto_messages_ready]
WHERE key > :first AND key <= :last AND state = {READY} AND [lives] ORDER BY key LIMIT :limit

-- name: select_claimable_session
-- The first receivable messages of a session: key and size, no bodies.
-- locks: written first
-- claims: not looked at
SELECT key, [bytes]
FROM lazaretto_messages m [index lazaretto_messages_session]
WHERE [queue_of key] = :queue_id AND session_id = :session_id AND state IN ({FRESH}, {READY})
    AND [lives] AND key < :before
ORDER BY key LIMIT :limit

-- name: select_shard_keys
-- The messages that a shard still holds.
-- locks: written first
-- claims: not looked at
SELECT key FROM lazaretto_messages
WHERE [in_shard] ORDER BY key LIMIT :limit

-- name: select_shard_remains
-- What else there is of messages that a shard holds: their large bodies, and whether they were tried before.
-- locks: written first
-- claims: not looked at
SELECT key, body_id, deliveries > 1 FROM lazaretto_messages
WHERE [in_shard] AND (body_id IS NOT NULL OR deliveries > 1)

-- name: delete_shard
-- All that a shard holds.
-- locks: written first
-- claims: not looked at
DELETE FROM lazaretto_messages WHERE [in_shard]

-- name: release_shard
-- Give back all that a shard holds, as if it had never been handed out; suspects need a closer look.
-- locks: written first
-- claims: not looked at
UPDATE lazaretto_messages
SET state = {READY}, due = expires, deliveries = deliveries - CASE state WHEN {LOCKED} THEN 1 ELSE 0 END,
    lock_token = NULL, locked_at = NULL, locked_by = NULL
WHERE [in_shard] AND suspect = 0 AND deferred = 0

-- name: unlock_claimed_sessions
-- The sessions that a claim holds.
UPDATE lazaretto_sessions SET lock_token = NULL, locked_until = NULL, locked_by = NULL
WHERE locked_until IS NOT NULL AND queue_id = :queue_id AND lock_token >= :first_token AND lock_token < :end_token
RETURNING session_id

-- == the outbox ==

-- name: insert_outbox
-- Messages that a task has prepared.
-- confined: in queues that are held
INSERT INTO lazaretto_outbox (stage, messages, staged) VALUES (:stage, :messages, :staged)

-- name: select_outbox
-- Messages that a task has prepared, in their order.
SELECT messages FROM lazaretto_outbox WHERE stage = :stage ORDER BY [rowid]

-- name: delete_outbox
-- What a task has prepared and was sent, or will not be.
-- confined: in queues that are held
DELETE FROM lazaretto_outbox WHERE stage = :stage

-- name: delete_old_outbox
-- What tasks have prepared that were never heard of again.
DELETE FROM lazaretto_outbox WHERE staged < :before

-- name: select_writer
-- The last batch of a writer that was sent.
SELECT batch FROM lazaretto_writers WHERE writer = :writer

-- name: save_writer
-- The last batch of a writer that was sent.
-- confined: in queues that are held
INSERT INTO lazaretto_writers (writer, batch, seen) VALUES (:writer, :batch, :seen)
ON CONFLICT (writer) DO UPDATE SET batch = excluded.batch, seen = excluded.seen

-- name: select_command
-- A command that was run under an idempotency key.
SELECT key, actor, digest, answer, time FROM lazaretto_commands WHERE key = :key

-- name: save_command
-- Such a command with its answer, in place of one whose key was forgotten.
INSERT INTO lazaretto_commands (key, actor, digest, answer, time) VALUES (:key, :actor, :digest, :answer, :time)
ON CONFLICT (key) DO UPDATE SET actor = excluded.actor, digest = excluded.digest, answer = excluded.answer,
    time = excluded.time

-- name: delete_commands
-- Some commands that were run before a time.
DELETE FROM lazaretto_commands
WHERE key IN (SELECT key FROM lazaretto_commands WHERE time < :before ORDER BY time LIMIT :limit)
