"""What whoever calls handlers shares: what a handler may be, and its context."""
