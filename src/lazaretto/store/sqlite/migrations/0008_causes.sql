-- site: where in the code an error came from. fingerprint: 64 bits; what it stands for is in lazaretto_fingerprints.
ALTER TABLE lazaretto_attempts ADD COLUMN site TEXT;
ALTER TABLE lazaretto_dead_letters ADD COLUMN fingerprint INTEGER;
CREATE INDEX lazaretto_dead_letters_alike ON lazaretto_dead_letters (fingerprint, key) WHERE resolution IS NULL;

-- Dead letters that are alike, counted. place: queue and subqueue, as in keys. family: all but the shape.
-- waiting: those that are not resolved. since: when the first of these came; emptied: when there was none
-- the last time. cause: the number of their cause; NULL until somebody asks for causes. kept: an operator has put them
-- there, so that they are not put elsewhere.
CREATE TABLE lazaretto_fingerprints (
    place INTEGER NOT NULL,
    fingerprint INTEGER NOT NULL,
    family INTEGER NOT NULL,
    version INTEGER NOT NULL,
    reason TEXT,
    error_type TEXT,
    site TEXT,
    shape TEXT,
    waiting INTEGER NOT NULL,
    total INTEGER NOT NULL,
    first INTEGER NOT NULL,
    last INTEGER NOT NULL,
    since INTEGER NOT NULL,
    emptied INTEGER,
    cause INTEGER,
    kept INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (place, fingerprint)
) WITHOUT ROWID;
CREATE INDEX lazaretto_fingerprints_family ON lazaretto_fingerprints (place, family);

-- How many dead letters came in each hour since 1970.
CREATE TABLE lazaretto_cause_hours (
    place INTEGER NOT NULL,
    fingerprint INTEGER NOT NULL,
    hour INTEGER NOT NULL,
    letters INTEGER NOT NULL,
    PRIMARY KEY (place, hour, fingerprint)
) WITHOUT ROWID;
CREATE INDEX lazaretto_cause_hours_old ON lazaretto_cause_hours (hour);

-- difference: what explains the cause, as JSON; explained: when that was found.
CREATE TABLE lazaretto_causes (
    place INTEGER NOT NULL,
    number INTEGER NOT NULL,
    template TEXT,
    created INTEGER NOT NULL,
    note TEXT,
    acknowledged_until INTEGER,
    merged_into INTEGER,
    split_from INTEGER,
    difference TEXT,
    explained INTEGER,
    PRIMARY KEY (place, number)
) WITHOUT ROWID;
