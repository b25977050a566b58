"""Service Broker's expense reports on the service host, which counts the failures itself."""
