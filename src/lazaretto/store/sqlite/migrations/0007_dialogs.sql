-- Message types, contracts, services and priorities, as JSON.
CREATE TABLE lazaretto_definitions (
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (kind, name)
) WITHOUT ROWID;

-- One row for each end of a dialog; its handle is the dialog's id and -i or -t. Its messages are in sessions of its
-- queue; a conversation group is a session without messages.
CREATE TABLE lazaretto_conversations (
    handle TEXT PRIMARY KEY,
    queue_id INTEGER NOT NULL,
    service TEXT NOT NULL,
    far_service TEXT NOT NULL,
    contract TEXT NOT NULL,
    group_id TEXT NOT NULL,
    state TEXT NOT NULL,
    priority INTEGER NOT NULL,
    far_queue_id INTEGER NOT NULL,
    far_priority INTEGER NOT NULL,
    sent INTEGER NOT NULL,
    created INTEGER NOT NULL,
    expires INTEGER,
    error_code INTEGER,
    error_text TEXT
) WITHOUT ROWID;
CREATE INDEX lazaretto_conversations_group ON lazaretto_conversations (queue_id, group_id);

-- What happened in a dialog, until it is over. sent: when a message was sent that is dealt with by this.
CREATE TABLE lazaretto_dialog_log (
    position INTEGER PRIMARY KEY,
    dialog_id TEXT NOT NULL,
    time INTEGER NOT NULL,
    sent INTEGER,
    handle TEXT NOT NULL,
    kind TEXT NOT NULL,
    message_type TEXT,
    number INTEGER,
    text TEXT
);
CREATE INDEX lazaretto_dialog_log_of ON lazaretto_dialog_log (dialog_id, position);
