-- Queries of whole columns, which other programs than the store's own run on any database, read only. Parameters are ?.

-- name: shard_messages
-- What a shard of a claim holds, in order.
SELECT [columns] FROM lazaretto_messages m
WHERE m.key >= ? AND m.key <= ?
    AND (m.state = {LOCKED} AND m.lock_token = ? OR m.state = {FRESH} AND m.due IS NULL AND ([in_ranges]))
ORDER BY m.key

-- name: messages_view
-- Messages of a queue or its dead-letter subqueue as they stand.
SELECT [columns] FROM lazaretto_messages m WHERE m.key > ? AND m.key <= ?[conditions] ORDER BY m.key

-- name: dead_letters_view
-- Dead letters that wait, with why. Only the key finds them, not an index of those that wait.
SELECT [columns] FROM lazaretto_messages m JOIN lazaretto_dead_letters d ON d.key = [main_key m.key]
WHERE m.key > ? AND m.key <= ? AND coalesce(d.resolution, '') = ''[conditions] ORDER BY m.key

-- name: letters_view
-- Dead letters that wait, without their messages.
SELECT [columns] FROM lazaretto_dead_letters m
WHERE m.key > ? AND m.key <= ? AND m.resolution IS NULL AND m.subqueue = ?

-- name: attempts_view
-- Attempts that did not complete, of messages that are there.
SELECT [columns] FROM lazaretto_attempts m WHERE m.key > ? AND m.key <= ?[conditions] ORDER BY m.key, m.number

-- name: events_view
-- The event log.
SELECT [columns] FROM lazaretto_events m WHERE m.position > ? AND m.position <= ?[conditions] ORDER BY m.position

-- name: messages_ends
-- The first and the last message between two keys.
SELECT (SELECT min(key) FROM lazaretto_messages WHERE key > ? AND key <= ?),
       (SELECT max(key) FROM lazaretto_messages WHERE key > ? AND key <= ?)

-- name: letters_ends
-- The first and the last dead letter between two keys.
SELECT (SELECT min(key) FROM lazaretto_dead_letters WHERE key > ? AND key <= ?),
       (SELECT max(key) FROM lazaretto_dead_letters WHERE key > ? AND key <= ?)

-- name: attempts_ends
-- The first and the last message between two keys that has attempts.
SELECT (SELECT min(key) FROM lazaretto_attempts WHERE key > ? AND key <= ?),
       (SELECT max(key) FROM lazaretto_attempts WHERE key > ? AND key <= ?)

-- name: events_ends
-- The first and the last event between two positions.
SELECT (SELECT min(position) FROM lazaretto_events WHERE position > ? AND position <= ?),
       (SELECT max(position) FROM lazaretto_events WHERE position > ? AND position <= ?)
