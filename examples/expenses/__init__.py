"""Expense reports: an application that counts failures in its own table, in the broker's commit."""
