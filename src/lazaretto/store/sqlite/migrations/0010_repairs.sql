-- Repairs: each sends a frozen set of dead letters back. plan: what is done, as JSON; it never changes. pace: how fast,
-- as JSON. position: how many members were dealt with; taken_back: where undoing is. processed, failed: outcomes of
-- those letters that are watched. runner, token, lease_until: the process that is at work on it.
CREATE TABLE lazaretto_repairs (
    repair INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    queue_id INTEGER NOT NULL,
    subqueue INTEGER NOT NULL,
    path TEXT NOT NULL,
    phase TEXT NOT NULL,
    why TEXT,
    plan TEXT NOT NULL,
    pace TEXT NOT NULL,
    letters INTEGER NOT NULL,
    position INTEGER NOT NULL DEFAULT 0,
    sent INTEGER NOT NULL DEFAULT 0,
    skipped INTEGER NOT NULL DEFAULT 0,
    processed INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    taken_back INTEGER,
    undone INTEGER NOT NULL DEFAULT 0,
    actor TEXT NOT NULL,
    created INTEGER NOT NULL,
    changed INTEGER NOT NULL,
    ended INTEGER,
    runner TEXT,
    token INTEGER,
    lease_until INTEGER
);
CREATE INDEX lazaretto_repairs_running ON lazaretto_repairs (repair) WHERE phase IN ('canary', 'applying', 'undoing');

-- The frozen set in the order in which it is sent: compressed keys, a part to a row.
CREATE TABLE lazaretto_repair_members (
    repair INTEGER NOT NULL,
    part INTEGER NOT NULL,
    keys BLOB NOT NULL,
    PRIMARY KEY (repair, part)
);

-- What became of each letter that was dealt with. why: of one that was skipped. before: what sending has changed of
-- it. outcome: NULL while it is watched.
CREATE TABLE lazaretto_repair_items (
    repair INTEGER NOT NULL,
    key INTEGER NOT NULL,
    new_key INTEGER,
    generation INTEGER NOT NULL,
    before BLOB,
    why TEXT,
    outcome TEXT,
    PRIMARY KEY (repair, key)
) WITHOUT ROWID;
CREATE INDEX lazaretto_repair_items_open ON lazaretto_repair_items (repair, key) WHERE outcome IS NULL;

-- Edited letters as they were.
CREATE TABLE lazaretto_repair_originals (
    repair INTEGER NOT NULL,
    key INTEGER NOT NULL,
    message_id TEXT NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (repair, key)
);
