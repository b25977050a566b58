"""Edits of messages: SQL actions, JSON merge patches, JSON Patches and functions. Pure: no store."""
