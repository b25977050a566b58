-- What happened to the messages of queues, by minute and by hour.
CREATE TABLE lazaretto_rates (
    queue_id bigint NOT NULL,
    -- Minutes since 1970.
    span bigint NOT NULL,
    start bigint NOT NULL,
    sent bigint NOT NULL,
    received bigint NOT NULL,
    completed bigint NOT NULL,
    failed bigint NOT NULL,
    dead bigint NOT NULL,
    PRIMARY KEY (queue_id, span, start)
);
CREATE INDEX lazaretto_rates_by_start ON lazaretto_rates (span, start);
