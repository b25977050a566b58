-- What PostgreSQL needs a text of its own for; all else stands in ../sql/queries.sql, which says how this is written.

-- == queues ==

-- name: select_high_water
-- The highest sequence number known to be used by messages that are gone.
-- Differs because the server keeps the number in rows of its own: a queue's row would be written anew each time.
SELECT greatest(
    (SELECT sequence_number FROM lazaretto_high_water
     WHERE queue_id = :queue_id::bigint ORDER BY sequence_number DESC LIMIT 1),
    (SELECT sequence_number FROM lazaretto_high_water
     WHERE queue_id = [queue_of_lane :queue_id] ORDER BY sequence_number DESC LIMIT 1), 0)

-- name: set_high_water
-- Keep the highest sequence number when the message that has it goes.
-- Differs because the server keeps the number in rows of its own.
WITH lower AS (
    DELETE FROM lazaretto_high_water
    WHERE queue_id = :queue_id AND sequence_number = (
        SELECT sequence_number FROM lazaretto_high_water
        WHERE queue_id = :queue_id ORDER BY sequence_number DESC LIMIT 1)
        AND sequence_number < :sequence_number
), higher AS (
    SELECT 1 FROM lazaretto_high_water
    WHERE queue_id = :queue_id AND sequence_number >= :sequence_number LIMIT 1
)
INSERT INTO lazaretto_high_water (queue_id, sequence_number) SELECT :queue_id, :sequence_number
WHERE NOT EXISTS (TABLE higher)

-- name: delete_queue
-- Free the path of a queue; its id is never used again.
-- Differs because the server keeps the high water in a table of its own.
-- confined: changes how a queue is set
WITH high_water AS (
    DELETE FROM lazaretto_high_water
    WHERE queue_id = ANY(ARRAY(SELECT :queue_id::bigint + [first_lane n] FROM generate_series(0, 64) AS n))
)
DELETE FROM lazaretto_queues WHERE queue_id = :queue_id

-- name: select_standings
-- How queues stand: what was discarded, the size, subscriptions, sessions held back, the numbers of messages in
-- both dead-letter subqueues; and a row for each state that messages of the queue itself are in.
-- Differs because messages that ranges of two kinds lock are counted as locked.
SELECT [standing], state, amount
FROM lazaretto_queues q LEFT JOIN LATERAL (
    SELECT state, sum(n)::bigint AS amount FROM (
        SELECT state, count(*) AS n FROM lazaretto_messages
        WHERE key > [lower_bound q.queue_id] AND key < [subqueue_bound q.queue_id, {DEAD_LETTER}] GROUP BY state
        UNION ALL
        SELECT unnest(ARRAY[{LOCKED}, {FRESH}]), unnest(ARRAY[r.amount, -r.amount])
        FROM lazaretto_range_locks r
        WHERE last > [lower_bound q.queue_id] AND last < [subqueue_bound q.queue_id, {DEAD_LETTER}]
        UNION ALL
        SELECT unnest(ARRAY[{LOCKED}, {FRESH}]), unnest(ARRAY[c.amount, -c.amount])
        FROM (SELECT count(*) AS amount FROM lazaretto_claimed_ranges r CROSS JOIN LATERAL (
                  SELECT 1 FROM lazaretto_messages
                  WHERE key >= r.first AND key <= r.last AND [is_ranged]) AS ranged
              WHERE r.last > [lower_bound q.queue_id] AND r.last < [subqueue_bound q.queue_id, {DEAD_LETTER}]) AS c
    ) AS counted GROUP BY state HAVING sum(n) > 0
) AS counts ON true
WHERE q.queue_id [among ids]

-- == messages ==

-- name: copy_messages
-- Many new messages.
-- Differs because only the server has COPY.
-- locks: not looked at
-- claims: not looked at
COPY lazaretto_messages (key, enqueued, [new_columns])
FROM STDIN (FORMAT BINARY)

-- name: select_last_body
-- Behind which id there are ids for bodies that nobody else takes.
-- Differs because the server gives each process ids by the block.
SELECT nextval('lazaretto_body_blocks'::regclass) << 20

-- name: copy_bodies
-- Many bodies.
-- Differs because only the server has COPY.
COPY lazaretto_bodies (body_id, body) FROM STDIN (FORMAT BINARY)

-- part: is_clear
-- Whether nothing is to be looked at before the next fresh messages of a queue are handed out, if that is asked,
-- and behind which key these stand: behind all that is locked. Whether a timer is due is put in.
-- Differs because only the server looks and takes in one statement.
SELECT NOT (:look AND (
    :timers
    OR EXISTS (SELECT 1 FROM lazaretto_messages WHERE key > :first AND key <= :last AND state = {SUSPECT})
    OR (SELECT spent FROM ready)
)) AS clear,
[fresh_start] AS start

-- part: ready
-- The first messages of a queue that were handed out before and are receivable again, if that is asked; and whether
-- one of them has no attempt left.
-- Differs because only the server looks and takes in one statement.
SELECT coalesce(array_agg(key), '{}') AS keys, coalesce(bool_or(spent), false) AS spent FROM (
    SELECT key, cycle_attempts > :retries::bigint OR cycle > :cycles::bigint AS spent FROM lazaretto_messages
    WHERE :look AND key > :first AND key <= :last AND state = {READY} AND [lives]
    ORDER BY key LIMIT :limit FOR UPDATE SKIP LOCKED) AS first_ready

-- part: taking_rows
-- Lock the next messages of a queue, each under a token of a list, if nothing is to be looked at first. They are
-- looked up by a list of keys: a join may be planned for a table that seems empty, and then reads all that is kept for
-- an open transaction. What others are taking is passed over, and may come back: so it is told which fresh message is
-- the first that can be seen.
-- Differs because each question costs a round trip: the server looks and takes in one.
ready AS ([ready]), clear AS ([is_clear]), fresh AS (
    SELECT ARRAY(
        SELECT key FROM lazaretto_messages
        WHERE (SELECT clear FROM clear) AND key > (SELECT start FROM clear) AND key <= :last AND state = {FRESH}
            AND [lives]
        ORDER BY key LIMIT :limit - (SELECT cardinality(keys) FROM ready) FOR UPDATE SKIP LOCKED) AS keys
), next AS (
    SELECT (SELECT keys FROM ready WHERE (SELECT clear FROM clear)) || keys AS keys FROM fresh
), head AS (
    SELECT (
        SELECT key FROM lazaretto_messages
        WHERE (SELECT clear FROM clear) AND key > (SELECT start FROM clear) AND key <= :last AND state = {FRESH}
            AND [lives]
        ORDER BY key LIMIT 1) AS key
), taken ([taken_columns]) AS (
    UPDATE lazaretto_messages m
    SET state = {LOCKED}, due = :until, locked_at = :now, locked_by = :holder, deliveries = deliveries + 1,
        lock_token = coalesce((:tokens::bigint[])[array_position((SELECT keys FROM next), m.key)])
    WHERE m.key = ANY((SELECT keys FROM next)::bigint[])
    RETURNING m.key = ANY((SELECT keys FROM fresh)::bigint[]), lock_token, m.key, [body],
        message_id, enqueued, expires, headers, body_id, deliveries, delivery_count, cycle, generation,
        enqueued_sequence_number, NULL::text, NULL::text, cycle_attempts
)

-- part: taking_range
-- The same for many, which are locked as a range as far as they are fresh.
-- Differs because only the server knows ranges.
ready AS ([ready]), clear AS ([is_clear]), head AS (SELECT NULL::bigint AS key), again AS (
    UPDATE lazaretto_messages m
    SET state = {LOCKED}, due = :until, locked_at = :now, locked_by = :holder, deliveries = deliveries + 1,
        lock_token = :token::bigint
    WHERE m.key = ANY((SELECT keys FROM ready WHERE (SELECT clear FROM clear))::bigint[])
    RETURNING false, lock_token, m.key, [body],
        message_id, enqueued, expires, headers, body_id, deliveries, delivery_count, cycle, generation,
        enqueued_sequence_number, NULL::text, NULL::text, cycle_attempts
), ranged AS (
    SELECT true, :token::bigint, [received], NULL::text, NULL::text, cycle_attempts
    FROM lazaretto_messages m
    WHERE (SELECT clear FROM clear) AND key > (SELECT start FROM clear) AND key <= :last AND state = {FRESH}
        AND [lives]
    ORDER BY key LIMIT :limit - (SELECT cardinality(keys) FROM ready)
), locked AS (
    INSERT INTO lazaretto_range_locks (last, first, token, until, locked_at, locked_by, amount)
    SELECT max(key), min(key), :token, :until, :now, :holder, count(*) FROM ranged HAVING count(*) > 0
), taken ([taken_columns]) AS (TABLE again UNION ALL TABLE ranged)

-- part: taken_columns
-- What is known of each message that was taken.
-- Differs because only the server looks and takes in one statement.
fresh, token, key, body, message_id, enqueued, expires, headers, body_id, deliveries, delivery_count, cycle,
    generation, enqueued_sequence_number, reason, description, cycle_attempts

-- part: leasing
-- A lease on what was taken.
-- Differs because only the server looks, takes and leases in one statement.
leased AS (
    INSERT INTO lazaretto_leases (token, worker, queue_id, keys, started)
    SELECT token, :worker, :queue_id::bigint, json_agg(key ORDER BY key)::text, :started::boolean
    FROM taken GROUP BY token
)

-- part: took
-- One row, or one for each message: whether nothing was to be looked at first, the first fresh message that others may
-- be taking, and what was taken.
-- Differs because only the server looks and takes in one statement.
SELECT clear.clear, head.key, taken.* FROM clear CROSS JOIN head LEFT JOIN taken ON true

-- part: took_with_past
-- The same, and how those that were handed out before have moved and failed.
-- Differs because only the server looks and takes in one statement.
SELECT clear.clear, head.key, taken.*, past.*
FROM clear CROSS JOIN head LEFT JOIN taken ON true LEFT JOIN LATERAL (
    SELECT m.moves, failed.error_type, failed.error_message
    FROM lazaretto_messages m LEFT JOIN LATERAL (
        SELECT error_type, error_message FROM lazaretto_attempts
        WHERE key = [main_key taken.key] AND error_type IS NOT NULL
        ORDER BY number DESC, [rowid] DESC LIMIT 1) AS failed ON true
    WHERE m.key = taken.key AND taken.deliveries > 1 LIMIT 1) AS past ON true

-- name: take_rows
-- Lock the next messages of a queue, each under a token of its own.
-- Differs because each question costs a round trip: the server looks and takes in one.
WITH [taking_rows] [took]

-- name: take_range
-- Lock many of the next messages of a queue, the fresh ones as a range.
-- Differs because only the server knows ranges.
WITH [taking_range] [took]

-- name: lease_rows
-- Lock the next messages of a queue for a service host.
-- Differs because each question costs a round trip: the server looks, takes and leases in one.
WITH [taking_rows], [leasing] [took_with_past]

-- name: lease_range
-- Lock many of the next messages of a queue for a service host: no more than its share of those that wait, and than
-- fit into a size. The sizes of those that wait, and of the next ones, are put in from their own query.
-- Differs because each question costs a round trip: the server looks, takes and leases in one.
WITH shares AS (
    SELECT CASE WHEN :sharers::bigint <= 1 THEN :most::bigint ELSE (
        SELECT greatest(1, (count(*) + :sharers - 1) / :sharers) FROM (:waiting) AS waiting
    ) END AS amount
), fitting AS (
    SELECT CASE WHEN :most_bytes::bigint IS NULL THEN amount ELSE (
        SELECT greatest(1, count(*) FILTER (WHERE together <= :most_bytes)) FROM (
            SELECT sum(size) OVER (ROWS UNBOUNDED PRECEDING) AS together
            FROM (:next) AS next) AS summed
    ) END AS amount FROM shares
), [taking_range], [leasing] [took_with_past]

-- name: register_taker
-- Make a process known as a worker, if this commit has handed messages to it under one of these locks.
-- Differs because the answer is not waited for.
-- locks: not looked at
-- claims: not looked at
INSERT INTO lazaretto_workers (worker, machine, pid, born, seen)
SELECT :worker, :machine, :pid::bigint, :born, :now::bigint
WHERE EXISTS (SELECT 1 FROM lazaretto_messages WHERE due = :until::bigint AND lock_token = ANY(:tokens::bigint[]))
   OR EXISTS (SELECT 1 FROM lazaretto_range_locks WHERE until = :until AND token = ANY(:tokens))
ON CONFLICT (worker) DO UPDATE SET seen = :now

-- name: delete_all_locked
-- Remove messages that are held under locks of their own, each by its token, or all by one. Fails if one is not
-- held any more.
-- Differs because the answer is not waited for: a failure must be an error.
-- locks: not looked at
-- claims: not looked at
WITH gone AS (
    DELETE FROM lazaretto_messages
    WHERE key [among keys] AND state = {LOCKED} AND (due IS NULL OR due > :now) AND lock_token = CASE
        WHEN cardinality(:tokens::bigint[]) = 1 THEN (:tokens::bigint[])[1]
        ELSE (:tokens::bigint[])[array_position(:keys::bigint[], key)] END
    RETURNING 1
)
SELECT 1 / (count(*) = :amount)::int FROM gone

-- name: delete_exactly_one
-- The same for one message.
-- Differs because the answer is not waited for: a failure must be an error.
-- locks: not looked at
-- claims: not looked at
WITH gone AS (
    DELETE FROM lazaretto_messages
    WHERE key = :key AND state = {LOCKED} AND (due IS NULL OR due > :now) AND lock_token = :token
    RETURNING 1
)
SELECT 1 / count(*) FROM gone

-- name: delete_all_ranged
-- The same for several that may be locked as a range.
-- Differs because only the server knows ranges.
-- claims: not looked at
WITH range AS (
    SELECT first, last FROM lazaretto_range_locks
    WHERE last >= :highest AND first <= :highest AND token = :token AND until > :now ORDER BY last LIMIT 1
), gone AS (
    DELETE FROM lazaretto_messages
    WHERE key [among keys] AND (
        [held]
        OR state = {FRESH} AND key >= (SELECT first FROM range) AND key <= (SELECT last FROM range))
    RETURNING state
), done AS (
    SELECT count(*) AS amount, count(*) FILTER (WHERE state = {FRESH}) AS ranged FROM gone
), ended AS (
    DELETE FROM lazaretto_range_locks
    WHERE last = (SELECT last FROM range) AND amount = (SELECT ranged FROM done)
), fewer AS (
    UPDATE lazaretto_range_locks SET amount = amount - (SELECT ranged FROM done)
    WHERE last = (SELECT last FROM range) AND amount > (SELECT ranged FROM done)
)
SELECT 1 / (amount = :amount)::int FROM done

-- part: range_lock
-- The lock on the range around a message, if there is one.
-- Differs because only the server knows ranges.
(SELECT first, last, token, until, locked_at, locked_by FROM lazaretto_range_locks
 WHERE last >= m.key ORDER BY last LIMIT 1) AS r
    ON m.state = {FRESH} AND r.first <= m.key AND (m.expires IS NULL OR m.expires > r.locked_at)

-- part: as_locked
-- Messages as their locks have them, their own or those on ranges.
-- Differs because only the server knows ranges.
(SELECT [locked_columns], m.body FROM lazaretto_messages m LEFT JOIN LATERAL [range_lock]) AS m

-- name: write_range_locks_of
-- Write the locks on ranges into these messages, which leave their ranges.
-- Differs because only the server knows ranges.
-- claims: not looked at
WITH ranged AS (
    SELECT m.key, r.last, r.token, r.until, r.locked_at, r.locked_by
    FROM lazaretto_messages m JOIN LATERAL [range_lock] WHERE m.key [among keys]
), ended AS (
    DELETE FROM lazaretto_range_locks AS l WHERE last = ANY(ARRAY(SELECT last FROM ranged))
        AND amount = (SELECT count(*) FROM ranged r WHERE r.last = l.last)
), fewer AS (
    UPDATE lazaretto_range_locks AS l SET amount = amount - (SELECT count(*) FROM ranged r WHERE r.last = l.last)
    WHERE last = ANY(ARRAY(SELECT last FROM ranged)) AND amount > (SELECT count(*) FROM ranged r WHERE r.last = l.last)
)
UPDATE lazaretto_messages m
SET state = {LOCKED}, due = r.until, lock_token = r.token, locked_at = r.locked_at, locked_by = r.locked_by,
    deliveries = deliveries + 1
FROM ranged r WHERE m.key = r.key [listed m.key, ranged]

-- name: write_range_locks
-- Write the locks on ranges into their messages.
-- Differs because only the server knows ranges.
-- claims: not looked at
WITH ranges AS (DELETE FROM lazaretto_range_locks RETURNING *)
[write_ranges]

-- part: ranges_of
-- The locks on ranges of some queues, which go.
-- Differs because only the server knows ranges.
DELETE FROM lazaretto_range_locks
    WHERE last = ANY(ARRAY(
        SELECT r.last FROM unnest(:queues::bigint[]) AS q (queue_id) CROSS JOIN LATERAL (
            SELECT last FROM lazaretto_range_locks
            WHERE last > [lower_bound q.queue_id] AND last < [lower_bound q.queue_id + 1]) AS r))
    RETURNING *

-- part: write_ranges
-- Write locks on ranges, which are named, into their messages.
-- Differs because only the server knows ranges.
UPDATE lazaretto_messages m
    SET state = {LOCKED}, due = r.until, lock_token = r.token, locked_at = r.locked_at, locked_by = r.locked_by,
        deliveries = deliveries + 1
    FROM ranges r
    WHERE m.key >= r.first AND m.key <= r.last AND m.state = {FRESH} AND (m.expires IS NULL OR m.expires > r.locked_at)

-- name: write_ranges_of
-- Write the locks on ranges of some queues into their messages. Fails if a claim has locked some by ranges meanwhile.
-- Differs because only the server knows ranges.
-- locks: not looked at
-- claims: not looked at
WITH ranges AS (
    [ranges_of]
), written AS (
    [write_ranges]
)
SELECT 1 / (count(*) = 0)::int FROM lazaretto_claimed_ranges WHERE [queue_of last] = ANY(:queues)

-- name: write_ranges_in
-- The same, beside what claims lock.
-- Differs because only the server knows ranges.
-- locks: not looked at
-- claims: not looked at
WITH ranges AS (
    [ranges_of]
)
[write_ranges]

-- name: select_lock_holders
-- Who holds which messages, but for sessions.
-- Differs because only the server knows ranges.
-- locks: not looked at
-- claims: not looked at
SELECT locked_by, key FROM ([dues]) AS held
UNION ALL
SELECT * FROM (
    SELECT r.locked_by, m.key
    FROM (SELECT * FROM lazaretto_range_locks WHERE until > :now ORDER BY until LIMIT :limit) AS r
    CROSS JOIN LATERAL (
        SELECT key FROM lazaretto_messages
        WHERE key >= r.first AND key <= r.last AND state = {FRESH} AND (expires IS NULL OR expires > r.locked_at)
        ORDER BY key LIMIT :limit) AS m
    LIMIT :limit) AS ranged

-- name: select_ranged
-- Which of these queues have messages that are locked by ranges, and whether a claim has locked them; of all queues if
-- none is given.
-- Differs because only the server knows ranges.
SELECT DISTINCT [queue_of last], false FROM lazaretto_range_locks
WHERE cardinality(:queues::bigint[]) = 0 OR [queue_of last] = ANY(:queues)
UNION ALL
SELECT DISTINCT [queue_of last], true FROM lazaretto_claimed_ranges
WHERE cardinality(:queues::bigint[]) = 0 OR [queue_of last] = ANY(:queues)

-- name: count_down_uses
-- Messages that had a shared body are gone; an id stands for each of them.
-- Differs because a join may be planned for a table that seems empty.
-- confined: in queues that are held
WITH gone AS (SELECT body_id, count(*) AS count FROM unnest(:body_ids::bigint[]) AS body_id GROUP BY body_id)
UPDATE lazaretto_shared_bodies s SET uses = uses - (SELECT g.count FROM gone g WHERE g.body_id = s.body_id)
WHERE s.body_id = ANY(ARRAY(SELECT g.body_id FROM gone g))

-- part: fresh_start
-- Behind which key the next fresh messages stand.
-- Differs because what a range locks is passed over.
greatest(:start, (
    SELECT r.last FROM lazaretto_range_locks r WHERE r.last > :start AND r.last <= :last
    ORDER BY r.last DESC LIMIT 1), (
    SELECT c.last FROM lazaretto_claimed_ranges c WHERE c.last > :start AND c.last <= :last
    ORDER BY c.last DESC LIMIT 1))

-- part: timers_due
-- Whether the time of any message, session or claim has come.
-- Differs because ranges have times, and the index keeps times that are gone: the search starts behind them.
EXISTS (SELECT 1 FROM lazaretto_messages WHERE [is_due due])
    OR EXISTS (SELECT 1 FROM lazaretto_range_locks WHERE [is_due until])
    OR EXISTS (SELECT 1 FROM lazaretto_sessions WHERE [is_due locked_until])
    OR EXISTS (SELECT 1 FROM lazaretto_claims WHERE lease_until <= :now)
    OR EXISTS (SELECT 1 FROM lazaretto_queues WHERE idle_at <= :now)

-- name: anything_due_in
-- Whether the time of any message, session or claim of a queue has come, or its own.
-- Differs because ranges have times, and the index keeps times that are gone: the search starts behind them.
-- locks: not looked at
-- claims: not looked at
SELECT EXISTS (SELECT 1 FROM lazaretto_messages WHERE [is_due due] AND [queue_of key] = :queue_id)
    OR EXISTS (SELECT 1 FROM lazaretto_range_locks WHERE [is_due until] AND [queue_of last] = :queue_id)
    OR EXISTS (SELECT 1 FROM lazaretto_sessions WHERE [is_due locked_until] AND queue_id = :queue_id)
    OR EXISTS (SELECT 1 FROM lazaretto_claims WHERE lease_until <= :now AND queue_id = :queue_id)
    OR EXISTS (SELECT 1 FROM lazaretto_queues WHERE idle_at <= :now AND queue_id = :queue_id)

-- name: next_due
-- When the store must look at a message again.
-- Differs because ranges have times, and the index keeps times that are gone.
-- claims: not looked at
SELECT least((SELECT min(due) FROM lazaretto_messages WHERE [comes_due due]),
             (SELECT min(until) FROM lazaretto_range_locks WHERE [comes_due until]))

-- part: as_it_stands
-- Messages as they stand.
-- Differs because a range may lock a message.
SELECT [peeked_columns], m.deliveries + (r.until IS NOT NULL)::int + ([is_claimed])::int,
       CASE WHEN r.until IS NULL AND NOT ([is_claimed]) THEN m.state ELSE {LOCKED} END,
       CASE WHEN m.state = {LOCKED} THEN m.due ELSE r.until END
FROM lazaretto_messages m LEFT JOIN LATERAL [range_lock] [dead_letter]

-- == attempts and dead letters ==

-- part: that_match
-- Dead letters that a filter selects, whose parts are null when not asked for.
-- Differs because texts and bodies are searched by functions of their own.
(CAST(:reason AS TEXT) IS NULL OR d.reason = :reason)
  AND (CAST(:error_type AS TEXT) IS NULL OR d.error_type = :error_type)
  AND (CAST(:since AS BIGINT) IS NULL OR d.dead_lettered >= :since)
  AND (CAST(:until AS BIGINT) IS NULL OR d.dead_lettered < :until)
  AND (:keys::bigint[] IS NULL OR d.key [among keys])
  AND (CAST(:text AS TEXT) IS NULL OR strpos(d.description, :text) > 0 OR strpos(d.error_message, :text) > 0
       OR position(convert_to(:text, 'UTF8') IN (
           SELECT [body]
           FROM lazaretto_messages m WHERE m.key = [dead_key d.key, d.subqueue])) > 0)

-- part: at_most
-- No more than :limit, if that is not -1.
-- Differs because NULL means all to the server.
LIMIT nullif(:limit::bigint, -1)

-- == commits that go out whole ==

-- part: last_number
-- The highest sequence number of a place: a lane's keys. What is below `floor` was seen before; many that are gone may
-- stand there.
-- Differs because the server finds the numbers, whoever has sent meanwhile.
greatest(
    place.floor,
    (SELECT sequence_number FROM lazaretto_high_water
     WHERE queue_id = place.lane ORDER BY sequence_number DESC LIMIT 1),
    (SELECT sequence_number FROM lazaretto_high_water
     WHERE queue_id = [queue_of_lane place.lane] ORDER BY sequence_number DESC LIMIT 1),
    (SELECT key FROM lazaretto_messages WHERE key > place.main + place.floor AND key <= place.main + place.most
     ORDER BY key DESC LIMIT 1) - place.main,
    (SELECT key FROM lazaretto_messages WHERE key > place.dead + place.floor AND key <= place.dead + place.most
     ORDER BY key DESC LIMIT 1) - place.dead,
    (SELECT key FROM lazaretto_messages
     WHERE key > place.transfer + place.floor AND key <= place.transfer + place.most
     ORDER BY key DESC LIMIT 1) - place.transfer
)

-- part: place
-- A lane, given by its number and keys.
-- Differs because only the server finds numbers by itself.
(SELECT :queue_id::bigint AS lane, :floor::bigint AS floor, :main::bigint AS main, :dead::bigint AS dead,
        :transfer::bigint AS transfer, :most::bigint AS most) AS place

-- name: send_next
-- New messages at a queue's end, wherever that is: their columns. The answer is the number before their first.
-- Differs because the server finds the numbers, whoever has sent meanwhile.
-- locks: not looked at
-- claims: not looked at
WITH last AS (
    SELECT [last_number] AS number FROM [place]
), put AS (
    INSERT INTO lazaretto_messages (key, enqueued, [new_columns])
    SELECT :main + last.number + n, :now::bigint, [new_columns]
    FROM last, unnest([new_arrays]) WITH ORDINALITY AS m ([new_columns], n)
)
SELECT number / (number + :count::bigint <= :most)::int FROM last

-- name: send_one
-- One new message at a queue's end. The answer is the number before it.
-- Differs because the server finds the numbers, whoever has sent meanwhile.
-- locks: not looked at
-- claims: not looked at
WITH last AS (
    SELECT [last_number] AS number FROM [place]
), put AS (
    INSERT INTO lazaretto_messages (key, enqueued, [new_columns])
    SELECT :main + number + 1, :now::bigint, [new_typed] FROM last
)
SELECT number / (number + 1 <= :most)::int FROM last

-- name: use_numbers
-- Use the next sequence numbers of a lane for messages that do not stay in it. The answer is the number before them.
-- Differs because the server finds the numbers.
-- locks: not looked at
-- claims: not looked at
WITH last AS (
    SELECT [last_number] AS number FROM [place]
), lower AS (
    DELETE FROM lazaretto_high_water
    WHERE queue_id = :queue_id AND sequence_number = (
        SELECT sequence_number FROM lazaretto_high_water
        WHERE queue_id = :queue_id ORDER BY sequence_number DESC LIMIT 1)
), kept AS (
    INSERT INTO lazaretto_high_water (queue_id, sequence_number) SELECT :queue_id, number + :count::bigint FROM last
)
SELECT number / (number + :count <= :most)::int FROM last

-- name: send_routed
-- Messages at the end of each of some lanes: their columns. `behind`: how many numbers were used after that of each
-- where it was sent to, which is the lane `entry`. The answers are the numbers before their first, by lane.
-- Differs because the server finds the numbers.
-- locks: not looked at
-- claims: not looked at
WITH last AS (
    SELECT main, most, place.n, [last_number] AS number
    FROM unnest(
        :lanes::bigint[], :floors::bigint[], :mains::bigint[], :deads::bigint[], :transfers::bigint[], :mosts::bigint[]
    ) WITH ORDINALITY AS place (lane, floor, main, dead, transfer, most, n)
), put AS (
    INSERT INTO lazaretto_messages
        (key, state, due, expires, enqueued, message_id, session_id, headers, body_id, body, enqueued_sequence_number)
    SELECT main + number + m.n, {FRESH}, expires, expires, :now::bigint, message_id, session_id, headers, body_id, body,
           :entered::bigint - behind + (
               SELECT sequence_number FROM lazaretto_high_water
               WHERE queue_id = :entry::bigint ORDER BY sequence_number DESC LIMIT 1)
    FROM last, unnest(
        :lives::bigint[], :ids::text[], :sessions::text[], :headers::bytea[], :body_ids::bigint[], :bodies::bytea[],
        :behind::bigint[]
    ) WITH ORDINALITY AS m (expires, message_id, session_id, headers, body_id, body, behind, n)
)
SELECT number / (number + :count::bigint <= most)::int FROM last ORDER BY n

-- name: grow_within
-- Add to the bytes that an entity holds. Fails if these are too many then.
-- Differs because the answer is not waited for: a failure must be an error.
WITH grown AS (
    UPDATE lazaretto_queues SET size = size + :size::bigint
    WHERE queue_id = :queue_id AND size + :size <= :most::bigint RETURNING 1
)
SELECT 1 / count(*) FROM grown

-- name: remember_sent
-- Remember the ids of the messages that stand last in a lane, and how many stand behind each.
-- Differs because the server finds the numbers.
-- locks: not looked at
-- claims: not looked at
INSERT INTO lazaretto_message_ids (queue_id, message_id, partition_key, forget_after, sequence_number)
SELECT [queue_of_lane :queue_id::bigint], message_id, partition_key, :forget_after::bigint,
       last.key - :base::bigint - behind
FROM unnest(:ids::text[], :partitions::text[], :behind::bigint[]) AS sent (message_id, partition_key, behind), (
    SELECT key FROM lazaretto_messages WHERE key > :main::bigint AND key <= :main + :most::bigint
    ORDER BY key DESC LIMIT 1) AS last
ON CONFLICT (queue_id, message_id, partition_key) DO UPDATE SET forget_after = excluded.forget_after,
    sequence_number = excluded.sequence_number

-- name: put_bodies
-- Bodies that stand by themselves: their columns.
-- Differs because one text takes any number of them.
INSERT INTO lazaretto_bodies (body_id, body)
SELECT b.body_id, b.body FROM unnest(:body_ids::bigint[], :bodies::bytea[]) AS b (body_id, body)

-- name: keep_high_water
-- Keep a queue's highest sequence number if a message that goes has it. The answer is the highest number above it.
-- Differs because the server finds out whether it is the highest.
-- locks: not looked at
-- claims: not looked at
WITH above AS (
    SELECT greatest(
        (SELECT sequence_number FROM lazaretto_high_water
         WHERE queue_id = :queue_id::bigint AND sequence_number >= :number::bigint
         ORDER BY sequence_number DESC LIMIT 1),
        (SELECT key FROM lazaretto_messages WHERE key > :main::bigint + :number AND key <= :main + :most::bigint
         ORDER BY key DESC LIMIT 1) - :main,
        (SELECT key FROM lazaretto_messages WHERE key > :dead::bigint + :number AND key <= :dead + :most
         ORDER BY key DESC LIMIT 1) - :dead,
        (SELECT key FROM lazaretto_messages WHERE key > :transfer::bigint + :number AND key <= :transfer + :most
         ORDER BY key DESC LIMIT 1) - :transfer
    ) AS number
), lower AS (
    DELETE FROM lazaretto_high_water
    WHERE (SELECT number FROM above) IS NULL AND queue_id = :queue_id AND sequence_number = (
        SELECT sequence_number FROM lazaretto_high_water
        WHERE queue_id = :queue_id ORDER BY sequence_number DESC LIMIT 1)
), kept AS (
    INSERT INTO lazaretto_high_water (queue_id, sequence_number)
    SELECT :queue_id, :number WHERE (SELECT number FROM above) IS NULL
)
SELECT number FROM above

-- name: prolong_lock
-- Prolong the lock on a message. Fails if it is not held any more.
-- Differs because the answer is not waited for: a failure must be an error.
-- locks: not looked at
-- claims: not looked at
WITH held AS (
    UPDATE lazaretto_messages SET due = :until
    WHERE key = :key AND state = {LOCKED} AND lock_token = :token AND due > :now
    RETURNING 1
)
SELECT 1 / count(*) FROM held

-- name: select_settings
-- A queue as it is set, and what tells whether that has changed since.
-- Differs because only the server is asked again within a commit.
SELECT [queue_columns], settings_mark FROM lazaretto_queues WHERE path_key = :path_key

-- name: select_settings_by_id
-- The same by a queue's number.
-- Differs because only the server is asked again within a commit.
SELECT [queue_columns], settings_mark FROM lazaretto_queues WHERE queue_id = :queue_id

-- part: mark_of_topic
-- What tells whether a topic's subscriptions are set otherwise, or are others.
-- Differs because only the server is asked again within a commit.
coalesce((SELECT hashtextextended(string_agg(concat(queue_id, ' ', settings_mark), ' ' ORDER BY queue_id), 0)
          FROM lazaretto_queues WHERE topic_id = known.topic_id), 0)

-- name: select_settings_of_topic
-- A topic's subscriptions by path, each as it is set with what tells whether that has changed since, and the same of
-- them all.
-- Differs because only the server is asked again within a commit.
SELECT [queue_columns], settings_mark, of_all
FROM lazaretto_queues q JOIN (
    SELECT topic_id, [mark_of_topic] AS of_all FROM (SELECT :topic_id::bigint AS topic_id) AS known OFFSET 0
) AS topic USING (topic_id)
ORDER BY path_key LIMIT :most::bigint

-- name: take_slot
-- Take the lowest slot that no other process has, of at most so many.
-- Differs because a process on a file has a slot in its wake file.
SELECT slot FROM generate_series(0, :slots::bigint - 1) AS slot
WHERE pg_try_advisory_lock(:first::bigint + slot * 4) LIMIT 1

-- name: open_whole
-- Wait until nobody else is at work on what this commit changes of queues, or on the store as a whole. The locks stand
-- in one order for all commits; the lowest bit of each says whether it is shared. Fails if a timer that this commit
-- sets has come by now. The answer is the server's time.
-- Differs because the file has BEGIN IMMEDIATE.
SELECT pg_advisory_xact_lock_shared(:writing, :store),
       (SELECT count(CASE WHEN wanted & 1 = 1 THEN pg_advisory_xact_lock_shared(wanted >> 1)
                     ELSE pg_advisory_xact_lock(wanted >> 1) END::text)
        FROM unnest(:locks::bigint[]) AS wanted),
       CASE WHEN :relaxed THEN set_config('synchronous_commit', 'off', true) END,
       1 / (:due::bigint IS NULL OR :due > (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)::int,
       (extract(epoch FROM clock_timestamp()) * 1000000)::bigint

-- part: next_version
-- The next version of what is stored, if anything was changed, told to all who listen if there may be something to
-- receive.
-- Differs because the file has PRAGMA data_version.
CASE WHEN pg_current_xact_id_if_assigned() IS NOT NULL
            THEN nextval('lazaretto_version'::regclass) END,
       CASE WHEN :tells AND pg_current_xact_id_if_assigned() IS NOT NULL THEN pg_notify(:channel, '')::text END

-- name: close_whole
-- Fails if queues, or the subscriptions of topics, are not set as they were known to be; else moves on.
-- Differs because the file has PRAGMA data_version.
SELECT 1 / (cardinality(:queues::bigint[]) = (
           SELECT count(*) FROM unnest(:queues::bigint[], :marks::bigint[]) AS known (queue_id, mark)
           WHERE mark = (SELECT settings_mark FROM lazaretto_queues q WHERE q.queue_id = known.queue_id))
       )::int,
       [next_version],
       1 / (cardinality(:topics::bigint[]) = (
           SELECT count(*) FROM unnest(:topics::bigint[], :topic_marks::bigint[]) AS known (topic_id, mark)
           WHERE mark = [mark_of_topic])
       )::int

-- name: close_one
-- The same if it depends on one queue, which most commits do: lists would cost three times as much.
-- Differs because the file has PRAGMA data_version.
SELECT 1 / (EXISTS (SELECT 1 FROM lazaretto_queues WHERE queue_id = :queue_id AND settings_mark = :mark))::int,
       [next_version]

-- == commits of plain operations ==

-- name: call_send
-- One new message.
-- Differs because only the server has functions.
SELECT * FROM lazaretto_send_v2(
    :writing, :store, :queue_id, :mark, :relaxed, :now, :floor, :channel, :state, :due, :expires, :message_id, :headers, :body,
    :body_id, :apart)

-- name: call_send_several
-- Several: their columns.
-- Differs because only the server has functions.
SELECT * FROM lazaretto_send_several_v2(
    :writing, :store, :queue_id, :mark, :relaxed, :now, :floor, :channel, :amount, :state, :due, :expires, :message_id, :headers,
    :body, :body_id, :apart_ids, :apart, :first_due)

-- name: call_take
-- The next fresh message.
-- Differs because only the server has functions.
SELECT * FROM lazaretto_take_v2(:writing, :store, :queue_id, :mark, :relaxed, :now, :start, :until, :token, :holder, :since, :looks)

-- name: call_take_several
-- The next ones, each under a token of its own.
-- Differs because only the server has functions.
SELECT * FROM lazaretto_take_several_v1(
    :writing, :store, :queue_id, :mark, :relaxed, :now, :start, :until, :tokens, :holder, :since, :looks)

-- name: call_complete
-- A completed message goes, held under its token.
-- Differs because only the server has functions.
SELECT * FROM lazaretto_complete_one_v2(
    :writing, :store, :queue_id, :mark, :relaxed, :now, :floor, :key, :token, :number, :apart)

-- name: call_complete_several
-- Several go, each held under its token.
-- Differs because only the server has functions.
SELECT * FROM lazaretto_complete_v1(
    :writing, :store, :queue_id, :mark, :relaxed, :now, :floor, :keys, :tokens, :highest, :apart)

-- == events and audit ==

-- name: copy_events
-- Much of it.
-- Differs because only the server has COPY.
COPY lazaretto_events (time, kind, queue, sequence_number, detail) FROM STDIN (FORMAT BINARY)

-- == the store ==

-- name: select_problems
-- What cannot be: messages without their body, dead letters without a message, messages that lie in a topic, and
-- wrong counts.
-- Differs because only here is it asked whether tables agree, and whether ranges do.
SELECT what, count FROM (
    SELECT 'messages whose body is missing' AS what, count(*) AS count FROM lazaretto_messages m
    WHERE m.body_id IS NOT NULL
      AND NOT EXISTS (SELECT 1 FROM lazaretto_bodies b WHERE b.body_id = m.body_id)
    UNION ALL
    SELECT 'dead letters whose message is missing', count(*) FROM lazaretto_dead_letters d
    WHERE d.resolution IS NULL
      AND NOT EXISTS (SELECT 1 FROM lazaretto_messages m WHERE m.key = [dead_key d.key, d.subqueue])
      AND EXISTS (SELECT 1 FROM lazaretto_queues q WHERE q.queue_id = [queue_of d.key])
    UNION ALL
    SELECT 'ranges that lock another number of messages', count(*) FROM lazaretto_range_locks r
    WHERE amount <> (SELECT count(*) FROM lazaretto_messages m
                     WHERE m.key >= r.first AND m.key <= r.last AND m.state = {FRESH}
                       AND (m.expires IS NULL OR m.expires > r.locked_at))
    UNION ALL
    [misplaced]
    UNION ALL
    [miscounted]
    UNION ALL
    [misclaimed]
) AS problems WHERE count > 0

-- name: select_now
-- The version of what is stored, and the server's time.
-- Differs because the file has PRAGMA data_version.
SELECT last_value, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint FROM lazaretto_version

-- name: select_snapshot
-- Which commits are visible, and on which server. The snapshot of a standby does not tell which of the open
-- transactions have ended; how far it has replayed does.
-- Differs because the file has PRAGMA data_version.
SELECT concat_ws(' ', pg_postmaster_start_time(),
                 CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()::text
                      ELSE pg_current_snapshot()::text END)

-- name: select_begun
-- The same, and whether a claim locks messages by ranges.
-- Differs because the file has PRAGMA data_version.
SELECT last_value, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
       EXISTS (SELECT 1 FROM lazaretto_claimed_ranges)
FROM lazaretto_version

-- name: begin_as_expected
-- Become the only writer. Fails if others write, or have written since; else the server's time.
-- Differs because the file has BEGIN IMMEDIATE.
SELECT 1 / pg_try_advisory_xact_lock(:writing, :store)::int,
       1 / (pg_sequence_last_value('lazaretto_version'::regclass) = :version)::int,
       CASE WHEN :relaxed THEN set_config('synchronous_commit', 'off', true) END,
       (extract(epoch FROM clock_timestamp()) * 1000000)::bigint

-- name: try_lock
-- Whether nobody else has a lock, which this commit has then.
-- Differs because the file has BEGIN IMMEDIATE.
SELECT pg_try_advisory_xact_lock(:lock)

-- name: due_later
-- Fails if the time of a timer has come by now.
-- Differs because only the server has its own time.
SELECT 1 / (:due::bigint > (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)::int

-- name: end_silent_writers
-- End the sessions that hold the lock of a store in the middle of a commit, and have sent nothing for 5 seconds.
-- Differs because only the server has writers that can be cut off from it.
SELECT pg_terminate_backend(a.pid)
FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'advisory' AND l.granted AND l.classid::bigint = :writing AND l.objid::bigint = :store
    AND a.state = 'active' AND a.wait_event = 'ClientRead' AND a.query NOT LIKE 'COPY%'
    AND a.query_start < clock_timestamp() - INTERVAL '5 seconds'

-- name: move_on
-- The next version of what is stored, if anything was changed.
-- Differs because the file has PRAGMA data_version.
SELECT nextval('lazaretto_version'::regclass)
WHERE pg_current_xact_id_if_assigned() IS NOT NULL

-- name: tell
-- The same, told to all who listen.
-- Differs because only the server tells other processes.
SELECT nextval('lazaretto_version'::regclass), pg_notify(:channel, '')
WHERE pg_current_xact_id_if_assigned() IS NOT NULL

-- name: flush
-- Wait until all that was committed before is as safe as the server's synchronous_commit makes it.
-- Differs because the file has PRAGMA synchronous.
SELECT pg_logical_emit_message(true, 'lazaretto', '')

-- name: select_crowded
-- Tables that hold many rows which are gone, if nobody else looks after them at the moment.
-- Differs because only the server needs a vacuum.
SELECT relname::text FROM pg_stat_user_tables
WHERE schemaname = :schema AND n_dead_tup > 20000 + n_live_tup / 10 AND pg_try_advisory_lock(:tidying, :store)

-- name: select_meta
-- What is known of the store itself.
-- Differs because the file's own connections ask it directly.
SELECT name, value FROM lazaretto_meta

-- part: is_neighbour
-- Whether a role of the server is none of those that own the store, and is not trusted with all of the server.
-- Differs because only the server has other users.
NOT r.rolsuper AND NOT pg_has_role(r.oid, n.nspowner, 'MEMBER') AND NOT pg_has_role(r.oid, current_user::text, 'MEMBER')

-- name: select_neighbours
-- Who else may log in to the store's database.
-- Differs because only the server has other users.
SELECT r.rolname::text FROM pg_roles r JOIN pg_namespace n ON n.nspname = :schema
WHERE r.rolcanlogin AND [is_neighbour] AND has_database_privilege(r.oid, current_database(), 'CONNECT')
ORDER BY 1

-- name: select_lock_takers
-- Who else holds or waits for locks with the numbers of the store's, and in which of the server's processes.
-- Differs because only the server has other users.
SELECT DISTINCT r.rolname::text, l.pid
FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid JOIN pg_roles r ON r.oid = a.usesysid
    JOIN pg_namespace n ON n.nspname = :schema
WHERE l.locktype = 'advisory' AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND [is_neighbour] AND CASE WHEN l.objsubid = 2 THEN l.classid::bigint >> 8 = :writing::bigint >> 8
        AND l.objid::bigint = :store::bigint & 4294967295
    ELSE (l.classid::bigint << 32 | l.objid::bigint) >> 21 BETWEEN :store AND :store + 64 END
ORDER BY 1, 2

-- name: select_facts
-- The server's version, the bytes of a schema's tables, and how commits are synced.
-- Differs because a file is asked by PRAGMA.
SELECT current_setting('server_version'),
       (SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = :schema AND c.relkind = 'r'),
       current_setting('synchronous_commit')
