-- Shorter functions for the commonest commits. They notify only if somebody listens: whoever does holds the lock
-- (1280966660, store) shared, and takes it before it listens. A sender that gets it alone need not notify: whoever
-- comes to listen waits for the end of its commit, and then looks. Everything else is as in the functions before.

-- Add one message at a queue's end. The answer is the number before it.
CREATE FUNCTION lazaretto_send_v2(
    writing int, store int, queue bigint, mark bigint, relaxed boolean, now bigint,
    floor bigint, channel text, state int,
    due bigint, expires bigint, message_id text, headers bytea, body bytea, body_id bigint, apart bytea,
    OUT at bigint, OUT version bigint, OUT last bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    nothing text;
BEGIN
    nothing := concat(
        CASE WHEN relaxed THEN set_config('synchronous_commit', 'off', true) END,
        pg_advisory_xact_lock_shared(writing, store)::text,
        pg_advisory_xact_lock(((store::bigint << 19) + queue) << 2)::text);
    INSERT INTO lazaretto_messages AS n (key, state, due, expires, enqueued, message_id, headers, body, body_id)
    SELECT (queue << 44) + 1 + greatest(floor,
            (SELECT h.sequence_number FROM lazaretto_high_water h
             WHERE h.queue_id = queue ORDER BY h.sequence_number DESC LIMIT 1),
            (SELECT m.key FROM lazaretto_messages m
             WHERE m.key > (queue << 44) + floor AND m.key <= (queue << 44) + 4398046511103
             ORDER BY m.key DESC LIMIT 1) - (queue << 44)),
        state, due, expires, now, message_id, headers, body, body_id
    FROM lazaretto_queues q
    WHERE q.queue_id = queue AND q.settings_mark = mark
        AND (due IS NULL OR due > (date_part('epoch', clock_timestamp()) * 1000000)::bigint)
    RETURNING (date_part('epoch', clock_timestamp()) * 1000000)::bigint, nextval('lazaretto_version'::regclass),
        (n.key - (queue << 44) - 1) / (n.key <= (queue << 44) + 4398046511103)::int,
        CASE WHEN NOT pg_try_advisory_xact_lock(1280966660, store) THEN pg_notify(channel, '')::text END
    INTO at, version, last, nothing;
    IF apart IS NOT NULL AND last IS NOT NULL THEN INSERT INTO lazaretto_bodies VALUES (body_id, apart); END IF;
END $$;

-- The same for several: their columns. `first_due`: when the first of them comes due.
CREATE FUNCTION lazaretto_send_several_v2(
    writing int, store int, queue bigint, mark bigint, relaxed boolean, now bigint, floor bigint, channel text,
    amount bigint, state bigint[], due bigint[], expires bigint[], message_id text[], headers bytea[], body bytea[],
    body_id bigint[], apart_ids bigint[], apart bytea[], first_due bigint,
    OUT at bigint, OUT version bigint, OUT last bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    main constant bigint := queue << 44;
    most constant bigint := 4398046511103;
    nothing text;
BEGIN
    nothing := concat(
        CASE WHEN relaxed THEN set_config('synchronous_commit', 'off', true) END,
        pg_advisory_xact_lock_shared(writing, store)::text,
        pg_advisory_xact_lock(((store::bigint << 19) + queue) << 2)::text);
    at := (date_part('epoch', clock_timestamp()) * 1000000)::bigint;
    IF first_due <= at THEN RETURN; END IF;
    SELECT greatest(floor,
            (SELECT h.sequence_number FROM lazaretto_high_water h
             WHERE h.queue_id = queue ORDER BY h.sequence_number DESC LIMIT 1),
            (SELECT m.key FROM lazaretto_messages m WHERE m.key > main + floor AND m.key <= main + most
             ORDER BY m.key DESC LIMIT 1) - main)
    INTO last FROM lazaretto_queues q WHERE q.queue_id = queue AND q.settings_mark = mark;
    IF last + amount <= most IS NOT TRUE THEN last := NULL; RETURN; END IF;
    INSERT INTO lazaretto_messages (key, state, due, expires, enqueued, message_id, headers, body, body_id)
    SELECT main + last + m.n, m.s, m.d, m.e, now, m.i, m.h, m.b, m.a
    FROM unnest(state, due, expires, message_id, headers, body, body_id) WITH ORDINALITY
        AS m (s, d, e, i, h, b, a, n);
    IF apart IS NOT NULL THEN
        INSERT INTO lazaretto_bodies SELECT b.i, b.b FROM unnest(apart_ids, apart) AS b (i, b);
    END IF;
    version := nextval('lazaretto_version'::regclass);
    IF NOT pg_try_advisory_xact_lock(1280966660, store) THEN nothing := pg_notify(channel, ''); END IF;
END $$;

-- Lock the next fresh message of a queue, if nothing comes before it. `looks`: timers are looked for first; else only
-- if there is no message. `behind`: whether nothing fresh stands before it, if that was asked: others may be taking it.
CREATE FUNCTION lazaretto_take_v2(
    writing int, store int, queue bigint, mark bigint, relaxed boolean, now bigint,
    start bigint, until bigint, token bigint,
    holder text, since bigint, looks boolean,
    OUT at bigint, OUT version bigint, OUT clear boolean, OUT behind boolean,
    OUT key bigint, OUT body bytea, OUT message_id text, OUT enqueued bigint, OUT expires bigint, OUT headers bytea,
    OUT body_id bigint, OUT deliveries bigint, OUT delivery_count bigint, OUT cycle bigint, OUT generation bigint,
    OUT enqueued_sequence_number bigint, OUT reason text, OUT description text, OUT cycle_attempts bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    main constant bigint := queue << 44;
    final constant bigint := (queue << 44) + 4398046511103;
    nothing text;
BEGIN
    nothing := concat(
        CASE WHEN relaxed THEN set_config('synchronous_commit', 'off', true) END,
        pg_advisory_xact_lock_shared(writing, store)::text,
        pg_advisory_xact_lock_shared((((store::bigint << 19) + queue) << 2) + 1)::text);
    IF looks AND NOT lazaretto_is_clear_v1(queue, mark, since, now) THEN clear := false; RETURN; END IF;
    UPDATE lazaretto_messages m
        SET state = 2, due = until, locked_at = now, locked_by = holder, deliveries = m.deliveries + 1,
            lock_token = token
        WHERE m.key = (
            SELECT n.key FROM lazaretto_messages n
            WHERE n.key > greatest(start,
                    (SELECT r.last FROM lazaretto_range_locks r WHERE r.last > start AND r.last <= final
                     ORDER BY r.last DESC LIMIT 1),
                    (SELECT c.last FROM lazaretto_claimed_ranges c WHERE c.last > start AND c.last <= final
                     ORDER BY c.last DESC LIMIT 1))
                AND n.key <= final AND n.state = 0 AND (n.expires IS NULL OR n.expires > now)
                AND NOT EXISTS (
                    SELECT FROM lazaretto_messages m WHERE m.key > main AND m.key <= final AND m.state = 1)
                AND NOT EXISTS (
                    SELECT FROM lazaretto_messages m WHERE m.key > main AND m.key <= final AND m.state = 6)
                AND EXISTS (SELECT FROM lazaretto_queues q WHERE q.queue_id = queue AND q.settings_mark = mark)
                AND until > (date_part('epoch', clock_timestamp()) * 1000000)::bigint
            ORDER BY n.key LIMIT 1 FOR UPDATE SKIP LOCKED)
        RETURNING (date_part('epoch', clock_timestamp()) * 1000000)::bigint,
            nextval('lazaretto_version'::regclass), true,
            m.key, m.body, m.message_id, m.enqueued, m.expires, m.headers, m.body_id, m.deliveries,
            m.delivery_count, m.cycle, m.generation, m.enqueued_sequence_number, m.cycle_attempts
        INTO at, version, clear, key, body, message_id, enqueued, expires, headers, body_id, deliveries,
            delivery_count, cycle, generation, enqueued_sequence_number, cycle_attempts;
    IF key IS NULL THEN
        clear := until > (date_part('epoch', clock_timestamp()) * 1000000)::bigint
            AND lazaretto_is_clear_v1(queue, mark, since, now);
        RETURN;
    END IF;
    IF body_id IS NOT NULL THEN
        body := coalesce(body, (SELECT b.body FROM lazaretto_bodies b WHERE b.body_id = body_id));
    END IF;
    IF key > start + 64 THEN
        behind := NOT EXISTS (SELECT m.key FROM lazaretto_messages m WHERE m.key > start AND m.key < key AND m.state = 0
            AND (m.expires IS NULL OR m.expires > now));
    END IF;
END $$;

-- Remove a message of a queue that is held under a token. `number`: its own; `apart`: its body that stands apart. The
-- answer is the highest number that is known then.
CREATE FUNCTION lazaretto_complete_one_v2(
    writing int, store int, queue bigint, mark bigint, relaxed boolean, now bigint,
    floor bigint, key bigint, token bigint,
    number bigint, apart bigint,
    OUT at bigint, OUT version bigint, OUT above bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    nothing text;
BEGIN
    nothing := concat(
        CASE WHEN relaxed THEN set_config('synchronous_commit', 'off', true) END,
        pg_advisory_xact_lock_shared(writing, store)::text,
        pg_advisory_xact_lock_shared((((store::bigint << 19) + queue) << 2) + 2)::text);
    DELETE FROM lazaretto_messages m
    WHERE m.key = key AND m.state = 2 AND (m.due IS NULL OR m.due > now) AND m.lock_token = token
        AND EXISTS (SELECT FROM lazaretto_queues q WHERE q.queue_id = queue AND q.settings_mark = mark)
    RETURNING (date_part('epoch', clock_timestamp()) * 1000000)::bigint, nextval('lazaretto_version'::regclass), floor
    INTO at, version, above;
    IF above IS NOT NULL AND number >= floor THEN
        above := greatest(
            (SELECT h.sequence_number FROM lazaretto_high_water h
             WHERE h.queue_id = queue AND h.sequence_number >= number ORDER BY h.sequence_number DESC LIMIT 1),
            (SELECT m.key FROM lazaretto_messages m
             WHERE m.key > (queue << 44) + number AND m.key <= (queue << 44) + 4398046511103
             ORDER BY m.key DESC LIMIT 1) - (queue << 44));
        IF above IS NULL THEN
            DELETE FROM lazaretto_high_water h WHERE h.queue_id = queue AND h.sequence_number = (
                SELECT w.sequence_number FROM lazaretto_high_water w WHERE w.queue_id = queue
                ORDER BY w.sequence_number DESC LIMIT 1);
            INSERT INTO lazaretto_high_water (queue_id, sequence_number) VALUES (queue, number);
            above := number;
        END IF;
    END IF;
    IF apart IS NOT NULL AND above IS NOT NULL THEN
        UPDATE lazaretto_shared_bodies s SET uses = s.uses - 1 WHERE s.body_id = apart;
        DELETE FROM lazaretto_bodies b WHERE b.body_id = apart
            AND coalesce((SELECT s.uses FROM lazaretto_shared_bodies s WHERE s.body_id = b.body_id), 0) < 1;
        DELETE FROM lazaretto_shared_bodies s WHERE s.body_id = apart AND s.uses < 1;
    END IF;
END $$;
