-- Completed messages that are kept as examples of good ones. kept: when they were completed.
CREATE TABLE lazaretto_samples (
    key BIGINT PRIMARY KEY,
    kept BIGINT NOT NULL,
    message_id TEXT COLLATE "C" NOT NULL,
    enqueued BIGINT NOT NULL,
    headers BYTEA,
    body BYTEA NOT NULL
);
