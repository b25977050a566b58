"""The flights through a topic of Kafka's, whose bad rows are set aside and come back."""
