-- Causes of dead letters: fingerprints, how many came when, and which are one cause. See queries.sql.

-- part: fingerprint_columns
-- Dead letters that are alike, in the order of FingerprintRecord.
f.fingerprint, f.family, f.reason, f.error_type, f.site, f.shape, f.waiting, f.total, f.first, f.last, f.since,
       f.emptied, f.cause, f.kept

-- part: waiting_in
-- Dead letters of a subqueue that wait.
d.resolution IS NULL AND d.key > :first AND d.key <= :last AND d.subqueue = :subqueue

-- name: count_letters
-- Dead letters that came, by fingerprint. After a clock has jumped back, later ones may be the first by time.
-- confined: in queues that are held
INSERT INTO lazaretto_fingerprints AS f
    (place, fingerprint, family, version, reason, error_type, site, shape, waiting, total, first, last, since)
VALUES [rows] (:place, :fingerprint, :family, :version, :reason, :error_type, :site, :shape, :waiting, :total, :first,
    :last, :since)
ON CONFLICT (place, fingerprint) DO UPDATE SET waiting = f.waiting + excluded.waiting, total = f.total + excluded.total,
    first = CASE WHEN excluded.first < f.first THEN excluded.first ELSE f.first END, last = excluded.last,
    since = CASE WHEN f.waiting <= 0 THEN excluded.since ELSE f.since END

-- name: count_hours
-- How many came in an hour.
-- confined: in queues that are held
INSERT INTO lazaretto_cause_hours AS h (place, fingerprint, hour, letters)
VALUES [rows] (:place, :fingerprint, :hour, :letters)
ON CONFLICT (place, hour, fingerprint) DO UPDATE SET letters = h.letters + excluded.letters

-- name: uncount_letters
-- Dead letters that were resolved.
UPDATE lazaretto_fingerprints SET waiting = waiting - :count,
    emptied = CASE WHEN waiting <= :count THEN :now ELSE emptied END
WHERE place = :place AND fingerprint = :fingerprint

-- name: select_counted
-- The fingerprints of dead letters that wait. An index of those that wait, which a planner without statistics takes
-- for small, would be read from end to end for each key.
SELECT key, subqueue, fingerprint FROM lazaretto_dead_letters
WHERE key [among keys] AND coalesce(resolution, '') = '' AND fingerprint IS NOT NULL

-- name: has_fingerprint
-- Whether such dead letters were seen before.
SELECT 1 FROM lazaretto_fingerprints WHERE place = :place AND fingerprint = :fingerprint

-- name: count_fingerprints
-- How many fingerprints a subqueue has.
SELECT count(*) FROM lazaretto_fingerprints WHERE place = :place

-- name: count_family
-- How many fingerprints differ in nothing but the shape.
SELECT count(*) FROM lazaretto_fingerprints WHERE place = :place AND family = :family

-- name: select_fingerprints
-- All fingerprints of a subqueue, those that have letters with the first of these.
SELECT [fingerprint_columns], CASE WHEN f.waiting > 0 THEN (
    SELECT min(d.key) FROM lazaretto_dead_letters d WHERE d.fingerprint = f.fingerprint AND [waiting_in]) END
FROM lazaretto_fingerprints f WHERE f.place = :place ORDER BY f.first, 15, f.fingerprint

-- name: select_cause_hours
-- How many dead letters came in each hour, from one on.
SELECT fingerprint, hour, letters FROM lazaretto_cause_hours WHERE place = :place AND hour >= :hour

-- name: delete_old_hours
-- Hours that are no longer kept.
DELETE FROM lazaretto_cause_hours WHERE hour < :hour

-- name: select_causes
-- All causes of a subqueue.
SELECT number, template, created, note, acknowledged_until, merged_into, split_from, difference, explained
FROM lazaretto_causes WHERE place = :place ORDER BY number

-- name: save_cause
-- How a cause stands.
INSERT INTO lazaretto_causes
    (place, number, template, created, note, acknowledged_until, merged_into, split_from, difference, explained)
VALUES (:place, :number, :template, :created, :note, :acknowledged_until, :merged_into, :split_from, :difference,
        :explained)
ON CONFLICT (place, number) DO UPDATE SET template = excluded.template, note = excluded.note, acknowledged_until =
    excluded.acknowledged_until, merged_into = excluded.merged_into, split_from = excluded.split_from, difference =
    excluded.difference, explained = excluded.explained

-- name: set_cause
-- Which cause fingerprints belong to.
UPDATE lazaretto_fingerprints SET cause = :cause, kept = :kept
WHERE place = :place AND fingerprint [among fingerprints]

-- name: select_unknown_letters
-- Dead letters that wait and have no fingerprint yet, which an older version has set aside.
SELECT [dead_letter_columns] FROM lazaretto_dead_letters d
WHERE d.fingerprint IS NULL AND [waiting_in] ORDER BY d.key LIMIT :limit

-- name: set_fingerprint
-- The fingerprint of a dead letter that had none.
UPDATE lazaretto_dead_letters SET fingerprint = :fingerprint WHERE key = :key

-- name: recount_letters
-- How many dead letters wait, counted anew.
UPDATE lazaretto_fingerprints SET waiting = (
    SELECT count(*) FROM lazaretto_dead_letters d
    WHERE d.fingerprint = lazaretto_fingerprints.fingerprint AND [waiting_in])
WHERE place = :place

-- name: delete_fingerprints_of
-- The fingerprints of a deleted queue.
DELETE FROM lazaretto_fingerprints WHERE place >= :first AND place < :last

-- name: delete_hours_of
-- How many dead letters came to a deleted queue.
DELETE FROM lazaretto_cause_hours WHERE place >= :first AND place < :last

-- name: delete_causes_of
-- The causes of a deleted queue.
DELETE FROM lazaretto_causes WHERE place >= :first AND place < :last

-- part: miscounted
-- Fingerprints that count another number of dead letters than wait.
SELECT 'causes of ' || q.path || ' that count another number of dead letters than wait', count(*)
FROM lazaretto_fingerprints f JOIN lazaretto_queues q ON q.queue_id = f.place >> 2
WHERE f.waiting <> (
    SELECT count(*) FROM lazaretto_dead_letters d
    WHERE d.fingerprint = f.fingerprint AND d.resolution IS NULL AND d.key > [lower_bound q.queue_id]
        AND d.key < [lower_bound q.queue_id + 1] AND d.subqueue = (f.place & 3))
GROUP BY q.path
