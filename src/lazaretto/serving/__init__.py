"""Common parts of a server's doors: its connections, and what clients may use of it."""
