CREATE TABLE lazaretto_meta (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE lazaretto_queues (
    queue_id INTEGER PRIMARY KEY AUTOINCREMENT,
    path TEXT NOT NULL,
    path_key TEXT NOT NULL UNIQUE,
    options TEXT NOT NULL,
    status TEXT NOT NULL DEFAULT 'active',
    halted_by TEXT,
    dead_letter_halted_by TEXT,
    high_water INTEGER NOT NULL DEFAULT 0,
    rollbacks INTEGER NOT NULL DEFAULT 0,
    expired INTEGER NOT NULL DEFAULT 0,
    dropped INTEGER NOT NULL DEFAULT 0,
    created INTEGER NOT NULL,
    updated INTEGER NOT NULL
);

-- Queues that are gone, whose messages are still being removed, a chunk at a time.
CREATE TABLE lazaretto_deleted_queues (
    queue_id INTEGER PRIMARY KEY
);

-- key: queue, subqueue and sequence number in one integer, so that a subqueue stands together in order.
-- state: 0 fresh (never handed out), 1 ready (again), 2 locked, 3 deferred, 4 scheduled, 5 delayed.
-- due: when the store must look at this row: lock's end, scheduled time, retry time, or expiry.
-- A small body stands in the row; a large one in lazaretto_bodies, so that locking does not rewrite it.
CREATE TABLE lazaretto_messages (
    key INTEGER PRIMARY KEY,
    state INTEGER NOT NULL,
    due INTEGER,
    expires INTEGER,
    enqueued INTEGER NOT NULL,
    message_id TEXT NOT NULL,
    session_id TEXT,
    lock_token INTEGER,
    locked_at INTEGER,
    locked_by TEXT,
    deliveries INTEGER NOT NULL DEFAULT 0,
    failures INTEGER NOT NULL DEFAULT 0,
    worker_deaths INTEGER NOT NULL DEFAULT 0,
    lock_expiries INTEGER NOT NULL DEFAULT 0,
    delivery_count INTEGER NOT NULL DEFAULT 0,
    cycle_attempts INTEGER NOT NULL DEFAULT 0,
    cycle INTEGER NOT NULL DEFAULT 0,
    moves INTEGER NOT NULL DEFAULT 0,
    generation INTEGER NOT NULL DEFAULT 0,
    deferred INTEGER NOT NULL DEFAULT 0,
    enqueued_sequence_number INTEGER,
    resubmitted_from INTEGER,
    headers BLOB,
    body_id INTEGER,
    body BLOB
);

-- Fresh messages need no index: they are found behind the last one handed out.
CREATE INDEX lazaretto_messages_ready ON lazaretto_messages (key) WHERE state = 1;
CREATE INDEX lazaretto_messages_due ON lazaretto_messages (due) WHERE due IS NOT NULL;
CREATE INDEX lazaretto_messages_session
    ON lazaretto_messages (key >> 44, session_id, state, key) WHERE session_id IS NOT NULL;

CREATE TABLE lazaretto_bodies (
    body_id INTEGER PRIMARY KEY,
    body BLOB NOT NULL
);

CREATE TABLE lazaretto_sessions (
    queue_id INTEGER NOT NULL,
    session_id TEXT NOT NULL,
    lock_token INTEGER,
    locked_until INTEGER,
    locked_by TEXT,
    state BLOB,
    PRIMARY KEY (queue_id, session_id)
);
CREATE INDEX lazaretto_sessions_locked
    ON lazaretto_sessions (locked_until) WHERE locked_until IS NOT NULL;

CREATE TABLE lazaretto_message_ids (
    queue_id INTEGER NOT NULL,
    message_id TEXT NOT NULL,
    partition_key TEXT NOT NULL,
    forget_after INTEGER NOT NULL,
    sequence_number INTEGER NOT NULL,
    PRIMARY KEY (queue_id, message_id, partition_key)
) WITHOUT ROWID;
CREATE INDEX lazaretto_message_ids_old ON lazaretto_message_ids (forget_after);

-- Attempts that did not complete, under the key the message has or had in the queue itself.
CREATE TABLE lazaretto_attempts (
    key INTEGER NOT NULL,
    number INTEGER NOT NULL,
    started INTEGER,
    ended INTEGER NOT NULL,
    worker TEXT,
    outcome TEXT NOT NULL,
    error_type TEXT,
    error_message TEXT,
    stack TEXT
);
CREATE INDEX lazaretto_attempts_of ON lazaretto_attempts (key, number);

CREATE TABLE lazaretto_dead_letters (
    key INTEGER PRIMARY KEY,
    message_id TEXT NOT NULL,
    reason TEXT,
    description TEXT,
    error_type TEXT,
    error_message TEXT,
    dead_lettered INTEGER NOT NULL,
    enqueued INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    counters TEXT NOT NULL,
    resubmitted_from INTEGER,
    resolution TEXT,
    resolved INTEGER,
    resubmitted_as INTEGER
);
CREATE INDEX lazaretto_dead_letters_resolved
    ON lazaretto_dead_letters (resolved) WHERE resolved IS NOT NULL;

CREATE TABLE lazaretto_events (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    time INTEGER NOT NULL,
    kind TEXT NOT NULL,
    queue TEXT NOT NULL,
    sequence_number INTEGER,
    detail TEXT NOT NULL
);
CREATE INDEX lazaretto_events_time ON lazaretto_events (time);

CREATE TABLE lazaretto_audit (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    time INTEGER NOT NULL,
    actor TEXT NOT NULL,
    action TEXT NOT NULL,
    queue TEXT NOT NULL,
    detail TEXT NOT NULL
);
