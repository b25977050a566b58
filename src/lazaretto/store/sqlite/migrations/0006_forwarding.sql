-- subqueue: 1 the dead-letter subqueue, 2 the transfer dead-letter subqueue.
ALTER TABLE lazaretto_dead_letters ADD COLUMN subqueue INTEGER NOT NULL DEFAULT 1;

-- size: bytes of all messages, kept for a queue or topic that has a largest size.
-- idle_at: when it is deleted, unless it is used before.
ALTER TABLE lazaretto_queues ADD COLUMN size INTEGER NOT NULL DEFAULT 0;
ALTER TABLE lazaretto_queues ADD COLUMN idle_at INTEGER;
CREATE INDEX lazaretto_queues_idle ON lazaretto_queues (idle_at) WHERE idle_at IS NOT NULL;
