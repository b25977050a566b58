"""What the broker knows, as JSON: for the command and the HTTP API."""
