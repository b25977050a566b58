-- suspect: how many workers died while they held this message among others. Such a message waits
-- in state 6 (suspect) until it is handed out alone.
ALTER TABLE lazaretto_messages ADD COLUMN suspect INTEGER NOT NULL DEFAULT 0;
CREATE INDEX lazaretto_messages_suspect ON lazaretto_messages (key) WHERE state = 6;

-- Why a session is not handed out: JSON of the poison message it waits for, and that message's key.
ALTER TABLE lazaretto_sessions ADD COLUMN held_by TEXT;
ALTER TABLE lazaretto_sessions ADD COLUMN held_key INTEGER;
CREATE INDEX lazaretto_sessions_held ON lazaretto_sessions (held_key) WHERE held_key IS NOT NULL;

-- What a queue's breaker knows while it is not closed, as JSON.
ALTER TABLE lazaretto_queues ADD COLUMN breaker TEXT;

-- Processes that hold or held messages. seen: the last sign of life. died: when it was known to be dead.
CREATE TABLE lazaretto_workers (
    worker TEXT PRIMARY KEY,
    machine TEXT NOT NULL,
    pid INTEGER NOT NULL,
    born TEXT NOT NULL,
    seen INTEGER NOT NULL,
    died INTEGER
) WITHOUT ROWID;

-- Hand-overs to service hosts: when the host dies they are known at once, without waiting for the lock.
CREATE TABLE lazaretto_leases (
    token INTEGER PRIMARY KEY,
    worker TEXT NOT NULL,
    queue_id INTEGER NOT NULL,
    session_id TEXT,
    keys TEXT NOT NULL,
    started INTEGER NOT NULL
);
CREATE INDEX lazaretto_leases_of ON lazaretto_leases (worker);
