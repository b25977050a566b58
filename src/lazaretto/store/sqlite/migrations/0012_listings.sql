-- Dead letters that wait, by time and by message id.
CREATE INDEX lazaretto_dead_letters_by_time ON lazaretto_dead_letters (key >> 44, subqueue, dead_lettered, key)
    WHERE resolution IS NULL;
CREATE INDEX lazaretto_dead_letters_by_id ON lazaretto_dead_letters (message_id) WHERE resolution IS NULL;
