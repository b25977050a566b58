-- Access: people, what they were granted, and the hashes of their secrets. See queries.sql.

-- name: select_person
-- A person.
SELECT name, grants, created FROM lazaretto_people WHERE name = :name

-- name: select_people
-- All people.
SELECT name, grants, created FROM lazaretto_people ORDER BY name

-- name: save_person
-- A person, with what was granted now.
INSERT INTO lazaretto_people (name, grants, created) VALUES (:name, :grants, :created)
ON CONFLICT (name) DO UPDATE SET grants = excluded.grants

-- name: delete_person
-- A person who is removed.
DELETE FROM lazaretto_people WHERE name = :name

-- part: secret_columns
-- What a secret record has, in its order.
id, kind, person, digest, grants, label, created, expires, seen, member_of, makers

-- name: select_secret
-- A secret, by the part of it that is public.
SELECT [secret_columns] FROM lazaretto_secrets WHERE id = :id

-- name: select_secrets
-- Secrets of a kind, of one person or of all.
SELECT [secret_columns] FROM lazaretto_secrets
WHERE kind = :kind AND (CAST(:person AS TEXT) IS NULL OR person = :person) ORDER BY created DESC, id

-- name: save_secret
-- A new secret, or when it was last seen.
INSERT INTO lazaretto_secrets ([secret_columns])
VALUES (:id, :kind, :person, :digest, :grants, :label, :created, :expires, :seen, :member_of, :makers)
ON CONFLICT (id) DO UPDATE SET seen = excluded.seen

-- name: delete_secret
-- A secret that is revoked or used up.
DELETE FROM lazaretto_secrets WHERE id = :id

-- name: delete_secrets
-- Secrets of a person, of one kind or of all.
DELETE FROM lazaretto_secrets
WHERE person = :person AND (CAST(:kind AS TEXT) IS NULL OR kind = :kind)

-- name: forget_secrets
-- Some secrets that expired before a time.
DELETE FROM lazaretto_secrets
WHERE id IN (SELECT id FROM lazaretto_secrets WHERE expires < :before ORDER BY expires LIMIT :limit)

-- name: select_setting
-- A setting of the store.
SELECT value FROM lazaretto_meta WHERE name = :name

-- name: save_setting
-- A setting of the store, in place of what it was.
INSERT INTO lazaretto_meta (name, value) VALUES (:name, :value)
ON CONFLICT (name) DO UPDATE SET value = excluded.value

-- name: delete_setting
-- A setting that is not set any more.
DELETE FROM lazaretto_meta WHERE name = :name
