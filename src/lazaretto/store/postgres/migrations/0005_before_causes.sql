-- Workers of the schema before give no fingerprints; whoever asks for causes gives them.
-- site: where in the code an error came from. fingerprint: 64 bits; what it stands for is in lazaretto_fingerprints.
ALTER TABLE lazaretto_attempts ADD COLUMN site TEXT;
ALTER TABLE lazaretto_dead_letters ADD COLUMN fingerprint BIGINT;
CREATE INDEX lazaretto_dead_letters_alike ON lazaretto_dead_letters (fingerprint, key) WHERE resolution IS NULL;

-- Dead letters that are alike, counted. place: queue and subqueue, as in keys. family: all but the shape.
-- waiting: those that are not resolved. since: when the first of these came; emptied: when there was none
-- the last time. cause: the number of their cause; NULL until somebody asks for causes. kept: an operator has put them
-- there, so that they are not put elsewhere.
CREATE TABLE lazaretto_fingerprints (
    place BIGINT NOT NULL,
    fingerprint BIGINT NOT NULL,
    family BIGINT NOT NULL,
    version BIGINT NOT NULL,
    reason TEXT COLLATE "C",
    error_type TEXT COLLATE "C",
    site TEXT,
    shape TEXT,
    waiting BIGINT NOT NULL,
    total BIGINT NOT NULL,
    first BIGINT NOT NULL,
    last BIGINT NOT NULL,
    since BIGINT NOT NULL,
    emptied BIGINT,
    cause BIGINT,
    kept BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (place, fingerprint)
);
CREATE INDEX lazaretto_fingerprints_family ON lazaretto_fingerprints (place, family);

-- How many dead letters came in each hour since 1970.
CREATE TABLE lazaretto_cause_hours (
    place BIGINT NOT NULL,
    fingerprint BIGINT NOT NULL,
    hour BIGINT NOT NULL,
    letters BIGINT NOT NULL,
    PRIMARY KEY (place, hour, fingerprint)
);
CREATE INDEX lazaretto_cause_hours_old ON lazaretto_cause_hours (hour);

-- difference: what explains the cause, as JSON; explained: when that was found.
CREATE TABLE lazaretto_causes (
    place BIGINT NOT NULL,
    number BIGINT NOT NULL,
    template TEXT,
    created BIGINT NOT NULL,
    note TEXT,
    acknowledged_until BIGINT,
    merged_into BIGINT,
    split_from BIGINT,
    difference TEXT,
    explained BIGINT,
    PRIMARY KEY (place, number)
);
