-- Rates: what happened to the messages of queues, by minute, by hour and ever. See queries.sql.

-- name: add_rates
-- What a process has counted since it last wrote.
INSERT INTO lazaretto_rates AS r (queue_id, span, start, sent, received, completed, failed, dead)
VALUES [rows] (:queue, :span, :start, :sent, :received, :completed, :failed, :dead)
ON CONFLICT (queue_id, span, start) DO UPDATE SET sent = r.sent + excluded.sent,
    received = r.received + excluded.received, completed = r.completed + excluded.completed,
    failed = r.failed + excluded.failed, dead = r.dead + excluded.dead

-- name: select_rates
-- What a queue's messages came to.
SELECT start, sent, received, completed, failed, dead FROM lazaretto_rates
WHERE queue_id = :queue_id AND span = :span AND start >= :since ORDER BY start

-- name: sum_rates
-- What came of queues in the latest minutes.
SELECT queue_id, sum(sent), sum(received), sum(completed), sum(failed), sum(dead) FROM lazaretto_rates
WHERE queue_id [among ids] AND span = 1 AND start >= :since GROUP BY queue_id

-- name: select_totals
-- What came of queues ever.
SELECT queue_id, sent, received, completed, failed, dead FROM lazaretto_rates
WHERE queue_id [among ids] AND span = 0 AND start = 0

-- name: forget_rates
-- Counts of long ago.
DELETE FROM lazaretto_rates WHERE (queue_id, span, start) IN (
    SELECT queue_id, span, start FROM lazaretto_rates WHERE span = :span AND start < :before LIMIT :limit)

-- name: delete_rates_of
-- The counts of a deleted queue.
DELETE FROM lazaretto_rates WHERE queue_id = :queue_id
