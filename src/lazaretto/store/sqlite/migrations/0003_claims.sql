-- Whoever takes claims of a queue, by name. epoch: grows whenever a driver attaches; the former one is
-- then fenced off. settled: the last claim that is settled or revoked, with all before it.
CREATE TABLE lazaretto_consumers (
    queue_id INTEGER NOT NULL,
    consumer TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    last_claim INTEGER NOT NULL,
    settled INTEGER NOT NULL,
    driver TEXT NOT NULL,
    attached INTEGER NOT NULL,
    PRIMARY KEY (queue_id, consumer)
) WITHOUT ROWID;

-- Claims: numbered sets of locked messages. token: the first of its shards' lock tokens.
-- lease_until: when it is revoked; NULL once it is settled, or revoked with all messages put back.
CREATE TABLE lazaretto_claims (
    queue_id INTEGER NOT NULL,
    consumer TEXT NOT NULL,
    number INTEGER NOT NULL,
    state TEXT NOT NULL,
    token INTEGER NOT NULL,
    created INTEGER NOT NULL,
    lease_until INTEGER,
    rows INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    ended INTEGER,
    summary TEXT,
    PRIMARY KEY (queue_id, consumer, number)
) WITHOUT ROWID;
CREATE INDEX lazaretto_claims_lease ON lazaretto_claims (lease_until) WHERE lease_until IS NOT NULL;

-- A shard is what one task reads: the messages between two keys under one lock token.
-- reads: how often it was read. started: the message being worked on, where one at a time is.
CREATE TABLE lazaretto_shards (
    token INTEGER PRIMARY KEY,
    claim_token INTEGER NOT NULL,
    first INTEGER NOT NULL,
    last INTEGER NOT NULL,
    rows INTEGER NOT NULL,
    reads INTEGER NOT NULL DEFAULT 0,
    read_epoch INTEGER,
    started INTEGER
);
CREATE INDEX lazaretto_shards_of ON lazaretto_shards (claim_token);

-- What tasks have done with messages of a claim, until it is settled.
CREATE TABLE lazaretto_staged (
    claim_token INTEGER NOT NULL,
    stage TEXT NOT NULL,
    outcomes BLOB NOT NULL
);
CREATE INDEX lazaretto_staged_of ON lazaretto_staged (claim_token, stage);

-- Messages that a writer's tasks have prepared, and the last batch of each writer that was sent.
CREATE TABLE lazaretto_outbox (
    stage TEXT NOT NULL,
    messages BLOB NOT NULL,
    staged INTEGER NOT NULL
);
CREATE INDEX lazaretto_outbox_of ON lazaretto_outbox (stage);
CREATE TABLE lazaretto_writers (
    writer TEXT PRIMARY KEY,
    batch INTEGER NOT NULL,
    seen INTEGER NOT NULL
) WITHOUT ROWID;
