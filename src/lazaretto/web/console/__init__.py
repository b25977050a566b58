"""The operator's console: pages for people, drawn by the server."""
