"""The door for AMQP 1.0 clients, measured beside the Python API and beside others."""
