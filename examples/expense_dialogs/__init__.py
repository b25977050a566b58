"""Service Broker's sample of poison messages, on dialogs."""
