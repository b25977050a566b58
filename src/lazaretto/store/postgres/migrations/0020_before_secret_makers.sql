-- Who has seen a secret besides its person, as JSON: whoever made it.
ALTER TABLE lazaretto_secrets ADD COLUMN makers text;
