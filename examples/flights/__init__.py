"""The main example: every flight that left New York in 2013, through a queue and Spark."""
