"""Queues on Spark: a stream of messages, each settled exactly once, and no poison row stops a job."""

from lazaretto.spark.datasource import register
from lazaretto.spark.java import find_java
from lazaretto.spark.pipeline import process
from lazaretto.spark.session import spark_session

__all__ = ["find_java", "process", "register", "spark_session"]
