"""The benchmark: Lazaretto beside other durable queues and beside raw SQLite, in one run, on one machine.

`python -m bench` from the root of the project; `docs/benchmarks.md` says how to read what it prints.
It measures and never judges: nothing here passes or fails.
"""
