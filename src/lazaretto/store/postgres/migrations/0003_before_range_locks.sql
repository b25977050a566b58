-- Locks on fresh messages that were handed out together: one row, and none of theirs is touched. A range holds
-- `amount` messages in state 0, all that are between `first` and `last` and had not expired at `locked_at`.
CREATE TABLE lazaretto_range_locks (
    last BIGINT PRIMARY KEY,
    first BIGINT NOT NULL,
    token BIGINT NOT NULL,
    until BIGINT NOT NULL,
    locked_at BIGINT NOT NULL,
    locked_by TEXT NOT NULL,
    amount BIGINT NOT NULL
) WITH (fillfactor = 50);
CREATE INDEX lazaretto_range_locks_until ON lazaretto_range_locks (until);
