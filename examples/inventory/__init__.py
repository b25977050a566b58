"""A warehouse: deliveries of unknown parts are set aside for the operator, the rest goes on."""
