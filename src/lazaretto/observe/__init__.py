"""Traces and metrics of what a store does."""
