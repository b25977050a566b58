"""A saga of order, shipment and payment, on dialogs."""
