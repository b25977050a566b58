"""The job of `examples.flights` without Spark: a service host, and results in a database."""
