-- Topics and subscriptions are rows like queues: kind is 'queue', 'topic' or 'subscription'. A topic holds
-- scheduled messages only. rules: of a subscription, MessagePack.
ALTER TABLE lazaretto_queues ADD COLUMN kind TEXT NOT NULL DEFAULT 'queue';
ALTER TABLE lazaretto_queues ADD COLUMN topic_id INTEGER;
ALTER TABLE lazaretto_queues ADD COLUMN rules BLOB;
CREATE INDEX lazaretto_queues_of_topic ON lazaretto_queues (topic_id) WHERE topic_id IS NOT NULL;

-- Several messages may have one body: it goes with the last of them.
CREATE INDEX lazaretto_messages_body ON lazaretto_messages (body_id) WHERE body_id IS NOT NULL;
