-- Pages of dead letters: in both directions, by number, by time, or alike. See queries.sql.

-- part: that_wait
-- Dead letters that wait, by a filter.
d.key > :first AND d.key <= :last AND d.resolution IS NULL AND d.subqueue = :subqueue AND [that_match]
ORDER BY d.key [at_most]

-- part: among_alike
-- Of some fingerprints, if these are asked for.
(CAST(:alike AS BIGINT) = 0 OR d.fingerprint [among fingerprints])

-- part: in_order
-- Dead letters by number: their messages stand together, those that are resolved have none. Only the key finds them,
-- not an index of those that wait.
SELECT [letter_columns] FROM lazaretto_messages m JOIN lazaretto_dead_letters d ON d.key = [main_key m.key]
WHERE m.key > :after AND m.key < :before AND coalesce(d.resolution, '') = '' AND [among_alike] AND [that_match]

-- part: in_time
-- Dead letters by the time at which they were set aside.
SELECT [letter_columns] FROM lazaretto_dead_letters d
WHERE [queue_of d.key] = :queue_id AND d.subqueue = :subqueue AND d.resolution IS NULL
    AND d.dead_lettered >= :after_time AND d.dead_lettered <= :before_time
    AND (d.dead_lettered > :after_time OR d.key > :after_key)
    AND (d.dead_lettered < :before_time OR d.key < :before_key) AND [among_alike] AND [that_match]

-- part: of_fingerprint
-- Dead letters with one fingerprint.
SELECT [letter_columns] FROM lazaretto_dead_letters d
WHERE d.fingerprint = :fingerprint AND d.key > :after AND d.key < :before AND d.resolution IS NULL
    AND d.subqueue = :subqueue

-- name: select_letters_up
-- The first ones by number.
-- locks: not looked at
-- claims: not looked at
[in_order] ORDER BY m.key LIMIT :limit

-- name: select_letters_down
-- The last ones by number.
-- locks: not looked at
-- claims: not looked at
[in_order] ORDER BY m.key DESC LIMIT :limit

-- name: select_times_up
-- The first ones by time.
-- locks: not looked at
-- claims: not looked at
[in_time] ORDER BY d.dead_lettered, d.key LIMIT :limit

-- name: select_times_down
-- The last ones by time.
-- locks: not looked at
-- claims: not looked at
[in_time] ORDER BY d.dead_lettered DESC, d.key DESC LIMIT :limit

-- name: select_like_up
-- The first ones of a fingerprint.
[of_fingerprint] ORDER BY d.key LIMIT :limit

-- name: select_like_down
-- The last ones of a fingerprint.
[of_fingerprint] ORDER BY d.key DESC LIMIT :limit

-- name: select_letter_ends
-- The keys of the first and the last message of a dead-letter subqueue.
-- locks: not looked at
-- claims: not looked at
SELECT (SELECT min(key) FROM lazaretto_messages WHERE key > :after AND key < :before),
       (SELECT max(key) FROM lazaretto_messages WHERE key > :after AND key < :before)

-- name: select_time_ends
-- When the first and the last waiting dead letter of a subqueue was set aside.
SELECT (SELECT min(d.dead_lettered) FROM lazaretto_dead_letters d
        WHERE [queue_of d.key] = :queue_id AND d.subqueue = :subqueue AND d.resolution IS NULL),
       (SELECT max(d.dead_lettered) FROM lazaretto_dead_letters d
        WHERE [queue_of d.key] = :queue_id AND d.subqueue = :subqueue AND d.resolution IS NULL)

-- name: select_with_id
-- Waiting dead letters with a message id.
SELECT d.key FROM lazaretto_dead_letters d
WHERE d.message_id = :message_id AND d.resolution IS NULL AND d.subqueue = :subqueue
    AND d.key > :first AND d.key <= :last ORDER BY d.key LIMIT :limit

-- name: select_previews
-- How messages begin, and their size in bytes.
-- locks: not looked at
-- claims: not looked at
SELECT m.key, coalesce(length([body]), 0), substr([body], 1, :longest)
FROM lazaretto_messages m WHERE m.key [among keys]
