-- Queries of whole columns, which other programs than the store's own run on the file, read only.

-- name: shard_messages
-- What a shard of a claim holds, in order.
SELECT [columns] FROM lazaretto_messages m
WHERE m.key >= ? AND m.key <= ? AND m.state = 2 AND m.lock_token = ? ORDER BY m.key
