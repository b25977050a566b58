-- Which of Spark's tasks processes a shard, by its number, so that one that Spark has cancelled notes nothing more.
ALTER TABLE lazaretto_shards ADD COLUMN task INTEGER;
