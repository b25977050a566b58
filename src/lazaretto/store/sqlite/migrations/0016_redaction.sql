-- Whether there are rules for fields of a queue's messages that people may not read.
ALTER TABLE lazaretto_queues ADD COLUMN redacted INTEGER NOT NULL DEFAULT 0;
