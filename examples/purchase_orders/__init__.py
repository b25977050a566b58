"""Purchase orders, some of them from customers that do not exist: queued WCF's sample on the service host."""
