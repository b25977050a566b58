-- What SQLite needs a text of its own for; all else stands in ../sql/queries.sql, which says how this is written.

-- == queues ==

-- name: select_high_water
-- The highest sequence number known to be used by messages that are gone, in any of the queue's partitions.
-- Differs because the file keeps the number in the queue's row.
SELECT high_water FROM lazaretto_queues WHERE queue_id = [queue_of_lane :queue_id]

-- name: set_high_water
-- Keep the highest sequence number when the message that has it goes.
-- Differs because the file keeps the number in the queue's row.
UPDATE lazaretto_queues SET high_water = :sequence_number
WHERE queue_id = [queue_of_lane :queue_id] AND high_water < :sequence_number

-- name: delete_queue
-- Free the path of a queue; its id is never used again.
-- Differs because the file keeps nothing of a queue elsewhere.
DELETE FROM lazaretto_queues WHERE queue_id = :queue_id

-- name: select_problems
-- What cannot be: messages that lie in a topic and do not wait for their time, and wrong counts.
-- Differs because SQLite's own check finds what is damaged.
[misplaced]
UNION ALL
[miscounted]
UNION ALL
[misclaimed]

-- name: select_standings
-- How queues stand: what was discarded, the size, subscriptions, sessions held back, the numbers of messages in
-- both dead-letter subqueues; and a row for each state that messages of the queue itself are in.
-- Differs because SQLite has no lateral joins, and its only ranges are those of claims.
SELECT [standing], state, amount
FROM lazaretto_queues q LEFT JOIN (
    WITH ranged (queue_id, amount) AS (
        SELECT [queue_of r.last], count(*) FROM lazaretto_claimed_ranges r CROSS JOIN lazaretto_messages m
        WHERE m.key >= r.first AND m.key <= r.last AND [is_ranged] GROUP BY 1
    )
    SELECT queue_id, state, sum(amount) AS amount FROM (
        SELECT i.value AS queue_id, state, count(*) AS amount FROM json_each(:ids) i CROSS JOIN lazaretto_messages m
        WHERE m.key > [lower_bound i.value] AND m.key < [subqueue_bound i.value, {DEAD_LETTER}] GROUP BY 1, 2
        UNION ALL SELECT queue_id, {LOCKED}, amount FROM ranged
        UNION ALL SELECT queue_id, {FRESH}, -amount FROM ranged
    ) GROUP BY 1, 2 HAVING sum(amount) > 0
) AS counts ON counts.queue_id = q.queue_id
WHERE q.queue_id [among ids]

-- == messages ==

-- name: select_lock_holders
-- Who holds which messages, but for sessions.
-- Differs because a file has no ranges.
-- claims: not looked at
SELECT locked_by, key FROM ([dues]) AS held

-- name: select_last_body
-- Behind which id there are ids for bodies that nobody else takes.
-- Differs because the one writer of a file knows all ids.
SELECT coalesce(max(body_id), 0) FROM lazaretto_bodies

-- part: as_locked
-- Messages as their locks have them.
-- Differs because the file knows no ranges but those of claims.
lazaretto_messages m

-- name: count_down_uses
-- Messages that had a shared body are gone; an id stands for each of them.
-- Differs because SQLite takes lists as JSON.
UPDATE lazaretto_shared_bodies SET uses = uses - gone.count
FROM (SELECT value AS body_id, count(*) AS count FROM json_each(:body_ids) GROUP BY value) AS gone
WHERE lazaretto_shared_bodies.body_id = gone.body_id

-- part: fresh_start
-- Behind which key the next fresh messages stand.
-- Differs because the file knows no ranges.
:start

-- part: timers_due
-- Whether the time of any message, session or claim has come.
-- Differs because the file knows no ranges, and its index keeps nothing that is gone.
EXISTS (SELECT 1 FROM lazaretto_messages INDEXED BY lazaretto_messages_due WHERE due <= :now)
    OR EXISTS (SELECT 1 FROM lazaretto_sessions WHERE locked_until <= :now)
    OR EXISTS (SELECT 1 FROM lazaretto_claims WHERE lease_until <= :now)
    OR EXISTS (SELECT 1 FROM lazaretto_queues WHERE idle_at <= :now)

-- name: next_due
-- When the store must look at a message again.
-- Differs because the file knows no ranges, and its index keeps nothing that is gone.
-- claims: not looked at
SELECT min(due) FROM lazaretto_messages INDEXED BY lazaretto_messages_due WHERE due IS NOT NULL

-- part: as_it_stands
-- Messages as they stand.
-- Differs because the file knows no ranges but those of claims.
SELECT [peeked_columns], m.deliveries + ([is_claimed]), CASE WHEN [is_claimed] THEN {LOCKED} ELSE m.state END,
       CASE WHEN m.state = {LOCKED} THEN m.due END
FROM lazaretto_messages m [dead_letter]

-- == attempts and dead letters ==

-- part: that_match
-- Dead letters that a filter selects, whose parts are null when not asked for.
-- Differs because SQLite finds texts in texts and in bodies alike.
(:reason IS NULL OR d.reason = :reason)
  AND (:error_type IS NULL OR d.error_type = :error_type)
  AND (:since IS NULL OR d.dead_lettered >= :since)
  AND (:until IS NULL OR d.dead_lettered < :until)
  AND (:keys IS NULL OR d.key [among keys])
  AND (:text IS NULL OR instr(d.description, :text) OR instr(d.error_message, :text)
       OR instr((SELECT [body]
                 FROM lazaretto_messages m WHERE m.key = [dead_key d.key, d.subqueue]), CAST(:text AS BLOB)))

-- part: at_most
-- No more than :limit, if that is not -1.
-- Differs because -1 means all to SQLite.
LIMIT :limit
