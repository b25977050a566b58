-- What was counted ever stands beside what was counted by minute and by hour: span 0, start 0, and under
-- queue 0 for all queues. It begins with the hours that are known.
INSERT INTO lazaretto_rates (queue_id, span, start, sent, received, completed, failed, dead)
SELECT queue_id, 0, 0, sum(sent), sum(received), sum(completed), sum(failed), sum(dead)
FROM lazaretto_rates WHERE span = 60 GROUP BY queue_id;
INSERT INTO lazaretto_rates (queue_id, span, start, sent, received, completed, failed, dead)
SELECT 0, 0, 0, sum(sent), sum(received), sum(completed), sum(failed), sum(dead)
FROM lazaretto_rates WHERE span = 0 GROUP BY span;
