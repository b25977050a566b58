"""The broker's knowledge as JSON: for the command and the HTTP API."""
