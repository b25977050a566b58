-- The name under which a session's lock was taken: who knows it uses the lock, too.
ALTER TABLE lazaretto_sessions ADD COLUMN locked_as TEXT;
