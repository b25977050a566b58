"""Common ground of all that call handlers: forms of handlers, and their context."""
