-- People and what they were granted, as JSON; and hashes of what stands for them: tokens, sessions, links.
CREATE TABLE lazaretto_people (
    name TEXT NOT NULL PRIMARY KEY,
    grants TEXT NOT NULL,
    created INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE lazaretto_secrets (
    id TEXT NOT NULL PRIMARY KEY,
    kind TEXT NOT NULL,
    person TEXT NOT NULL,
    digest BLOB NOT NULL,
    grants TEXT,
    label TEXT NOT NULL,
    created INTEGER NOT NULL,
    expires INTEGER,
    seen INTEGER
) WITHOUT ROWID;
CREATE INDEX lazaretto_secrets_by_person ON lazaretto_secrets (person, kind);
CREATE INDEX lazaretto_secrets_by_expiry ON lazaretto_secrets (expires) WHERE expires IS NOT NULL;
