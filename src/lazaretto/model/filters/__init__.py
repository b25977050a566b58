"""Filters and actions of a topic's rules. Pure: no store, no clock."""
