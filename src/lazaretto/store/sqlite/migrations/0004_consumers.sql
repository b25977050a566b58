-- A consumer whose claim nobody could read, and live: the next claims have so many messages at most
-- (narrow; 0: no limit) until so many more are settled (narrow_left).
ALTER TABLE lazaretto_consumers ADD COLUMN narrow INTEGER NOT NULL DEFAULT 0;
ALTER TABLE lazaretto_consumers ADD COLUMN narrow_left INTEGER NOT NULL DEFAULT 0;
-- careful: read one message at a time, from the first time on.
ALTER TABLE lazaretto_shards ADD COLUMN careful INTEGER NOT NULL DEFAULT 0;
-- identity: tells a consumer from one of the same name elsewhere; 0: not given yet.
ALTER TABLE lazaretto_consumers ADD COLUMN identity INTEGER NOT NULL DEFAULT 0;
