-- The key of fingerprints as people see them: without it nobody finds out what they are made of.
INSERT INTO lazaretto_meta (name, value)
VALUES ('fingerprint_key', replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''));
