-- Who takes messages in a process, from which queues, as JSON: written with its heartbeat.
ALTER TABLE lazaretto_workers ADD COLUMN takers TEXT;
