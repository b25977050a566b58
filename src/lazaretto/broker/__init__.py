"""Brokers: all that users hold to send, receive, settle and administer."""
