"""What all doors of a server share: its connections, and what clients may use of it."""
