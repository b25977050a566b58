-- People and what they were granted, as JSON; and hashes of what stands for them: tokens, sessions, links.
CREATE TABLE lazaretto_people (
    name TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    grants TEXT NOT NULL,
    created BIGINT NOT NULL
);
CREATE TABLE lazaretto_secrets (
    id TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    kind TEXT NOT NULL,
    person TEXT COLLATE "C" NOT NULL,
    digest BYTEA NOT NULL,
    grants TEXT,
    label TEXT NOT NULL,
    created BIGINT NOT NULL,
    expires BIGINT,
    seen BIGINT
);
CREATE INDEX lazaretto_secrets_by_person ON lazaretto_secrets (person, kind);
CREATE INDEX lazaretto_secrets_by_expiry ON lazaretto_secrets (expires) WHERE expires IS NOT NULL;
