-- Commands that were run under an idempotency key, with their answers as JSON.
CREATE TABLE lazaretto_commands (
    key TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    actor TEXT NOT NULL,
    digest BYTEA NOT NULL,
    answer BYTEA NOT NULL,
    time BIGINT NOT NULL
);
CREATE INDEX lazaretto_commands_by_time ON lazaretto_commands (time);
