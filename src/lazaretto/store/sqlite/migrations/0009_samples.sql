-- Completed messages that are kept as examples of good ones. kept: when they were completed.
CREATE TABLE lazaretto_samples (
    key INTEGER PRIMARY KEY,
    kept INTEGER NOT NULL,
    message_id TEXT NOT NULL,
    enqueued INTEGER NOT NULL,
    headers BLOB,
    body BLOB NOT NULL
);
