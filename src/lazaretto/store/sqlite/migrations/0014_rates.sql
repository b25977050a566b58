-- What happened to the messages of queues, by minute and by hour.
CREATE TABLE lazaretto_rates (
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
CREATE INDEX lazaretto_rates_by_start ON lazaretto_rates (span, start);
