-- Who completed a message that is kept as an example of good ones.
ALTER TABLE lazaretto_samples ADD COLUMN worker TEXT;
