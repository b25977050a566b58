-- Queries of dialogs, the same for every database.
-- The streams of a conversation are sessions of its queue; see the module conversations for their names.

-- name: select_definitions
-- Every message type, contract, service and priority, as JSON.
SELECT kind, body FROM lazaretto_definitions

-- name: save_definition
-- A definition, in the place of one of its name.
INSERT INTO lazaretto_definitions (kind, name, body) VALUES (:kind, :name, :body)
ON CONFLICT (kind, name) DO UPDATE SET body = excluded.body

-- name: delete_definition
-- A definition that is dropped.
DELETE FROM lazaretto_definitions WHERE kind = :kind AND name = :name

-- part: conversation_columns
-- What is kept of one end of a dialog, in this order.
handle, queue_id, service, far_service, contract, group_id, state, priority, far_queue_id, far_priority, sent,
created, expires, error_code, error_text

-- name: select_conversation
-- One end of a dialog.
SELECT [conversation_columns]
FROM lazaretto_conversations WHERE handle = :handle

-- name: save_conversation
-- One end of a dialog: new, or its new standing.
INSERT INTO lazaretto_conversations ([conversation_columns])
VALUES (:handle, :queue_id, :service, :far_service, :contract, :group_id, :state, :priority, :far_queue_id,
        :far_priority, :sent, :created, :expires, :error_code, :error_text)
ON CONFLICT (handle) DO UPDATE
SET group_id = excluded.group_id, state = excluded.state, error_code = excluded.error_code,
    error_text = excluded.error_text

-- name: delete_conversation
-- One end of a dialog that is over.
DELETE FROM lazaretto_conversations WHERE handle = :handle

-- name: count_sent
-- How many messages an end has sent.
UPDATE lazaretto_conversations SET sent = :sent, state = :state WHERE handle = :handle

-- part: wanted_conversation
-- Whether a conversation comes after a handle, and is of a queue, in a state and of a group, if these are given.
handle > :after
  AND (CAST(:queue_id AS BIGINT) IS NULL OR queue_id = :queue_id)
  AND (CAST(:state AS TEXT) IS NULL OR state = :state)
  AND (CAST(:group_id AS TEXT) IS NULL OR group_id = :group_id)

-- name: select_conversations
-- Conversations by handle.
SELECT [conversation_columns]
FROM lazaretto_conversations
WHERE [wanted_conversation]
ORDER BY handle LIMIT :limit

-- name: select_held_conversations
-- Conversations that a poison message holds, by handle: found by the streams that are held.
SELECT [conversation_columns]
FROM lazaretto_conversations
WHERE (queue_id, handle) IN (
    SELECT queue_id, substr(session_id, 2, 34) FROM lazaretto_sessions WHERE held_key IS NOT NULL)
  AND [wanted_conversation]
ORDER BY handle LIMIT :limit

-- name: uses_of_service
-- Whether a conversation is of a service, at either end.
SELECT EXISTS (SELECT 1 FROM lazaretto_conversations WHERE service = :name OR far_service = :name)

-- name: uses_of_contract
-- Whether a conversation is under a contract.
SELECT EXISTS (SELECT 1 FROM lazaretto_conversations WHERE contract = :name)

-- name: group_open
-- Whether a conversation of a group is not ended at this end.
SELECT EXISTS (
    SELECT 1 FROM lazaretto_conversations
    WHERE queue_id = :queue_id AND group_id = :group_id AND state <> 'disconnected_outbound')

-- name: select_levels
-- The priorities of which messages are in a queue: one step from each to the next.
-- locks: not looked at
-- claims: not looked at
SELECT substr(stream, 1, 1) FROM (
    WITH RECURSIVE firsts (stream) AS (
        SELECT (SELECT session_id FROM lazaretto_messages
                WHERE [queue_of key] = :queue_id AND session_id > '' ORDER BY session_id LIMIT 1)
        UNION ALL
        SELECT (SELECT session_id FROM lazaretto_messages
                WHERE [queue_of key] = :queue_id AND session_id > substr(firsts.stream, 1, 1) || '~'
                ORDER BY session_id LIMIT 1)
        FROM firsts WHERE firsts.stream IS NOT NULL
    )
    SELECT stream FROM firsts WHERE stream IS NOT NULL
) levels

-- part: first_of_stream
-- The key of the first message of `stream` that was not handed out, or can be again.
SELECT min(k) FROM (
    SELECT (SELECT key FROM lazaretto_messages
            WHERE [queue_of key] = :queue_id AND session_id = stream AND state = {FRESH}
            ORDER BY key LIMIT 1) AS k
    UNION ALL SELECT (SELECT key FROM lazaretto_messages
            WHERE [queue_of key] = :queue_id AND session_id = stream AND state = {READY}
            ORDER BY key LIMIT 1)
    UNION ALL SELECT (SELECT key FROM lazaretto_messages
            WHERE [queue_of key] = :queue_id AND session_id = stream AND state = {SUSPECT}
            ORDER BY key LIMIT 1)) receivable

-- part: first_held_of_stream
-- The key of the first message of `stream` that holds back what is behind it. Few are locked; by their keys as they
-- are PostgreSQL would go through all messages there are.
SELECT coalesce(min(k), 9223372036854775807) FROM (
    SELECT (SELECT key FROM lazaretto_messages
            WHERE [queue_of key] = :queue_id AND session_id = stream AND state = {DELAYED}
            ORDER BY key LIMIT 1) AS k
    UNION ALL SELECT (SELECT key FROM lazaretto_messages
            WHERE [queue_of key] = :queue_id AND session_id = stream AND state = {LOCKED} AND lock_token <> :token
            ORDER BY key + 0 LIMIT 1)) held

-- name: next_stream
-- The next stream with a message that nothing holds back, of a group that nobody else has locked: stream by stream, each
-- looked at once, however many messages wait in it.
-- locks: not looked at
-- claims: not looked at
SELECT found.stream, c.handle, c.group_id, c.service, c.contract
FROM (
    WITH RECURSIVE streams (stream) AS (
        SELECT (SELECT session_id FROM lazaretto_messages
                WHERE [queue_of key] = :queue_id AND session_id > :after AND session_id < :end
                ORDER BY session_id LIMIT 1)
        UNION ALL
        SELECT (SELECT session_id FROM lazaretto_messages
                WHERE [queue_of key] = :queue_id AND session_id > streams.stream AND session_id < :end
                ORDER BY session_id LIMIT 1)
        FROM streams WHERE streams.stream IS NOT NULL AND NOT EXISTS (
            SELECT 1 FROM lazaretto_conversations c
            LEFT JOIN lazaretto_sessions g ON g.queue_id = :queue_id AND g.session_id = 'g' || c.group_id
            LEFT JOIN lazaretto_sessions h ON h.queue_id = :queue_id AND h.session_id = streams.stream
            WHERE c.handle = substr(streams.stream, 2, 34)
              AND (g.locked_until IS NULL OR g.locked_until <= :now OR g.lock_token = :token) AND h.held_key IS NULL
              AND ([first_of_stream]) < ([first_held_of_stream]))
    )
    SELECT CASE WHEN count(*) = count(stream) THEN max(stream) END AS stream FROM streams
) found
JOIN lazaretto_conversations c ON c.handle = substr(found.stream, 2, 34)

-- name: open_stream
-- The stream of a group that is to be received from first: timers, then errors, then messages by priority. With it,
-- the first message that can be received, and the first one that holds back what is behind it. The LIMIT within makes
-- SQLite look at each stream once; NOT EXISTS would make PostgreSQL read all sessions of the queue.
-- locks: not looked at
-- claims: not looked at
SELECT stream, handle, group_id, service, contract, first, before FROM (
    SELECT l.stream, l.handle, l.group_id, l.service, l.contract, l.kind, l.priority,
           ([first_of_stream]) AS first, ([first_held_of_stream]) AS before
    FROM (
        SELECT substr('0123456789a', CAST(c.priority AS INTEGER) + 1, 1) || c.handle || kinds.kind AS stream,
               kinds.kind, c.priority, c.handle, c.group_id, c.service, c.contract
        FROM lazaretto_conversations c
        CROSS JOIN (SELECT 'a' AS kind UNION ALL SELECT 'b' UNION ALL SELECT 'm') kinds
        WHERE c.queue_id = :queue_id AND c.group_id = :group_id
          AND (CAST(:handle AS TEXT) IS NULL OR c.handle = :handle)
    ) l
    LIMIT 1000000
) streams
WHERE first < before AND (
    SELECT h.held_key FROM lazaretto_sessions h WHERE h.queue_id = :queue_id AND h.session_id = stream) IS NULL
ORDER BY kind, priority DESC, first LIMIT 1

-- name: stream_messages
-- A stream's next messages, as they are handed over, and the first one that must be handed over alone.
-- locks: not looked at
-- claims: not looked at
SELECT m.key, [body] AS body,
       message_id, enqueued, expires, headers, body_id, deliveries + 1, delivery_count, cycle, generation,
       enqueued_sequence_number, NULL, NULL, cycle_attempts, state
FROM (
    SELECT * FROM (
        SELECT * FROM lazaretto_messages
        WHERE [queue_of key] = :queue_id AND session_id = :session_id AND state = {READY} AND key < :before
        ORDER BY key LIMIT :limit) ready
    UNION ALL SELECT * FROM (
        SELECT * FROM lazaretto_messages
        WHERE [queue_of key] = :queue_id AND session_id = :session_id AND state = {FRESH} AND key < :before
        ORDER BY key LIMIT :limit) fresh
    UNION ALL SELECT * FROM (
        SELECT * FROM lazaretto_messages
        WHERE [queue_of key] = :queue_id AND session_id = :session_id AND state = {SUSPECT} AND key < :before
        ORDER BY key LIMIT 1) suspect
) m
ORDER BY m.key LIMIT :limit

-- name: forget_group_lock
-- Give a group up that has no state.
DELETE FROM lazaretto_sessions
WHERE queue_id = :queue_id AND session_id = :session_id AND lock_token = :token AND state IS NULL

-- name: free_group_lock
-- Give a group up that has a state.
UPDATE lazaretto_sessions SET lock_token = NULL, locked_until = NULL, locked_by = NULL
WHERE queue_id = :queue_id AND session_id = :session_id AND lock_token = :token

-- name: insert_happening
-- An entry of a dialog's log.
INSERT INTO lazaretto_dialog_log (dialog_id, time, sent, handle, kind, message_type, number, text)
VALUES (:dialog_id, :now, :sent, :handle, :kind, :message_type, :number, :text)

-- name: select_happenings
-- A dialog's log, oldest first.
SELECT position, time, sent, handle, kind, message_type, number, text FROM lazaretto_dialog_log
WHERE dialog_id = :dialog_id ORDER BY position

-- name: trim_happenings
-- Forget all but the latest entries of a dialog's log.
DELETE FROM lazaretto_dialog_log
WHERE dialog_id = :dialog_id AND position <= (
    SELECT position FROM lazaretto_dialog_log
    WHERE dialog_id = :dialog_id ORDER BY position DESC LIMIT 1 OFFSET :keep)

-- name: delete_happenings
-- Forget a dialog's log.
DELETE FROM lazaretto_dialog_log WHERE dialog_id = :dialog_id
