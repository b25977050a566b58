-- Repairs: frozen sets of dead letters that are sent back, and what became of each. See queries.sql.

-- part: repair_columns
-- A repair, in the order of RepairRecord.
r.repair, r.name, r.queue_id, r.subqueue, r.path, r.phase, r.why, r.plan, r.pace, r.letters, r.position, r.sent,
       r.skipped, r.processed, r.failed, r.taken_back, r.undone, r.actor, r.created, r.changed, r.ended, r.runner,
       r.token, r.lease_until

-- part: item_columns
-- What became of a letter, in the order of RepairItem.
i.key, i.new_key, i.generation, i.before, i.why, i.outcome

-- part: died_again
-- Whether a letter that was sent back is a dead letter again, or was one.
EXISTS (SELECT 1 FROM lazaretto_dead_letters d WHERE d.key = i.new_key AND d.generation >= i.generation)

-- name: insert_repair
-- A new repair; its number.
INSERT INTO lazaretto_repairs (name, queue_id, subqueue, path, phase, plan, pace, letters, actor, created, changed)
VALUES (:name, :queue_id, :subqueue, :path, :phase, :plan, :pace, :letters, :actor, :now, :now) RETURNING repair

-- name: select_repair
-- One repair.
SELECT [repair_columns] FROM lazaretto_repairs r WHERE r.repair = :repair

-- name: select_repair_named
-- One repair by its name.
SELECT [repair_columns] FROM lazaretto_repairs r WHERE r.name = :name

-- name: select_repairs
-- All repairs, the latest first.
SELECT [repair_columns] FROM lazaretto_repairs r
WHERE (CAST(:queue_id AS BIGINT) IS NULL OR r.queue_id = :queue_id) ORDER BY r.repair DESC LIMIT :limit

-- name: select_running_repairs
-- The repairs on which there is work to do, the oldest first.
SELECT [repair_columns] FROM lazaretto_repairs r
WHERE r.phase IN ('canary', 'applying', 'undoing') ORDER BY r.repair

-- name: count_repairs
-- How many repairs there were.
SELECT coalesce(max(repair), 0) FROM lazaretto_repairs

-- name: save_repair
-- How a repair stands.
UPDATE lazaretto_repairs SET phase = :phase, why = :why, pace = :pace, position = :position, sent = :sent,
    skipped = :skipped, processed = :processed, failed = :failed, taken_back = :taken_back, undone = :undone,
    changed = :changed, ended = :ended, runner = :runner, token = :token, lease_until = :lease_until
WHERE repair = :repair

-- name: insert_repair_members
-- Members of a repair, in their order.
INSERT INTO lazaretto_repair_members (repair, part, keys) VALUES [rows] (:repair, :part, :keys)

-- name: select_repair_members
-- One part of them.
SELECT keys FROM lazaretto_repair_members WHERE repair = :repair AND part = :part

-- name: insert_repair_items
-- What became of letters.
INSERT INTO lazaretto_repair_items (repair, key, new_key, generation, before, why, outcome)
VALUES [rows] (:repair, :key, :new_key, :generation, :before, :why, :outcome)

-- name: select_repair_items
-- What became of some letters.
SELECT [item_columns] FROM lazaretto_repair_items i WHERE i.repair = :repair AND i.key [among keys]

-- name: select_skipped_items
-- Letters that were skipped, in the order of their numbers.
SELECT [item_columns] FROM lazaretto_repair_items i
WHERE i.repair = :repair AND i.key > :after AND i.why IS NOT NULL ORDER BY i.key LIMIT :limit

-- name: select_items_of
-- What became of all letters, in the order of their numbers, with how the message stands.
-- locks: not looked at
-- claims: not looked at
SELECT [item_columns], [died_again], (SELECT m.state FROM lazaretto_messages m WHERE m.key = i.new_key)
FROM lazaretto_repair_items i
WHERE i.repair = :repair AND i.key > :after ORDER BY i.key LIMIT :limit

-- name: select_failed_items
-- The same of those that are dead letters again, or were.
-- locks: not looked at
-- claims: not looked at
SELECT [item_columns], [died_again], (SELECT m.state FROM lazaretto_messages m WHERE m.key = i.new_key)
FROM lazaretto_repair_items i
WHERE i.repair = :repair AND i.key > :after AND i.why IS NULL
    AND (i.outcome = 'failed' OR coalesce(i.outcome, '') <> 'undone' AND [died_again])
ORDER BY i.key LIMIT :limit

-- name: count_open_items
-- How many letters are watched.
SELECT count(*) FROM lazaretto_repair_items i [index lazaretto_repair_items_open]
WHERE i.repair = :repair AND i.outcome IS NULL

-- name: select_finished_items
-- Letters that are watched and finished: whether they died again.
-- locks: not looked at
-- claims: not looked at
SELECT i.key, [died_again] FROM lazaretto_repair_items i [index lazaretto_repair_items_open]
WHERE i.repair = :repair AND i.outcome IS NULL
    AND ([died_again] OR (SELECT m.key FROM lazaretto_messages m WHERE m.key = i.new_key) IS NULL)
ORDER BY i.key LIMIT :limit

-- name: set_item_outcomes
-- How letters ended.
UPDATE lazaretto_repair_items SET outcome = :outcome WHERE repair = :repair AND key [among keys]

-- name: skip_items
-- Letters that were taken out of a repair after they had failed again.
UPDATE lazaretto_repair_items SET outcome = 'skipped', why = :why WHERE repair = :repair AND key [among keys]

-- name: count_item_outcomes
-- How many letters stand how: what is known of them, whether they died again, and the state of their message.
-- locks: not looked at
-- claims: not looked at
SELECT x.outcome, x.died, x.state, count(*) FROM (
    SELECT i.outcome, [died_again] AS died,
           (SELECT m.state FROM lazaretto_messages m WHERE m.key = i.new_key) AS state
    FROM lazaretto_repair_items i WHERE i.repair = :repair AND i.why IS NULL) x
GROUP BY x.outcome, x.died, x.state

-- name: insert_repair_originals
-- Edited letters as they were.
INSERT INTO lazaretto_repair_originals (repair, key, message_id, body)
VALUES [rows] (:repair, :key, :message_id, :body)

-- name: select_repair_originals
-- Edited letters as they were.
SELECT key, message_id, body FROM lazaretto_repair_originals WHERE repair = :repair AND key [among keys]

-- name: select_frozen
-- Which dead letters a repair is about.
-- locks: not looked at
-- claims: not looked at
SELECT d.key, d.fingerprint, d.dead_lettered FROM lazaretto_dead_letters d WHERE [that_wait]

-- name: select_frozen_alike
-- The same of some fingerprints.
-- locks: not looked at
-- claims: not looked at
SELECT d.key, d.fingerprint, d.dead_lettered FROM lazaretto_dead_letters d
WHERE d.fingerprint [among fingerprints] AND [that_wait]

-- name: select_frozen_named
-- The same among some keys.
-- locks: not looked at
-- claims: not looked at
SELECT d.key, d.fingerprint, d.dead_lettered FROM lazaretto_dead_letters d
WHERE d.key [among keys] AND [among_alike] AND [that_wait]

-- name: select_headers
-- The headers of messages.
-- locks: not looked at
-- claims: not looked at
SELECT key, headers FROM lazaretto_messages WHERE key [among keys]

-- name: reopen_dead_letters
-- Dead letters that were sent back and are taken back.
UPDATE lazaretto_dead_letters SET resolution = NULL, resolved = NULL, resubmitted_as = NULL WHERE key [among keys]

-- name: select_ended_repairs
-- Repairs that ended before a time.
SELECT repair FROM lazaretto_repairs WHERE ended < :before ORDER BY repair LIMIT :limit

-- name: delete_repair_originals
-- The originals of repairs that are closed.
DELETE FROM lazaretto_repair_originals WHERE repair [among repairs]

-- name: delete_repair_items
-- What became of the letters of repairs that are no longer kept.
DELETE FROM lazaretto_repair_items WHERE repair [among repairs]

-- name: delete_repair_members
-- The sets of repairs that are no longer kept.
DELETE FROM lazaretto_repair_members WHERE repair [among repairs]

-- name: delete_repairs
-- Repairs that are no longer kept.
DELETE FROM lazaretto_repairs WHERE repair [among repairs]
