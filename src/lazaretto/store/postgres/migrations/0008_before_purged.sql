-- Purged dead letters, which are deleted a week later.
CREATE INDEX lazaretto_dead_letters_purged ON lazaretto_dead_letters (resolved) WHERE resolution = 'purged';
