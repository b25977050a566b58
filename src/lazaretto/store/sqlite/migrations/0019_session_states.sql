-- When the state of a session was set.
ALTER TABLE lazaretto_sessions ADD COLUMN state_set INTEGER;
