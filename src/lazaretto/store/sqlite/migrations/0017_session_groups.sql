-- The groups of whoever opened a session with the word of an identity provider, as JSON.
ALTER TABLE lazaretto_secrets ADD COLUMN member_of TEXT;
