"""Servers and batches under load, and killed."""
