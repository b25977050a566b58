-- A table that was STRICT keeps SQLite below 3.37 from reading anything in its file.
CREATE TABLE lazaretto_rates_anew (
    queue_id INTEGER NOT NULL,
    -- Minutes since 1970.
    span INTEGER NOT NULL,
    start INTEGER NOT NULL,
    sent INTEGER NOT NULL,
    received INTEGER NOT NULL,
    completed INTEGER NOT NULL,
    failed INTEGER NOT NULL,
    dead INTEGER NOT NULL,
    PRIMARY KEY (queue_id, span, start)
) WITHOUT ROWID;
INSERT INTO lazaretto_rates_anew SELECT * FROM lazaretto_rates;
DROP TABLE lazaretto_rates;
ALTER TABLE lazaretto_rates_anew RENAME TO lazaretto_rates;
CREATE INDEX lazaretto_rates_by_start ON lazaretto_rates (span, start);
