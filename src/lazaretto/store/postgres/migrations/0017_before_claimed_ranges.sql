-- Locks of claims on fresh messages: one row, and none of theirs is touched. A range locks all messages in state 0
-- that are between `first` and `last` and have no time to come (`due`). Where a lock must stand in a message itself,
-- it is written there: the message is in another state then. Nobody locks so while workers are left that do not look.
CREATE TABLE lazaretto_claimed_ranges (
    last BIGINT PRIMARY KEY,
    first BIGINT NOT NULL,
    token BIGINT NOT NULL,
    locked_at BIGINT NOT NULL,
    locked_by TEXT NOT NULL
);
CREATE INDEX lazaretto_claimed_ranges_of ON lazaretto_claimed_ranges (token);
