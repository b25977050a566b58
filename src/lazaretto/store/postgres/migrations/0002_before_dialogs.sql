-- Message types, contracts, services and priorities, as JSON.
CREATE TABLE lazaretto_definitions (
    kind TEXT COLLATE "C" NOT NULL,
    name TEXT COLLATE "C" NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (kind, name)
);

-- One row for each end of a dialog; its handle is the dialog's id and -i or -t. Its messages are in sessions of its
-- queue; a conversation group is a session without messages.
CREATE TABLE lazaretto_conversations (
    handle TEXT COLLATE "C" PRIMARY KEY,
    queue_id BIGINT NOT NULL,
    service TEXT COLLATE "C" NOT NULL,
    far_service TEXT COLLATE "C" NOT NULL,
    contract TEXT COLLATE "C" NOT NULL,
    group_id TEXT COLLATE "C" NOT NULL,
    state TEXT COLLATE "C" NOT NULL,
    priority INTEGER NOT NULL,
    far_queue_id BIGINT NOT NULL,
    far_priority INTEGER NOT NULL,
    sent BIGINT NOT NULL,
    created BIGINT NOT NULL,
    expires BIGINT,
    error_code BIGINT,
    error_text TEXT
) WITH (fillfactor = 50);
CREATE INDEX lazaretto_conversations_group ON lazaretto_conversations (queue_id, group_id);

-- What happened in a dialog, until it is over. sent: when a message was sent that is dealt with by this.
CREATE TABLE lazaretto_dialog_log (
    position BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    dialog_id TEXT COLLATE "C" NOT NULL,
    time BIGINT NOT NULL,
    sent BIGINT,
    handle TEXT COLLATE "C" NOT NULL,
    kind TEXT NOT NULL,
    message_type TEXT,
    number BIGINT,
    text TEXT
);
CREATE INDEX lazaretto_dialog_log_of ON lazaretto_dialog_log (dialog_id, position);

DO $$
DECLARE
    name TEXT;
BEGIN
    FOREACH name IN ARRAY ARRAY['conversations', 'dialog_log']
    LOOP
        EXECUTE format(
            'ALTER TABLE %I SET (autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_scale_factor = 0.01, '
            'autovacuum_vacuum_cost_delay = 0, vacuum_truncate = false)', 'lazaretto_' || name);
    END LOOP;
END
$$;
