-- Failures by time, so that a breaker that opens reads the latest of them, however many a queue has.
CREATE INDEX lazaretto_attempts_by_time ON lazaretto_attempts (ended) WHERE outcome IN ('failed', 'expired');
