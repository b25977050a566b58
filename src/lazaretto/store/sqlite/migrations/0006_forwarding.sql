-- subqueue: 1 the dead-letter subqueue, 2 the transfer dead-letter subqueue.
ALTER TABLE lazaretto_dead_letters ADD COLUMN subqueue INTEGER NOT NULL DEFAULT 1;

-- size: bytes of all messages, kept for a queue or topic that has a largest size.
-- idle_at: when it is deleted, unless it is used before.
ALTER TABLE lazaretto_queues ADD COLUMN size INTEGER NOT NULL DEFAULT 0;
ALTER TABLE lazaretto_queues ADD COLUMN idle_at INTEGER;
CREATE INDEX lazaretto_queues_idle ON lazaretto_queues (idle_at) WHERE idle_at IS NOT NULL;

-- Bodies that several messages have, and how many: the body goes with the last of them.
DROP INDEX lazaretto_messages_body;
CREATE TABLE lazaretto_shared_bodies (
    body_id INTEGER PRIMARY KEY,
    uses INTEGER NOT NULL
);
INSERT INTO lazaretto_shared_bodies (body_id, uses)
SELECT body_id, count(*) FROM lazaretto_messages WHERE body_id IS NOT NULL GROUP BY body_id HAVING count(*) > 1;
