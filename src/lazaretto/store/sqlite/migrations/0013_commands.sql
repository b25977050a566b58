-- Commands that were run under an idempotency key, with their answers as JSON.
CREATE TABLE lazaretto_commands (
    key TEXT NOT NULL PRIMARY KEY,
    actor TEXT NOT NULL,
    digest BLOB NOT NULL,
    answer BLOB NOT NULL,
    time INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX lazaretto_commands_by_time ON lazaretto_commands (time);
