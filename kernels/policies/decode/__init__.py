"""Policies of decoding, which say what tokens of the cache a step reads."""
